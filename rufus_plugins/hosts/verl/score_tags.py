"""Writes each rollout's reward and ending into its tags, where the sampler sees them without fetching anything.

verl keeps them in the stored fields: to judge a group from `rm_scores` is to fetch one float per response token
(trainer/ppo/v1/replay_buffer.py:283), gigabytes per step at long contexts. Tags come with every look at the queue.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from rufus_plugins.types import Termination

TAG = "rufus_score"
"""Tag of a rollout's last segment, as JSON text: `{"reward": float, "ending": str | None, "metrics": {name: float}}`,
and `rollout`, the episode's own numbers, where an environment was played. Text, because the queue takes seven times as
long to list tags that hold a container."""


def read_tag(tags: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a row's tags say of its rollout; None if the row is not a rollout's last segment."""
    text = tags.get(TAG)
    return None if text is None else json.loads(text)


def tag_scores(module: ModuleType) -> None:
    """Mends verl 0.9.1, trainer/ppo/v1/agent_loop_tq.py:148 `AgentLoopWorkerTQ._agent_loop_postprocess`."""
    worker = module.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    stock = worker._agent_loop_postprocess

    @functools.wraps(stock)
    async def postprocess(self: Any, output: Any, validate: bool, **kwargs: Any) -> None:
        await stock(self, output, validate, **kwargs)
        outputs = output if isinstance(output, list) else [output]
        if outputs and outputs[-1].reward_score is not None and not validate:
            import transfer_queue as tq

            key = f"{kwargs['uid']}_{kwargs['session_id']}_{len(outputs) - 1}"
            cap = kwargs.get("response_budget") or self.config.data.max_response_length
            tag = score_tag(outputs[-1].reward_score, outputs[-1].extra_fields, len(outputs[-1].response_ids), cap)
            if told := outputs[-1].extra_fields.get("rollout_metrics"):
                tag["rollout"] = {name: float(value) for name, value in told.items() if is_number(value)}
            await tq.async_kv_batch_put(keys=[key], partition_id="train", tags=[{TAG: json.dumps(tag)}])

    worker._agent_loop_postprocess = postprocess


def score_tag(
    reward: float, extra_fields: Mapping[str, Any], response_tokens: int = 0, cap: int | None = None
) -> dict[str, Any]:
    """Where the reward did not say how the rollout ended, a last segment as long as the cap was truncated."""
    from . import faults

    info = extra_fields.get("reward_extra_info") or {}
    ending = faults.termination_of(extra_fields)
    if ending is None and cap is not None and response_tokens >= cap:
        ending = Termination.RESPONSE_LENGTH
    return {
        "reward": float(reward),
        "ending": None if ending is None else ending.value,
        "metrics": {name: float(value) for name, value in info.items() if is_number(value)},
    }


def is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)
