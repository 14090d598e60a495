"""Tells a rollout whether it is for validation, so that an environment can differ there (rollouts/validation.py)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rufus_plugins.rollouts.validation import VALIDATE
from rufus_plugins.types import Task

_validating: ContextVar[bool] = ContextVar("rufus_validating", default=False)


def tell_rollouts(module: ModuleType) -> None:
    """Mends verl 0.9.1, experimental/agent_loop/agent_loop.py:661 `AgentLoopWorker._run_agent_loop`: it knows whether a
    rollout is for validation and does not hand that on to the agent loop. Each rollout is an asyncio task of its own
    (trainer/ppo/v1/agent_loop_tq.py:127), so the variable reaches that rollout alone."""
    worker = module.AgentLoopWorker
    stock = worker._run_agent_loop

    @functools.wraps(stock)
    async def run_agent_loop(
        self: Any, sampling_params: dict[str, Any], trajectory: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        token = _validating.set(bool(trajectory["validate"]))
        try:
            return await stock(self, sampling_params, trajectory, **kwargs)
        finally:
            _validating.reset(token)

    worker._run_agent_loop = run_agent_loop


def told_validation(task: Task) -> Task:
    """The task with `extra["validate"]` as the trainer means it, whatever the record says."""
    return dataclasses.replace(task, extra={**task.extra, VALIDATE: _validating.get()})
