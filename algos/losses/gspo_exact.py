"""GSPO (arXiv 2507.18071, eq. 5-7 and the token form of section 4.3), exact on masked and extreme tokens.

verl's own `gspo` is the same formula in the ordinary range. It differs in two places, and tests/algos/test_gspo.py
shows each of them failing there:

- a masked token whose log-probability is not finite turns its whole sequence, and so the batch, into NaN there
  (`nan * 0`); here masked tokens are never read;
- above a log-ratio of 10 its clamp has gradient zero, so a bad sequence that became far more likely is not pushed back
  any more; here the clamp bounds the weight and keeps the gradient.

How many sequences the mean divides by is the host's: see hosts/verl/sequence_count.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LOG_RATIO_MAX = 20.0
"""Bound of the sequence log-ratio against overflow; the value of verl's `vanilla` loss."""


def gspo_exact(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Sequence-level clipped loss.

    Args:
        old_log_prob, log_prob, advantages, response_mask: `[sequences, tokens]`; mask 1 on tokens to train on.
        config: verl's `ActorConfig` (`clip_ratio_low`, `clip_ratio_high`, `clip_ratio`, `global_batch_info`).
        rollout_is_weights: optional `[sequences, tokens]` weights of verl's rollout correction.

    Returns:
        `(loss, metrics)`, the metrics under verl's names.
    """
    import torch
    from torch import where

    from rufus_plugins.hosts.verl.aggregation import aggregate

    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high

    mask = response_mask.bool()
    zero = torch.zeros((), dtype=log_prob.dtype, device=log_prob.device)
    log_prob = where(mask, log_prob, zero)
    log_ratio = log_prob.detach() - where(mask, old_log_prob, zero)
    lengths = mask.sum(dim=-1)
    sequence_log_ratio = log_ratio.sum(dim=-1) / lengths.clamp(min=1)
    sequence_ratio = sequence_log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()

    # sg[s_i] * pi_t / sg[pi_t]: worth s_i on every token, with the gradient s_i * d(log pi_t).
    ratio = sequence_ratio.unsqueeze(-1) * (log_prob - log_prob.detach()).exp()
    advantages = where(mask, advantages, zero)
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    losses = torch.maximum(unclipped, clipped)
    if rollout_is_weights is not None:
        losses = losses * where(mask, rollout_is_weights, zero)
    loss = aggregate(losses, mask, loss_agg_mode, config.global_batch_info)

    tokens = lengths.sum().clamp(min=1)
    metrics = {
        "actor/pg_clipfrac": (((clipped > unclipped) & mask).sum() / tokens).item(),
        "actor/ppo_kl": -(log_ratio.sum() / tokens).item(),
        "actor/pg_clipfrac_lower": 0.0,
    }
    return loss, metrics
