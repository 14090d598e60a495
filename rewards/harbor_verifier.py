"""Runs and reads a Harbor task's verifier (Harbor task format 1.4).

Order, as Harbor has it: whatever the agent left where rewards are written is deleted, the tests are copied in after the
agent ended, `test.sh` runs, its exit code is ignored, and the reward files are read. `read_reward` turns the raw files
into numbers: `reward.json` (flat, finite numbers) beats `reward.txt` (one finite number); anything else is a typed
error and never a 0.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.protocols import Sandbox
from rufus_plugins.types import Termination

REWARD_FILES = ("reward.json", "reward.txt")


async def run_verifier(
    sandbox: Sandbox,
    tests: Mapping[str, bytes],
    *,
    timeout_s: float = 600.0,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    tests_dir: str = "/tests",
    logs_dir: str = "/logs/verifier",
    user: str | None = None,
) -> dict[str, Any]:
    """`{"reward.json", "reward.txt", "stdout", "stderr", "exit_code", "timed_out"}`; a file that is absent is None.

    `tests`: path below `tests_dir` -> content; must hold `test.sh`. `user` runs it, "" is the
    sandbox's own. Raises `InfrastructureError` if the sandbox fails.
    """
    q = shlex.quote
    prepared = await sandbox.exec(
        f"rm -rf {q(logs_dir)} {q(tests_dir)} && mkdir -p {q(logs_dir)} {q(tests_dir)} && chmod 777 {q(logs_dir)}", 60.0
    )
    if prepared.exit_code != 0:
        raise InfrastructureError(
            f"the verifier's folders could not be made: {prepared.stderr[-500:]}", Termination.SANDBOX_LOST
        )
    for path, content in tests.items():
        await sandbox.write_file(f"{tests_dir}/{path}", content)
    exports = "".join(f"export {name}={q(value)}; " for name, value in (env or {}).items())
    enter = f"cd {q(workdir)} && " if workdir else ""
    await sandbox.exec(f"chmod -R a+rX {q(tests_dir)}; chmod +x {q(tests_dir)}/test.sh", 60.0)
    who = {"user": user} if user else {}  # only backends that have users take it
    ran = await sandbox.exec(f"{enter}{exports}{q(tests_dir)}/test.sh", timeout_s, **who)
    if not ran.started:
        raise InfrastructureError(f"the verifier did not start: {ran.stderr[-500:]}", Termination.SANDBOX_LOST)
    found: dict[str, Any] = {
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "exit_code": ran.exit_code,
        "timed_out": ran.exit_code is None,
    }
    for name in REWARD_FILES:
        path = f"{logs_dir}/{name}"
        there = await sandbox.exec(f"test -f {q(path)}", 30.0)
        found[name] = (await sandbox.read_file(path)).decode("utf-8", "replace") if there.exit_code == 0 else None
    return found


def read_reward(files: Mapping[str, Any]) -> dict[str, float]:
    """The rewards by name (`reward.txt` gives `reward`). Raises `InfrastructureError(REWARD_FAILED)`."""
    for name in REWARD_FILES:
        if not isinstance(files.get(name), str | None):
            raise _failed(f"{name} was kept as {type(files[name]).__name__}, not as its text")
    if files.get("timed_out"):
        raise _failed("the verifier ran out of time")
    text = files.get("reward.json")
    if text is not None:
        return _from_json(text)
    text = files.get("reward.txt")
    if text is None:
        raise _failed("the verifier wrote neither reward.json nor reward.txt", files)
    try:
        value = float(text.strip())
    except ValueError:
        raise _failed(f"reward.txt holds {text[:100]!r}, which is no number", files) from None
    if not math.isfinite(value):
        raise _failed(f"reward.txt holds {value}", files)
    return {"reward": value}


def _from_json(text: str) -> dict[str, float]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _failed(f"reward.json is no JSON ({error}): {text[:200]!r}") from None
    if not isinstance(data, dict) or not data:
        raise _failed(f"reward.json is not a mapping of names to numbers: {text[:200]!r}")
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
            raise _failed(f"reward.json: {name!r} is {value!r:.100}, not a finite number")
    return {name: float(value) for name, value in data.items()}


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def _failed(message: str, files: Mapping[str, Any] | None = None) -> InfrastructureError:
    tail = str((files or {}).get("stderr") or "")[-300:]
    return InfrastructureError(
        message + (f"; its standard error ends: {tail!r}" if tail else ""), Termination.REWARD_FAILED
    )
