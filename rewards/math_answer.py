"""Math: does the final answer equal the gold answer? (Rufus-Air, Reasoning RL: canonical answer match)

`final_answer.py` finds the answer, `math_compare.py` compares it (its docstring says what counts as the same). Equal
texts and plain numbers are settled at once; everything else goes to a jailed worker with the parser already loaded,
because a parser that meets `9**9**9**9` may take for ever and all of memory. Answers that arrive together share one
trip. No model text is ever executed, in the jail or outside.

`ground_truth` is the gold answer in LaTeX, or a list of alternatives.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.ending import runs_on
from rufus_plugins.rewards.final_answer import final_answer
from rufus_plugins.rewards.math_compare import quick
from rufus_plugins.rewards.science_answer import gold_strings
from rufus_plugins.types import Score, Termination, Trajectory

_COMPARE = "rufus_plugins.rewards.math_compare:compare"
_WARM = "rufus_plugins.rewards.math_warm"
_BATCH = 32
"""Answers per trip. Ours."""
_MAX_ANSWER = 5000
"""Characters. A longer final answer is none. Ours."""


@dataclass
class MathAnswer:
    """1 if the final answer equals the gold answer mathematically, else 0."""

    timeout_s: float = 5.0
    """For one answer, from when its comparison starts. An answer that takes longer is wrong. Ours."""
    memory_mb: int = 1024
    """Ours."""
    workers: int | None = None
    """Jailed workers; None: one per core."""
    require_clean_ending: bool = False
    """Score 0 unless the answer ended by itself, right after its box: a model that runs on is not rewarded. Ours."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.memory_mb < 64:
            raise ConfigError("math_answer: timeout_s must be above 0 and memory_mb at least 64")
        self._loops: dict[Any, _Gathering] = {}

    async def __call__(self, trajectory: Trajectory) -> Score:
        golds = gold_strings(trajectory.task.ground_truth, "math_answer")
        for gold in golds:
            opened = re.sub(r"\\\\|\\[{}]", "", gold)
            if opened.count("{") != opened.count("}"):
                raise DataError(f"math_answer: the braces of the gold answer {gold[:200]!r} do not match")
        if self.require_clean_ending and (unclean := runs_on(trajectory)):
            return unclean
        answer = final_answer(trajectory.response)
        if answer is None or len(answer) > _MAX_ANSWER:
            return Score(0.0, {"answered": False}, "no final answer" if answer is None else "the answer is too long")
        why = ""
        for gold in golds:
            same, why = await self._same(gold, answer)
            if same:
                return Score(1.0, {"answered": True}, why)
        return Score(0.0, {"answered": True}, why)

    async def _same(self, gold: str, answer: str) -> tuple[bool, str]:
        verdict = quick(gold, answer)
        if verdict is not None:
            return verdict, f"{answer[:200]!r} {'is' if verdict else 'is not'} {gold!r}"
        result = await self._gathering().ask({"gold": gold, "answer": answer})
        if result.ok:
            return bool(result.value["same"]), str(result.value["why"])
        if result.error in ("timeout", "memory", "crashed", "MemoryError"):
            # whose doing is it? A gold that cannot be read against itself is a bad record, not a wrong answer
            alone = await self._gathering().ask({"gold": gold, "answer": f"{gold}+0"})
            if not alone.ok:
                raise DataError(f"math_answer: the gold answer {gold[:200]!r} itself takes too long ({alone.error})")
            return False, f"{answer[:200]!r} was not comparable within the limits ({result.error})"
        raise InfrastructureError(
            f"math_answer failed on {answer[:200]!r}: {result.error}: {result.message[-500:]}",
            Termination.REWARD_FAILED,
        )

    def _gathering(self) -> _Gathering:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            for old in [other for other in self._loops if other.is_closed()]:
                del self._loops[old]
            self._loops[loop] = _Gathering(self)
        return self._loops[loop]


class _Gathering:
    """Collects the comparisons that are asked for at the same time into trips of at most `_BATCH`."""

    def __init__(self, reward: MathAnswer):
        from rufus_plugins.rollouts.sandboxes.zygote import Limits, shared

        self.pool = shared([_WARM, _COMPARE], workers=reward.workers)
        self.limits = lambda count: Limits(
            wall_s=reward.timeout_s, cpu_s=reward.timeout_s * count + 1, memory_mb=reward.memory_mb, processes=4
        )
        self.waiting: list[tuple[dict[str, str], asyncio.Future[Any]]] = []
        self.trips: set[asyncio.Task[None]] = set()

    async def ask(self, item: dict[str, str]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((item, future))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self._depart)  # after all that are ready to run have asked
        return await future

    def _depart(self) -> None:
        waiting, self.waiting = self.waiting, []
        # spread over the workers, but no trip longer than the bound
        size = max(1, min(_BATCH, -(-len(waiting) // self.pool.workers)))
        for start in range(0, len(waiting), size):
            trip = asyncio.ensure_future(self._go(waiting[start : start + size]))
            self.trips.add(trip)
            trip.add_done_callback(self.trips.discard)

    async def _go(self, asked: list[tuple[dict[str, str], asyncio.Future[Any]]]) -> None:
        try:
            results = await self.pool.call_batch(_COMPARE, [item for item, _ in asked], self.limits(len(asked)))
        except BaseException as error:
            for _, future in asked:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), result in zip(asked, results, strict=True):
            if not future.done():
                future.set_result(result)
