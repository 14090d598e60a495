"""GRPO advantage: `A_i = (r_i - mean) / (std + eps)` over the rollouts of a prompt (arXiv 2402.03300, section 4.1).

The same formula as verl's `grpo` (sample standard deviation, eps 1e-6), with this package's group rules: rollouts
instead of rows, faults outside the group, groups of one worth 0. verl's name stays verl's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rufus_plugins.algos.advantages.groups import rollout_groups, row_rewards, spread

if TYPE_CHECKING:
    import numpy as np
    import torch

EPSILON = 1e-6
"""As verl's `compute_grpo_outcome_advantage`."""


def group_normalised(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    rollout_id: np.ndarray | None = None,
    outside: np.ndarray | None = None,
    row_reward: np.ndarray | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reward minus the mean of its group, divided by the group's standard deviation.

    Shapes, returns and group rules as `mean_only`. A group whose rewards tie has advantage exactly 0.
    """
    reward = row_rewards(token_level_rewards) if row_reward is None else row_reward
    groups = rollout_groups(reward, index, rollout_id, outside)
    normalised = groups.centred / (groups.std() + EPSILON)
    advantages = spread(normalised, groups, response_mask, token_level_rewards.dtype)
    return advantages, advantages
