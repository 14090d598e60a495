"""A Harbor task in a sandbox: what a backend is asked for, how a step begins and is checked, what the oracle does."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from typing import Any

from rufus_plugins.errors import DataError, InfrastructureError
from rufus_plugins.protocols import Sandbox
from rufus_plugins.rewards.harbor_verifier import run_verifier
from rufus_plugins.rollouts.harbor import (
    HarborTask,
    Healthcheck,
    Step,
    read_folder,
    resolved,
    solution_files,
    test_files,
)
from rufus_plugins.types import ExecResult, Termination

SETUP_TIMEOUT_S = 600.0
"""For a step's setup.sh. Harbor sets none; ours."""


def sandbox_fields(task: HarborTask, backend: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the backend for this task. `environment`: what `prepare` noted (snapshot, workdir, user, env)."""
    fields: dict[str, Any] = {}
    if backend == "local":
        fields["snapshot"] = environment["snapshot"]
        fields["env"] = dict(task.env)
        if task.memory_mb:
            fields["memory_mb"] = task.memory_mb
        if task.storage_mb:
            fields["disk_mb"] = min(task.storage_mb, 16384)
    elif backend == "e2b":
        fields["template"] = environment["snapshot"]
        fields["env"] = {**environment.get("env", {}), **task.env}
        fields["network"] = {"public": "public", "no-network": "none"}.get(task.network_mode, "allowlist")
        if fields["network"] == "allowlist":
            fields["allowed_hosts"] = list(task.allowed_hosts)
            fields["network"] = "allowlist" if task.allowed_hosts else "none"
        if environment.get("user"):
            fields["user"] = environment["user"]
    else:
        raise DataError(f"no recipe for the sandbox {backend!r}; coding_agent knows local and e2b")
    workdir = task.workdir or environment.get("workdir")
    if workdir:
        fields["workdir"] = workdir
    return fields


async def begin_step(sandbox: Sandbox, task: HarborTask, step: Step, workdir: str, *, first: bool) -> None:
    """Clears what the last step's check left, lays out the step's files, runs its setup, waits until it is healthy.

    Raises InfrastructureError(ENVIRONMENT_LOST) where the task's own setup fails: no agent can do anything about it.
    """
    if first:
        await _healthy(sandbox, task.healthcheck, task.name)
    else:
        await sandbox.exec("rm -rf /tests /logs/verifier/* /logs/agent/*; mkdir -p /tests /logs/verifier", 60.0)
    if step.workdir is not None:
        for path, content in read_folder(step.workdir).items():
            await sandbox.write_file(f"{workdir.rstrip('/')}/{path}", content)
        if (step.workdir / "setup.sh").is_file():
            user = {"user": step.agent_user} if step.agent_user else {}
            done = await sandbox.exec(f"cd {shlex.quote(workdir)} && bash setup.sh", SETUP_TIMEOUT_S, **user)
            _need(done, f"{task.name}, step {step.name}: setup.sh")
    await _healthy(sandbox, step.healthcheck, f"{task.name}, step {step.name}")


async def verify(sandbox: Sandbox, task: HarborTask, step: Step, workdir: str) -> dict[str, Any]:
    """Runs the step's tests; the raw files, as the reward `task_tests` reads them."""
    return await run_verifier(
        sandbox,
        test_files(task, step),
        timeout_s=step.verifier_timeout_s,
        env={**task.env, **resolved(step.verifier_env, f"{task.name}: verifier.env")},
        workdir=workdir,
        user=step.verifier_user or None,
    )


async def solve(sandbox: Sandbox, task: HarborTask, step: Step, workdir: str) -> ExecResult:
    """Runs the task's own solution, as Harbor's oracle agent does. Raises `DataError` if it has none."""
    files = solution_files(step)
    if not files:
        raise DataError(f"{task.name}: the task has no solution")
    for path, content in files.items():
        await sandbox.write_file(f"/solution/{path}", content)
    env = resolved(task.solution_env, f"{task.name}: solution.env")
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in env.items())
    return await sandbox.exec(
        f"cd {shlex.quote(workdir)} && {exports}bash /solution/solve.sh; code=$?; rm -rf /solution; exit $code",
        step.agent_timeout_s,
    )


def environment_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What `prepare` noted in a record: `{"backend", "snapshot", ...}`. Raises `DataError`."""
    given = extra.get("environment")
    try:
        found = json.loads(given or "{}") if isinstance(given, str) else dict(given or {})
    except ValueError as error:
        raise DataError(f"the record's environment does not read: {error}") from error
    if not found.get("snapshot") or not found.get("backend"):
        raise DataError(
            "the record has no baked environment (extra_info.environment with backend and snapshot): "
            "make it with `rufus prepare coding_agent`"
        )
    return found


async def _healthy(sandbox: Sandbox, check: Healthcheck | None, what: str) -> None:
    if check is None:
        return
    await asyncio.sleep(check.start_period_s)
    result: ExecResult | None = None
    for attempt in range(check.retries):
        result = await sandbox.exec(check.command, check.timeout_s)
        if result.exit_code == 0:
            return
        if attempt + 1 < check.retries:
            await asyncio.sleep(check.interval_s)
    if result is not None:
        _need(result, f"{what}: the healthcheck, {check.retries} times,")


def _need(result: ExecResult, what: str) -> None:
    if result.exit_code != 0:
        how = f"exit code {result.exit_code}" if result.exit_code is not None else "no end in time"
        raise InfrastructureError(
            f"{what} failed ({how}): {(result.stderr or result.stdout).strip()[-300:]}", Termination.ENVIRONMENT_LOST
        )
