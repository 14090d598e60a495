"""Gives each rollout the response budget that held when its prompt was dispatched.

The engines are sized for the largest budget; verl's own limit is `data.max_response_length` for the whole run. The
trainer puts the current budget beside the prompt as `response_budget`; a single turn gets it as the engine's
`max_tokens`, and an agent loop of many turns finds it among the arguments of `run`.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

FIELD = "response_budget"


def limit_responses(module: ModuleType) -> None:
    """Mends verl 0.9.1, experimental/agent_loop/agent_loop.py:661 `AgentLoopWorker._run_agent_loop`, as inherited by
    trainer/ppo/v1/agent_loop_tq.py:52 `AgentLoopWorkerTQ`."""
    worker = module.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    stock = worker._run_agent_loop

    @functools.wraps(stock)
    async def run_agent_loop(self: Any, sampling_params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return await stock(self, limited(sampling_params, kwargs.get(FIELD)), *args, **kwargs)

    worker._run_agent_loop = run_agent_loop


def limited(sampling_params: dict[str, Any], budget: int | None) -> dict[str, Any]:
    """The sampling parameters with at most `budget` tokens to generate; a smaller limit of their own stays."""
    if budget is None:
        return sampling_params
    own = sampling_params.get("max_tokens")
    return {**sampling_params, "max_tokens": int(budget) if own is None else min(int(own), int(budget))}
