"""Axion's reward: 1 for a correct answer, else partial credit for the chain of intermediate targets.

`max(0, 0.3 P - 0.1 (1 - A))` (Axion 1.0, RL reward): `A` is 1 if an answer was submitted, and
`P = (1/m) sum_j prod_{l<=j} b_l` over the m targets in dependency order: a target counts only if all before it passed.

`ground_truth` is `{"answer": GOLD, "targets": [z, ...]}`, or JSON text of it. A target z is
`{"name": str, "value": number, "unit": str = "", "tolerance": number = 0.01, "absolute": number = 0,
"depends_on": [names] = []}`; `tolerance` is relative, `absolute` is in the target's unit. Dependencies make the order;
targets that do not depend on each other keep the order of the list.

A target has passed if a quantity within its tolerance stands in the model's own text (any assistant message, thinking
included) or in a tool result that it obtained. If the target has a unit, the quantity must have one that converts to
it; a bare number passes only a target without a unit. The task's own text and the arguments of tool
calls are not searched.

Numbers can be listed without being derived, so a rollout that writes more than `max_quantities` of them earns no
partial credit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.children import build_child
from rufus_plugins.rewards.final_answer import without_thinking
from rufus_plugins.rewards.judge import text_of
from rufus_plugins.rewards.units import Quantity, parse_unit, plain, quantities_in
from rufus_plugins.types import Fault, Score, Task, Termination, Trajectory


@dataclass(frozen=True)
class Target:
    """One intermediate target z."""

    name: str
    quantity: Quantity
    tolerance: float
    absolute: float
    depends_on: tuple[str, ...]

    def met_by(self, found: Quantity) -> bool:
        if (self.quantity.dimensions is None) != (found.dimensions is None):
            return False
        return self.quantity.close_to(found, self.tolerance, self.absolute)


def progress(passed: Sequence[bool]) -> float:
    """P of a chain: the length of its passed head over its length; 0.0 for an empty chain."""
    head = next((i for i, ok in enumerate(passed) if not ok), len(passed))
    return head / len(passed) if passed else 0.0


def targets_of(ground_truth: Mapping[str, Any]) -> list[Target]:
    """The targets in dependency order. Raises `DataError` for a wrong shape, an unknown name or a cycle."""
    raw = ground_truth.get("targets", [])
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise DataError(f"progress_chain: targets must be a list, not {raw!r}")
    targets = [_target(z) for z in raw]
    names = [t.name for t in targets]
    if len(set(names)) != len(names):
        raise DataError(f"progress_chain: target names occur twice: {names}")
    ordered: list[Target] = []
    waiting = list(targets)
    while waiting:
        done = {t.name for t in ordered}
        ready = next((t for t in waiting if set(t.depends_on) <= done), None)
        if ready is None:
            unknown = sorted({d for t in waiting for d in t.depends_on} - set(names))
            reason = f"names nobody has: {unknown}" if unknown else f"a cycle among {[t.name for t in waiting]}"
            raise DataError(f"progress_chain: depends_on has {reason}; targets: {names}")
        ordered.append(ready)
        waiting.remove(ready)
    return ordered


def _target(z: Any) -> Target:
    if not isinstance(z, Mapping) or not isinstance(z.get("name"), str) or not _is_number(z.get("value")):
        raise DataError(f"progress_chain: a target is {{name, value, unit?, tolerance?, depends_on?}}, not {z!r}")
    tolerance, absolute = z.get("tolerance", 0.01), z.get("absolute", 0.0)
    if not _is_number(tolerance) or not _is_number(absolute) or tolerance < 0 or absolute < 0:
        raise DataError(f"progress_chain: target {z['name']!r} has the tolerance {tolerance!r} / {absolute!r}")
    unit = z.get("unit") or ""
    known = parse_unit(plain(unit)) if unit else (None, 1.0, 0.0)
    if known is None:
        raise DataError(f"progress_chain: target {z['name']!r} has the unknown unit {unit!r} (see rewards/units.py)")
    depends = z.get("depends_on", [])
    if isinstance(depends, str):
        depends = [depends]
    return Target(
        z["name"], Quantity(float(z["value"]), *known), float(tolerance), float(absolute), tuple(map(str, depends))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass
class ProgressChain:
    """1 if correct, else max(0, 0.3 P - 0.1 (1 - A)) over the chain of intermediate targets."""

    answer_reward: Any = "science_answer"
    """The reward that decides whether the answer is correct, by name or as {reward, field: value ...}. It sees
    ground_truth["answer"]. Ours."""
    correct_from: float = 1.0
    """The answer is correct from this value of `answer_reward` on."""
    progress_weight: float = 0.3
    no_answer_penalty: float = 0.1
    floor: float | None = 0.0
    """As written. None keeps the penalty for a rollout without an answer and without progress (-0.1)."""
    max_quantities: int = 2000
    """Ours."""

    def __post_init__(self) -> None:
        if not 0 <= self.progress_weight < 1 or self.no_answer_penalty < 0:
            raise ConfigError("progress_chain: progress_weight must be in [0, 1) and no_answer_penalty at least 0")
        self._answer = build_child("progress_chain", self.answer_reward)

    async def __call__(self, trajectory: Trajectory) -> Score:
        if trajectory.termination.fault is Fault.INFRASTRUCTURE:
            raise InfrastructureError(
                f"the rollout ended with {trajectory.termination.value}: nothing to score", trajectory.termination
            )
        truth = trajectory.task.ground_truth
        if isinstance(truth, str):  # Parquet keeps it as text
            try:
                truth = json.loads(truth)
            except ValueError as error:
                raise DataError(f"progress_chain: ground_truth is a text that is no JSON: {error}") from None
        if not isinstance(truth, Mapping) or "answer" not in truth:
            raise DataError(f"progress_chain: ground_truth must be {{answer, targets}}, not {truth!r}")
        targets = targets_of(truth)
        text = without_thinking(trajectory.response)
        submitted = trajectory.termination is Termination.ANSWERED and bool(text and text.strip())
        correct = False
        why = "no answer was submitted"
        if submitted:
            task = trajectory.task
            inner = Task(task.id, task.data_source, task.prompt, truth["answer"], task.extra)
            score = await self._answer(replace(trajectory, task=inner))
            correct, why = score.value >= self.correct_from, score.explanation
        passed, noted = self._evidence(trajectory, targets)
        p = progress(passed)
        value = 1.0 if correct else self.progress_weight * p - self.no_answer_penalty * (1 - submitted)
        if self.floor is not None and not correct:
            value = max(self.floor, value)
        metrics = {
            "correct": correct,
            "answered": submitted,
            "progress": p,
            "targets": len(targets),
            "targets_passed": sum(passed),
            "quantities": noted,
        }
        chain = ", ".join(f"{t.name} {'passed' if ok else 'open'}" for t, ok in zip(targets, passed, strict=True))
        return Score(value, metrics, f"answer: {why}; chain: {chain or 'no targets'}; P={p:.3g}")

    def _evidence(self, trajectory: Trajectory, targets: Sequence[Target]) -> tuple[list[bool], int]:
        """Which targets the model's text or its tool results meet, and how many quantities the model wrote."""
        own = [q for m in trajectory.messages if m.get("role") == "assistant" for q in quantities_in(_written(m))]
        got = [q for m in trajectory.messages if m.get("role") == "tool" for q in quantities_in(text_of(m))]
        if len(own) > self.max_quantities:
            return [False] * len(targets), len(own)
        return [any(t.met_by(q) for q in (*own, *got)) for t in targets], len(own)


def _written(message: Mapping[str, Any]) -> str:
    thinking = message.get("reasoning_content")
    return f"{thinking}\n{text_of(message)}" if isinstance(thinking, str) else text_of(message)
