"""Puzzles: a Python checker decides (Rufus-Air, Reasoning RL). The checker runs only in the sandbox.

`ground_truth` (or `artifacts["puzzle"]` of an environment), a mapping or its JSON, is one of

- `{"dataset": NAME, "entry": {...}, "config": {...}?}`: reasoning-gym's scorer for an entry of its dataset; an entry
  alone will do if its metadata names the `source_dataset`;
- `{"checker": SOURCE, "data": ANY?, "sees": "answer" | "response"?}`: Python with `def check(answer)` or
  `def check(answer, data)` that returns a bool or a number in 0..1.

The answer is what stands in the last `<answer>...</answer>`, else the last fenced block, else the final answer
(final_answer.py), else the whole response after the thinking. A checker that raises, hangs or exits on one answer
gives that answer 0 (metric `checker_failed`); one that cannot be loaded, or returns something else, makes the record
unusable.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.final_answer import final_answer, without_thinking
from rufus_plugins.rewards.puzzle_gym import harmless
from rufus_plugins.types import Score, Termination, Trajectory

_SCORE = "rufus_plugins.rewards.puzzle_gym:score"
_TAGGED = re.compile(r"<answer>\s?((?:(?!<answer>).)*?)\s?</answer>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)

_DRIVER = """
import inspect, json, os, sys
given = json.load(sys.stdin)
mark, out = given.pop("mark"), os.dup(1)
def say(**verdict):
    sys.stdout.flush()
    os.write(out, ("\\n" + mark + json.dumps(verdict)).encode())
    os._exit(0)
space = {"__name__": "checker"}
try:
    exec(compile(given["checker"], "checker.py", "exec"), space)
    check = space["check"]
    count = len(inspect.signature(check).parameters)
except BaseException as error:
    say(broken=f"does not load: {type(error).__name__}: {error}"[:500])
if count not in (1, 2):
    say(broken="check takes %d arguments; it must take (answer) or (answer, data)" % count)
try:
    value = check(given["answer"]) if count == 1 else check(given["answer"], given["data"])
except BaseException as error:
    say(failed=f"{type(error).__name__}: {error}"[:500])
try:
    number = float(value)
except Exception:
    say(broken="check returned " + repr(value)[:200])
say(score=number)
"""


@dataclass
class Puzzle:
    """A Python checker's verdict on the answer: reasoning-gym's scorer or the record's own code, in the sandbox."""

    binary: bool = True
    """Only a full score (1) counts, as pass or fail; otherwise partial credit is passed on. Ours."""
    timeout_s: float = 10.0
    """Ours."""
    memory_mb: int = 1024
    """Ours."""
    workers: int | None = None
    """Jailed workers; None: one per core."""

    def __post_init__(self) -> None:
        from rufus_plugins.rollouts.sandboxes.zygote import Limits

        if self.timeout_s <= 0 or self.memory_mb < 64:
            raise ConfigError("puzzle: timeout_s must be above 0 and memory_mb at least 64")
        self._limits = Limits(wall_s=self.timeout_s, memory_mb=self.memory_mb)

    async def __call__(self, trajectory: Trajectory) -> Score:
        truth = trajectory.task.ground_truth
        record = _record(trajectory.artifacts.get("puzzle") if truth in (None, "") else truth)
        answer = puzzle_answer(trajectory.response)
        if answer is None:
            return Score(0.0, {"answered": False}, "no answer")
        if "checker" in record:
            value, why = await self._checked(record, answer, trajectory.response)
        else:
            value, why = await self._gym(record, answer)
        failed = value is None
        raw = 0.0 if value is None else min(1.0, max(0.0, value))
        final = float(raw >= 1.0) if self.binary else raw
        metrics = {"answered": True, "raw": raw, "checker_failed": failed}
        return Score(final, metrics, f"{answer[:200]!r}: {why or f'the checker gives {raw:g}'}")

    async def _gym(self, record: Mapping[str, Any], answer: str) -> tuple[float | None, str]:
        from rufus_plugins.rollouts.sandboxes.zygote import shared

        if not harmless(record["dataset"], answer):
            return 0.0, "not handed to the scorer, which would execute it: it holds more than plain values"
        pool = shared(["reasoning_gym", _SCORE], workers=self.workers)
        item = {"dataset": record["dataset"], "config": record["config"], "entry": record["entry"], "answer": answer}
        result = await pool.call(_SCORE, item, self._limits)
        if result.ok and "problem" in result.value:
            raise DataError(f"puzzle: reasoning-gym cannot score this record: {result.value['problem']}")
        if result.ok:
            return _finite(result.value["score"]), result.value.get("why", "")
        if result.error in ("timeout", "memory", "crashed", "MemoryError", "RecursionError"):
            return None, f"the scorer did not get through ({result.error})"
        raise InfrastructureError(
            f"puzzle: the scorer failed: {result.error}: {result.message[-500:]}", Termination.REWARD_FAILED
        )

    async def _checked(self, record: Mapping[str, Any], answer: str, response: str) -> tuple[float | None, str]:
        from rufus_plugins.rollouts.sandboxes.zygote import shared

        mark = secrets.token_hex(16)
        given = {
            "mark": mark,
            "checker": record["checker"],
            "data": record["data"],
            "answer": answer if record["sees"] == "answer" else response,
        }
        outcome = await shared(workers=self.workers).run(_DRIVER, json.dumps(given), self._limits)
        text = outcome.stdout.decode("utf-8", "replace")
        _, found, verdict = text.rpartition("\n" + mark)
        if not found:
            reason = "time" if outcome.timed_out else "memory" if outcome.memory_exceeded else outcome.status
            return None, f"the checker did not get through ({reason})"
        said = json.loads(verdict)
        if "broken" in said:
            raise DataError(f"puzzle: the checker {said['broken']}")
        if "failed" in said:
            return None, f"the checker raised {said['failed']}"
        if not (math.isfinite(said["score"]) and 0.0 <= said["score"] <= 1.0):
            raise DataError(f"puzzle: the checker returned {said['score']}; it must return a bool or a number in 0..1")
        return said["score"], ""


def puzzle_answer(response: str) -> str | None:
    """The answer in a response, as the module's docstring says."""
    text = without_thinking(response)
    if text is None or not text.strip():
        return None
    for pattern in (_TAGGED, _FENCED):
        found = pattern.findall(text)
        if found and found[-1].strip():
            return found[-1].strip("\n") if pattern is _FENCED else found[-1].strip()
    return final_answer(text, last_line=False) or text.strip()  # a board has many lines


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _record(truth: Any) -> dict[str, Any]:
    if isinstance(truth, str):
        try:
            truth = json.loads(truth)
        except ValueError as error:
            raise DataError(f"puzzle: ground_truth is a string that is no JSON: {error}") from None
    if not isinstance(truth, Mapping):
        raise DataError(f"puzzle: ground_truth must be {{dataset, entry}} or {{checker}}, not {truth!r}")
    if "checker" in truth:
        sees = truth.get("sees", "answer")
        if not isinstance(truth["checker"], str) or sees not in ("answer", "response"):
            raise DataError("puzzle: checker must be Python source, and sees must be answer or response")
        return {"checker": truth["checker"], "data": truth.get("data"), "sees": sees}
    entry = truth.get("entry", truth)
    if not isinstance(entry, Mapping) or "answer" not in entry:
        raise DataError(f"puzzle: the record has no checker and no reasoning-gym entry; it has {sorted(truth)}")
    metadata = entry.get("metadata")
    name = truth.get("dataset") or (metadata.get("source_dataset") if isinstance(metadata, Mapping) else None)
    if not isinstance(name, str):
        raise DataError("puzzle: the record names no dataset, and its entry's metadata no source_dataset")
    return {"dataset": name, "entry": dict(entry), "config": dict(truth.get("config") or {})}
