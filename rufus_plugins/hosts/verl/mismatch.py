"""How far the trainer's probabilities are from the rollout's, as verl logs it and as the literature reports it.

verl 0.9.1 logs differences of probabilities (utils/debug/metrics.py:86), in which a token of small probability
counts for nothing. Here: differences of log-probabilities and the KL estimators k1 and k3 (Schulman,
"Approximating KL Divergence") of KL(rollout || trainer), over sampled tokens.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def mismatch_metrics(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """From log-probabilities `[batch, tokens]` of the same tokens; empty where nothing was sampled."""
    kept = mask.bool()
    if not kept.any():
        return {}
    difference = (trainer - rollout)[kept].double()
    return {
        "training/rollout_logp_absdiff_mean": difference.abs().mean().item(),
        "training/rollout_kl_k1": -difference.mean().item(),
        "training/rollout_kl_k3": (difference.exp() - 1 - difference).mean().item(),
    }


@contextmanager
def measured() -> Any:
    """While open, what verl 0.9.1 trainer/ppo/v1/trainer_base.py:1691 logs holds these metrics too."""
    from verl.trainer.ppo.v1 import trainer_base

    stock = trainer_base.calculate_debug_metrics

    @functools.wraps(stock)
    def calculate_debug_metrics(data: Any) -> dict[str, Any]:
        batch = data.batch
        return {
            **stock(data),
            **mismatch_metrics(batch["rollout_log_probs"], batch["old_log_probs"], batch["response_mask"]),
        }

    trainer_base.calculate_debug_metrics = calculate_debug_metrics
    try:
        yield
    finally:
        trainer_base.calculate_debug_metrics = stock
