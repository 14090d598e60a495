"""What only the reward reads of a rollout (messages, artifacts) goes when it has been read.

A module of its own: verl's agent loop is imported by ours, and this runs in the middle of that.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:  # on another machine, or gone: their maker removes old ones
            continue


def drop_trajectories(module: ModuleType) -> None:
    """Mends verl 0.9.1, experimental/agent_loop/agent_loop.py:967 `AgentLoopWorker._compute_score`: what only the
    reward reads (messages, artifacts) is not stored with the training rows, and its files are removed."""
    worker = module.AgentLoopWorker
    stock = worker._compute_score

    @functools.wraps(stock)
    async def compute_score(self: Any, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        await stock(self, outputs, kwargs)
        if outputs[-1].reward_score is not None:
            trajectory = outputs[-1].extra_fields.pop("trajectory", None) or {}
            _remove(trajectory.get("artifacts", {}).get("temporary_files", ()))

    worker._compute_score = compute_score
    from . import agent_loop  # noqa: F401  registers our loop with verl
