"""Scores records outside training: what `rufus score` and `rufus audit` stand on.

A record is a mapping `{id, response | messages, ground_truth, extra}`; also read are `prompt` (text or messages),
`data_source`, `tool_calls`, `artifacts` and `termination`, so that agent rewards can be tried on saved trajectories.
Of `messages`, what stands before the first assistant message is the prompt.

Each item is scored by itself: at most `concurrency` at a time, each within `deadline_s` from its own start. A slow
item delays nobody else, and one that fails gets no value but a typed reason.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError, PluginError
from rufus_plugins.protocols import Reward
from rufus_plugins.rewards.children import all_or_none
from rufus_plugins.types import CallStatus, Score, Task, Termination, ToolCall, Trajectory


@dataclass(frozen=True)
class Outcome:
    """One scored item, or why it has no score."""

    id: str
    score: Score | None = None
    reason: str = ""
    """data | deadline | crashed | a termination such as judge_failed; "" for a scored item."""
    message: str = ""
    trace: str = field(default="", compare=False)

    def as_json(self) -> dict[str, Any]:
        if self.score is None:
            return {"id": self.id, "value": None, "metrics": {"reason": self.reason}, "explanation": self.message}
        found = self.score
        return {"id": self.id, "value": found.value, "metrics": dict(found.metrics), "explanation": found.explanation}


def trajectory_of(record: Mapping[str, Any], number: int) -> Trajectory:
    """The trajectory of a record. Raises `DataError` that says what a record needs."""
    if not isinstance(record, Mapping):
        raise DataError(f"a record is an object {{id, response | messages, ground_truth, extra}}, not {record!r:.100}")
    unknown = sorted(set(record) - _KEYS)
    if unknown:
        raise DataError(f"the record has unknown keys {unknown}; known: {', '.join(sorted(_KEYS))}")
    messages, prompt = record.get("messages"), record.get("prompt", [])
    if (messages is None) == (record.get("response") is None):
        raise DataError("a record has either `response` (text) or `messages` (a list)")
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if messages is None:
        if not isinstance(record["response"], str):
            raise DataError(f"response must be text, not {type(record['response']).__name__}")
        messages = [{"role": "assistant", "content": record["response"]}]
    if not all(isinstance(part, list) and all(isinstance(m, Mapping) for m in part) for part in (messages, prompt)):
        raise DataError("messages and prompt must be lists of {role, content}")
    first = next((i for i, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))
    extra, artifacts = record.get("extra") or {}, record.get("artifacts") or {}
    if not isinstance(artifacts, Mapping):
        raise DataError(f"artifacts must be an object, not {type(artifacts).__name__}")
    try:
        ending = Termination(record.get("termination", "answered"))
        calls = [
            ToolCall(
                c["name"], c.get("arguments", {}), CallStatus(c["status"]), c.get("turn", 0), c.get("started", True)
            )
            for c in record.get("tool_calls", [])
        ]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"termination or tool_calls cannot be read: {type(error).__name__}: {error}") from None
    task = Task(
        id_of(record, number),
        str(record.get("data_source", "")),
        [*prompt, *messages[:first]],
        record.get("ground_truth"),
        extra if isinstance(extra, Mapping) else {"extra": extra},
    )
    return Trajectory(
        task,
        messages=messages[first:],
        tool_calls=calls,
        artifacts=artifacts,
        termination=ending,
        turns=sum(m.get("role") == "assistant" for m in messages) or 1,
    )


_KEYS = frozenset(
    "id response messages prompt ground_truth extra data_source tool_calls artifacts termination".split()
)  # fmt: skip


def id_of(record: Any, number: int) -> str:
    given = record.get("id") if isinstance(record, Mapping) else None
    return str(number if given is None else given)


async def score_records(
    reward: Reward,
    records: Sequence[Any],
    *,
    concurrency: int = 32,
    deadline_s: float = 120.0,
    on_done: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """One outcome per record, in order. A `ConfigError` or `PluginError` ends everything: it would hit every record."""
    if concurrency < 1 or deadline_s <= 0:
        raise ConfigError("concurrency must be at least 1 and the deadline above 0")
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, record: Any) -> Outcome:
        async with slots:
            outcome = await _score(reward, record, number, deadline_s)
        if on_done:
            on_done(outcome)
        return outcome

    return await all_or_none(one(i, record) for i, record in enumerate(records, 1))


async def _score(reward: Reward, record: Any, number: int, deadline_s: float) -> Outcome:
    name = id_of(record, number)
    try:
        trajectory = trajectory_of(record, number)
    except DataError as error:
        return Outcome(name, reason="data", message=str(error))
    return await score_trajectory(reward, trajectory, name, deadline_s)


async def score_trajectory(reward: Reward, trajectory: Trajectory, name: str, deadline_s: float = 120.0) -> Outcome:
    """The score of one trajectory, or why it has none. Raises `ConfigError` and `PluginError` only."""
    deadline = asyncio.timeout(deadline_s)
    try:
        async with deadline:
            score = await reward(trajectory)
        if not isinstance(score, Score):
            return Outcome(name, reason="crashed", message=f"the reward returned {type(score).__name__}, not a Score")
        if not math.isfinite(score.value):
            return Outcome(name, reason="crashed", message=f"the reward returned {score.value}")
        return Outcome(name, score)
    except (ConfigError, PluginError):
        raise
    except DataError as error:
        return Outcome(name, reason="data", message=str(error))
    except InfrastructureError as error:
        return Outcome(name, reason=error.termination.value, message=str(error))
    except Exception as error:
        if deadline.expired():
            return Outcome(name, reason="deadline", message=f"no score within {deadline_s:g} s")
        import traceback

        return Outcome(
            name, reason="crashed", message=f"{type(error).__name__}: {error}", trace=traceback.format_exc(limit=-6)
        )
