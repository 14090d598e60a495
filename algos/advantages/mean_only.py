"""Mean-only advantage: `A_i = r_i - mean(r_1..r_G)`, without division by the standard deviation.

Dr.GRPO (arXiv 2503.20783, section 3). The recipe uses it where judges are noisy: dividing by the standard deviation
maps a one-success group and a balanced group to similar magnitudes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rufus_plugins.algos.advantages.groups import rollout_groups, row_rewards, spread

if TYPE_CHECKING:
    import numpy as np
    import torch


def mean_only(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    rollout_id: np.ndarray | None = None,
    outside: np.ndarray | None = None,
    row_reward: np.ndarray | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reward minus the mean of its group, over rollouts.

    Args:
        token_level_rewards: `[rows, tokens]`, rewards to be summed over tokens.
        response_mask: `[rows, tokens]`, 1 on tokens the policy sampled.
        index, rollout_id, outside: `[rows]`, see `groups.rollout_groups`.
        row_reward: `[rows]` sums of `token_level_rewards`, if they are known already.

    Returns:
        `(advantages, returns)`, both `[rows, tokens]` and the same tensor: 0 where the mask is 0, for rollouts outside
        their group, and for groups of one (no baseline).
    """
    reward = row_rewards(token_level_rewards) if row_reward is None else row_reward
    groups = rollout_groups(reward, index, rollout_id, outside)
    advantages = spread(groups.centred, groups, response_mask, token_level_rewards.dtype)
    return advantages, advantages
