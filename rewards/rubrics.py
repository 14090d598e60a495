"""Instruction RL (Rufus-Air): 1 if the response passes all rubrics of the record, else 0.

`ground_truth` holds the rubrics (rubric_records.py): mechanical constraints (constraints/: the ids of IFEval and
IFBench), user checker code (rubric_checker.py, sandboxed) and criteria for a judge. All are necessary: optional ones
are refused. What is scored is the response without its thinking; an empty one passes nothing.

Constraints and code come first. The judge is asked only where all of them passed, since nothing it says can turn a 0
into a 1; its rubrics then count as skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.rewards.ending import cut_off
from rufus_plugins.rewards.final_answer import without_thinking
from rufus_plugins.rewards.judge import build_judge, question_of
from rufus_plugins.rewards.rubric_checker import run_checker
from rufus_plugins.rewards.rubric_records import Rubric, read_rubrics
from rufus_plugins.types import Message, Score, Trajectory

_KINDS = ("constraint", "code", "judge")
_ONE_CRITERION = (
    "{question}\n\n"
    "Grade the candidate by one criterion alone; whether the rest of it is right, complete or well written does not "
    "matter. The candidate passes if this holds, and fails if it does not hold or holds in part only:\n{criterion}"
)
"""Ours."""


@dataclass
class Rubrics:
    """1 if all necessary rubrics pass: constraints, checker code (sandboxed), judge criteria; else 0."""

    judge: Any = None
    """The judge of `judge` rubrics, by name or as {judge, field: value ...}; None refuses records with such rubrics."""
    judge_threshold: float = 1.0
    """Least score of the judge (0..1) that passes. Ours: a necessary criterion holds in full or does not."""
    timeout_s: float = 5.0
    """For one call of checker code. Ours."""
    memory_mb: int = 512
    """For checker code. Ours."""
    workers: int | None = None
    """Sandboxed calls at a time in this process; None = one per CPU."""
    require_clean_ending: bool = False
    """Score 0 where a limit ended the response. Ours."""

    def __post_init__(self) -> None:
        if not 0 < self.judge_threshold <= 1:
            raise ConfigError(f"rubrics: judge_threshold is {self.judge_threshold!r}; it must be in (0, 1]")
        if self.timeout_s <= 0 or self.memory_mb < 16:
            raise ConfigError("rubrics: timeout_s must be above 0 and memory_mb at least 16")
        self._judge = None if self.judge is None else build_judge(self.judge)

    async def __call__(self, trajectory: Trajectory) -> Score:
        rubrics = _rubrics(trajectory.task.ground_truth)
        if self._judge is None and any(rubric.kind == "judge" for rubric in rubrics):
            raise ConfigError("rubrics: the record has a judge rubric and no judge is set; set rufus.reward.judge")
        if self.require_clean_ending and (unclean := cut_off(trajectory)):
            return unclean
        response = without_thinking(trajectory.response)
        if response is None or not response.strip():
            why = "the response is empty outside the thinking"
            return _score(rubrics, dict.fromkeys(range(len(rubrics)), why), 0, answered=False)
        question = question_of([*trajectory.task.prompt, *_earlier(trajectory.messages)])
        failed: dict[int, str | None] = {}
        for index, rubric in enumerate(rubrics):
            if rubric.kind == "constraint":
                failed[index] = await asyncio.to_thread(rubric.check, response)
        errors = 0
        runs = [(index, rubric) for index, rubric in enumerate(rubrics) if rubric.kind == "code"]
        for index, run in zip([i for i, _ in runs], await self._run(runs, response, question), strict=True):
            errors += bool(run.error)
            failed[index] = None if run.passed else run.error or "the checker says no"
        if not any(failed.values()):
            asked = [(index, rubric.kwargs) for index, rubric in enumerate(rubrics) if rubric.kind == "judge"]
            said = await _all(self._ask(kwargs, response, question) for _, kwargs in asked)
            failed |= {index: why for (index, _), why in zip(asked, said, strict=True)}
        return _score(rubrics, failed, errors)

    async def _run(self, runs: list[tuple[int, Rubric]], response: str, question: str) -> list[Any]:
        if not runs:
            return []
        from rufus_plugins.rollouts.sandboxes.zygote import Limits, shared

        pool = shared(workers=self.workers)
        limits = Limits(wall_s=self.timeout_s, memory_mb=self.memory_mb, processes=4)
        return await _all(run_checker(pool, limits, rubric.kwargs, response, question) for _, rubric in runs)

    async def _ask(self, kwargs: Mapping[str, str], response: str, question: str) -> str | None:
        text = _ONE_CRITERION.format(question=question, criterion=kwargs["criterion"])
        score = await self._judge(text, response, kwargs.get("reference"))
        if score.value >= self.judge_threshold:
            return None
        return f"the judge gives {score.value:g}: {score.explanation[:500]}"


def _earlier(messages: Sequence[Message]) -> list[Message]:
    """What was said before the response that is scored: the turns of a conversation with a simulated user."""
    last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=0)
    return [m for m in messages[:last] if m.get("role") in ("user", "assistant") and m.get("name") != "compaction"]


async def _all(work: Any) -> list[Any]:
    """Runs all at once; the first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _rubrics(ground_truth: Any) -> list[Rubric]:
    # the rollouts of a group share their ground truth
    return list(_read_text(ground_truth)) if isinstance(ground_truth, str) else read_rubrics(ground_truth)


@lru_cache(256)
def _read_text(ground_truth: str) -> tuple[Rubric, ...]:
    return tuple(read_rubrics(ground_truth))


def _score(rubrics: list[Rubric], failed: Mapping[int, str | None], errors: int, answered: bool = True) -> Score:
    """`failed`: index -> None if passed, else why not; an index that is missing was skipped."""
    passed = [index for index in failed if failed[index] is None]
    wrong = sorted(index for index in failed if failed[index] is not None)
    metrics: dict[str, float | int | str | bool] = {
        "answered": answered,
        "n_rubrics": len(rubrics),
        "n_passed": len(passed),
        "n_failed": len(wrong),
        "n_skipped": len(rubrics) - len(failed),
        "first_failed": rubrics[wrong[0]].name if wrong else "",
        "checker_errors": errors,
    }
    for kind in _KINDS:
        mine = [index for index, rubric in enumerate(rubrics) if rubric.kind == kind]
        metrics[f"n_{kind}"] = len(mine)
        metrics[f"passed_{kind}"] = sum(index in passed for index in mine)
    lines = [
        f"{'skipped' if index not in failed else 'pass' if failed[index] is None else 'FAIL'} {rubric.name}"
        + (f": {failed[index]}" if failed.get(index) else "")
        for index, rubric in enumerate(rubrics)
    ]
    return Score(float(len(passed) == len(rubrics)), metrics, "\n".join(lines))
