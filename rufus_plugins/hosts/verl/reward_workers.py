"""A reward worker that dies does not take its samples, or the run, with it.

verl 0.9.1 starts reward workers without restarts; after a crash every later sample of that worker fails its
prompt, and with one worker the run.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from rufus_plugins.types import Termination

RETRIES = 2
"""How often a sample is scored anew after its worker died. Ours."""


def restart_workers(module: ModuleType) -> None:
    """Mends verl 0.9.1, experimental/reward_loop/reward_loop.py:324 `RewardLoopManager._init_reward_loop_workers`."""
    manager = module.RewardLoopManager
    stock = manager._init_reward_loop_workers

    @functools.wraps(stock)
    def init_reward_loop_workers(self: Any) -> None:
        if "rufus" in self.config:
            import ray

            # scoring changes nothing, so it can be repeated
            self.reward_loop_workers_class = ray.remote(max_restarts=-1, max_task_retries=RETRIES)(
                module.RewardLoopWorker
            )
        stock(self)

    manager._init_reward_loop_workers = init_reward_loop_workers


def type_lost_scores(module: ModuleType) -> None:
    """Mends verl 0.9.1, experimental/agent_loop/agent_loop.py:967 `AgentLoopWorker._compute_score`: a sample whose
    worker kept dying becomes a typed fault instead of failing its whole prompt."""
    worker = module.AgentLoopWorker
    stock = worker._compute_score

    @functools.wraps(stock)
    async def compute_score(self: Any, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        import ray

        try:
            await stock(self, outputs, kwargs)
        except ray.exceptions.RayError as error:
            if "rufus" not in self.config:
                raise
            why = str(error).strip().splitlines()
            print(f"rufus: a sample got no score: {why[-1] if why else error!r}", file=sys.stderr, flush=True)
            outputs[-1].reward_score = 0.0
            outputs[-1].metrics.compute_score = 0.0
            outputs[-1].extra_fields["reward_extra_info"] = {
                "score": 0.0,
                "termination": Termination.REWARD_FAILED.value,
            }

    worker._compute_score = compute_score
