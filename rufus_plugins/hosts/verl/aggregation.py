"""verl's loss aggregation, for losses that live outside the host's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def aggregate(losses: torch.Tensor, mask: torch.Tensor, mode: str, global_batch: Mapping[str, Any]) -> torch.Tensor:
    """`[sequences, tokens]` losses -> the micro-batch's share of the global loss (verl core_algos.py:1140)."""
    from verl.trainer.ppo.core_algos import agg_loss

    return agg_loss(loss_mat=losses, loss_mask=mask, loss_agg_mode=mode, **global_batch)
