"""verl's columns of one rollout as our `Task`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rufus_plugins.types import Task


def task_of(fields: Mapping[str, Any]) -> Task:
    extra = dict(plain(fields.get("extra_info")) or {})
    scored = plain(fields.get("reward_model")) or {}
    return Task(
        id=str(extra.get("id", extra.get("index", fields.get("uid", "")))),
        data_source=str(fields.get("data_source", "unknown")),
        prompt=tuple(plain(fields.get("raw_prompt")) or ()),
        ground_truth=scored.get("ground_truth"),
        extra=extra,
    )


def plain(value: Any) -> Any:
    """Without numpy: arrays become lists, scalars Python numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value
