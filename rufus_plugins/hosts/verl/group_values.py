"""What the group filter judges: one number per rollout, from the tags of the TransferQueue where they are there."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rufus_plugins.errors import ConfigError
from rufus_plugins.types import Termination

from . import faults
from .score_tags import read_tag, score_tag


def last_scores(tags: Mapping[str, Mapping[str, Any]], partition_id: str, cap: int | None) -> dict[str, dict[str, Any]]:
    """`{uid}_{rollout}` -> what its last segment's tag says (`score_tags.read_tag`), from tags by row key.

    Rows without the tag (restored from a checkpoint of plain verl) are fetched; `cap` is their response budget.
    """
    last: dict[str, tuple[int, str]] = {}
    for key in tags:
        rollout, _, segment = key.rpartition("_")
        if rollout not in last or last[rollout][0] < int(segment):
            last[rollout] = (int(segment), key)
    told = {key: read_tag(tags[key]) for _, key in last.values()}
    missing = {key: tags[key].get("response_len", 0) for key, score in told.items() if score is None}
    told.update(_fetched(missing, partition_id, cap))
    return {rollout: told[key] for rollout, (_, key) in last.items()}


def ending(score: Mapping[str, Any]) -> Termination | None:
    return Termination(score["ending"]) if score["ending"] else None


def rollout_values(
    tags: Mapping[str, Mapping[str, Any]], metric: str, masked: Collection[Termination], cap: int | None
) -> tuple[dict[str, float], dict[str, Termination | None]]:
    """`{uid}_{rollout}` -> its reward (or metric), for the rollouts that are part of their group; and -> its ending.

    Args:
        tags: tags by `{uid}_{rollout}_{segment}`, of finished groups. A rollout's last segment speaks for it.
        metric: `reward`, or a number of the reward's metrics.
        masked: endings whose rollouts are not part of the group; faulted rollouts and rewards that are not finite
            never are.
        cap: response budget in tokens.
    """
    found: dict[str, float] = {}
    endings: dict[str, Termination | None] = {}
    for rollout, score in last_scores(tags, "train", cap).items():
        said = endings[rollout] = ending(score)
        if faults.is_fault(said) or said in masked:
            continue
        value = score["reward"] if metric == "reward" else _metric(score["metrics"], metric)
        if math.isfinite(value):
            found[rollout] = value
    return found, endings


def _metric(metrics: Mapping[str, float], name: str) -> float:
    if name in metrics:
        return metrics[name]
    raise ConfigError(
        f"rufus.group_filter.metric={name}: the reward gives no such number. "
        f"It gives {', '.join(sorted(metrics)) or 'none'}; `reward` is the score itself"
    )


def _fetched(lengths: Mapping[str, int], partition_id: str, cap: int | None) -> dict[str, dict[str, Any]]:
    """Row key -> what its tag would say; `lengths` are the rows' response tokens."""
    import transfer_queue as tq

    if not lengths:
        return {}
    keys = list(lengths)
    data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores", "extra_fields"])
    rewards, extras = _row_sums(data["rm_scores"]), list(data["extra_fields"])
    return {
        key: score_tag(reward, getattr(extra, "data", extra), lengths[key], cap)
        for key, reward, extra in zip(keys, rewards, extras, strict=True)
    }


def _row_sums(scores: Any) -> np.ndarray:
    """Nested or stacked `[rows, tokens]` float32 scores -> `[rows]` float64 sums."""
    if getattr(scores, "is_nested", False):
        values = scores.values().double().cpu().numpy()
        offsets = scores.offsets().cpu().numpy()
        return np.add.reduceat(values, offsets[:-1]) if len(values) else np.zeros(len(offsets) - 1)
    return scores.double().sum(dim=-1).cpu().numpy()
