"""Mends what verl's sequence means divide by: the sequences that are trained on, over the whole mini-batch.

verl 0.9.1 divides by `ppo_mini_batch_size * rollout.n` (trainer/ppo/v1/trainer_base.py:1851), which also counts rows
without any trained token: truncated and faulted rollouts, and the padding that segments make necessary
(trainer/ppo/padding_utils.py). Each of them shrinks the loss of the others. One micro-batch cannot know the number
either, so it is counted here, before the mini-batch is split, over all data-parallel ranks, for every engine.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

FLAG = "rufus_count_trained_sequences"
"""In a batch's `extra_info`, hence among the engine's non-tensor data."""


def count_trained_sequences(module: ModuleType) -> None:
    """Mends verl 0.9.1, workers/engine/base.py:113 `BaseEngine.train_batch`."""
    engine = module.BaseEngine
    original = engine.train_batch

    @functools.wraps(original)
    def train_batch(self: Any, data: Any, loss_function: Any) -> Any:
        if asked_for(data):
            loss_function = with_trained_sequences(self, data, loss_function)
        return original(self, data, loss_function)

    engine.train_batch = train_batch


def asked_for(data: Any) -> bool:
    """Whether our trainer sent this batch: what stock trainers send is left to verl."""
    from verl.utils import tensordict_utils as tu

    return bool(tu.get_non_tensor_data(data=data, key=FLAG, default=False))


def with_trained_sequences(engine: Any, data: Any, loss_function: Any) -> Any:
    """Writes the mini-batch's number of trained sequences into `data`; returns the loss function to use.

    A mini-batch in which nothing is trained has loss 0 instead of 0/0.
    """
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.device import get_device_id

    if "response_mask" not in data.keys() or "global_batch_size" not in data.keys():
        return loss_function  # not a policy or value update
    mask = data["response_mask"]
    # verl's rollout correction writes response_mask alone, but the tokens are counted from loss_mask
    data["loss_mask"] = mask
    count = torch.tensor([trained_sequences(mask)], dtype=torch.int64, device=get_device_id())
    group = engine.get_data_parallel_group()
    if group is not None and torch.distributed.is_initialized():
        torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.SUM, group=group)
    trained = int(count.item())
    tu.assign_non_tensor(data, global_batch_size=max(trained, 1))
    if trained:
        return loss_function

    @functools.wraps(getattr(loss_function, "func", loss_function))
    def loss_of_nothing(*args: Any, data: Any, **kwargs: Any) -> Any:
        tu.assign_non_tensor(data, batch_num_tokens=1)
        return loss_function(*args, data=data, **kwargs)

    return loss_of_nothing


def trained_sequences(mask: Any) -> int:
    """Rows of a nested or padded `[rows, tokens]` mask with at least one 1."""
    import torch

    if not mask.is_nested:
        return int((mask != 0).any(dim=-1).sum())
    ones = torch.nn.functional.pad((mask.values() != 0).cumsum(0), (1, 0))
    offsets = mask.offsets().to(ones.device)
    return int((ones[offsets].diff() > 0).sum())
