"""Reads what the group filter judges: one number per rollout, from the TransferQueue."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rufus_plugins.errors import ConfigError
from rufus_plugins.types import Termination

from . import faults


def rollout_values(
    keys: Sequence[str], metric: str, masked: Collection[Termination], partition_id: str = "train"
) -> dict[str, float]:
    """`{uid}_{rollout}` -> its reward (or metric), for the rollouts that are part of their group.

    Args:
        keys: `{uid}_{rollout}_{segment}` of finished groups. The segments of a rollout carry the same reward.
        metric: `reward`, or a number of the reward's metrics.
        masked: endings whose rollouts are not part of the group; faulted rollouts and rewards that are not finite
            never are.
    """
    import transfer_queue as tq

    if not keys:
        return {}
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=["rm_scores", "extra_fields"])
    rewards, extras = _row_sums(data["rm_scores"]), list(data["extra_fields"])
    last: dict[str, tuple[int, int]] = {}
    for row, key in enumerate(keys):
        rollout, _, segment = key.rpartition("_")
        if rollout not in last or last[rollout][0] < int(segment):
            last[rollout] = (int(segment), row)
    found = {}
    for rollout, (_, row) in last.items():
        extra = getattr(extras[row], "data", extras[row])
        ending = faults.termination_of(extra)
        if faults.is_fault(ending) or ending in masked:
            continue
        value = float(rewards[row]) if metric == "reward" else _metric(extra, metric)
        if math.isfinite(value):
            found[rollout] = value
    return found


def _metric(extra: Any, name: str) -> float:
    info = (extra.get("reward_extra_info") if isinstance(extra, Mapping) else None) or {}
    value = info.get(name)
    if isinstance(value, bool | int | float | np.number):
        return float(value)
    numbers = sorted(k for k, v in info.items() if isinstance(v, bool | int | float | np.number))
    raise ConfigError(
        f"rufus.group_filter.metric={name}: the reward gives no such number. "
        f"It gives {', '.join(numbers) or 'none'}; `reward` is the score itself"
    )


def _row_sums(scores: Any) -> np.ndarray:
    """Nested or stacked `[rows, tokens]` float32 scores -> `[rows]` float64 sums."""
    if getattr(scores, "is_nested", False):
        values = scores.values().double().cpu().numpy()
        offsets = scores.offsets().cpu().numpy()
        return np.add.reduceat(values, offsets[:-1]) if len(values) else np.zeros(len(offsets) - 1)
    return scores.double().sum(dim=-1).cpu().numpy()
