"""Group statistics over rollouts: the part that every group-relative estimator shares.

A *row* is one segment of a rollout (one training sequence); a *rollout* is one or more rows that share one reward
and one advantage; a *group* is the rollouts of one prompt. Statistics run over rollouts, so a rollout that context
compaction cut into many segments counts once. A rollout outside the group (infrastructure fault, masked ending,
reward that is not finite) changes neither the mean nor the size of its group, and gets advantage 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RolloutGroups:
    """What one batch's rows say about its rollouts and groups. Row arrays are `[rows]`, the others `[rollouts]`."""

    row_rollout: np.ndarray
    """Row -> rollout."""
    reward: np.ndarray
    """Reward of each rollout, float64."""
    inside: np.ndarray
    """Whether the rollout is part of its group."""
    finite: np.ndarray
    """Whether its reward is a finite number; one that is not counts as a failed reward, never as a 0."""
    group: np.ndarray
    """Rollout -> group."""
    count: np.ndarray
    """Rollouts inside each group, `[groups]`."""
    centred: np.ndarray
    """`reward - mean of its group`; 0 outside and in groups of one. Exactly 0 where all rewards of a group tie."""

    def std(self) -> np.ndarray:
        """Sample standard deviation (n - 1) of each rollout's group; 0 for groups of one."""
        squares = np.bincount(self.group, weights=self.centred**2, minlength=len(self.count))
        return np.sqrt(squares / np.maximum(self.count - 1, 1))[self.group]

    def metrics(self, prefix: str = "rufus/groups") -> dict[str, float]:
        sizes = self.count
        spread = np.bincount(self.group, weights=np.abs(self.centred), minlength=len(sizes))
        rewards = self.reward[self.inside]
        return {
            f"{prefix}/count": float(len(sizes)),
            f"{prefix}/of_one": float((sizes == 1).sum()),
            f"{prefix}/empty": float((sizes == 0).sum()),
            f"{prefix}/without_signal": float(((sizes > 1) & (spread == 0)).sum()),
            f"{prefix}/size/mean": float(sizes.mean()) if len(sizes) else 0.0,
            f"{prefix}/rollouts": float(len(self.reward)),
            f"{prefix}/rollouts_outside": float((~self.inside).sum()),
            f"{prefix}/rewards_not_finite": float((~self.finite).sum()),
            f"{prefix}/reward/mean": float(rewards.mean()) if len(rewards) else 0.0,
            f"{prefix}/segments_per_rollout/max": float(np.bincount(self.row_rollout).max()) if len(sizes) else 0.0,
        }


def rollout_groups(
    row_reward: np.ndarray,
    index: np.ndarray,
    rollout_id: np.ndarray | None = None,
    outside: np.ndarray | None = None,
) -> RolloutGroups:
    """Reduces rows to rollouts and groups.

    Args:
        row_reward: `[rows]` reward of the row's rollout (each of its segments carries the same one).
        index: `[rows]` prompt of the row.
        rollout_id: `[rows]` rollout of the row; None: every row is a rollout of its own.
        outside: `[rows]` True where the rollout is not part of its group; one such row takes the whole rollout out.
    """
    row_reward = np.asarray(row_reward, dtype=np.float64)
    rows = len(row_reward)
    if rollout_id is None:
        row_rollout, first = np.arange(rows), np.arange(rows)
    else:
        row_rollout, first = _factorise(rollout_id)
    group, group_first = _factorise(np.asarray(index)[first])
    reward = row_reward[first]
    finite = np.isfinite(reward)
    inside = finite.copy()
    if outside is not None:
        inside[row_rollout[np.asarray(outside, dtype=bool)]] = False
    groups = len(group_first)
    count = np.bincount(group[inside], minlength=groups)
    # Shifting by one member first makes ties exactly 0, whatever the rounding of their sum.
    shift = np.zeros(groups)
    shift[group[inside]] = reward[inside]
    distance = np.where(inside, np.where(finite, reward, 0.0) - shift[group], 0.0)
    mean = np.bincount(group, weights=distance, minlength=groups) / np.maximum(count, 1)
    centred = np.where(inside & (count[group] > 1), distance - mean[group], 0.0)
    return RolloutGroups(row_rollout, reward, inside, finite, group, count, centred)


BLOCK = 1 << 20
"""Elements that are worked on at a time, so that converting the mask's type needs no second copy of the batch."""


def spread(values: np.ndarray, groups: RolloutGroups, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`[rollouts]` numbers onto the tokens of their rows: `[rows, tokens]`, 0 where the mask is 0."""
    import torch

    row = torch.as_tensor(values[groups.row_rollout], dtype=dtype, device=mask.device).unsqueeze(-1)
    out = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    step = max(1, BLOCK // max(mask.shape[-1], 1))
    for start in range(0, len(mask), step):
        torch.mul(row[start : start + step], mask[start : start + step], out=out[start : start + step])
    return out


def row_rewards(token_level_rewards: torch.Tensor) -> np.ndarray:
    """`[rows, tokens]` -> `[rows]` float64 sums."""
    return token_level_rewards.detach().sum(dim=-1).double().cpu().numpy()


def _factorise(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels -> (code of each label, position at which each code first appears); linear in the number of labels."""
    labels = np.asarray(labels)
    codes: dict = {}
    out = np.fromiter((codes.setdefault(label, len(codes)) for label in labels.tolist()), dtype=np.int64)
    first = np.zeros(len(codes), dtype=np.int64)
    first[out[::-1]] = np.arange(len(out))[::-1]
    return out, first
