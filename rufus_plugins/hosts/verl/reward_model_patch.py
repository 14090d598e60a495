"""verl's own reward-model path (a discriminative model behind vLLM or SGLang) returns what its agent loop asks for."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def add_extra_info(module: ModuleType) -> None:
    """Mends verl 0.9.1, experimental/reward_loop/reward_loop.py:270 `RewardLoopWorker.compute_score_disrm`.

    It returns `{"reward_score"}` alone, and experimental/agent_loop/agent_loop.py:1028 reads `reward_extra_info` too:
    a KeyError at the first sample. Values that are there are kept.
    """
    worker = module.RewardLoopWorker
    stock = worker.compute_score_disrm

    @functools.wraps(stock)
    async def compute_score_disrm(self: Any, data: Any) -> dict[str, Any]:
        result = await stock(self, data)
        return {**result, "reward_extra_info": {"score": result["reward_score"], **result.get("reward_extra_info", {})}}

    worker.compute_score_disrm = compute_score_disrm
