"""Weighted sum of rewards. `rufus.reward.parts: [{reward: math_answer, weight: 0.9}, {reward: judge, weight: 0.1}]`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.rewards.children import build_child, child_explanation, child_metrics, child_names, score_all
from rufus_plugins.types import Score, Trajectory


@dataclass
class Weighted:
    """Weighted sum of other rewards; the weights are used as given, not normalised."""

    parts: Sequence[Any] = field(default_factory=list)
    """Rewards by name or as {reward, weight, field: value ...}; weight 1 if absent."""

    def __post_init__(self) -> None:
        if not self.parts or isinstance(self.parts, (str, Mapping)):
            raise ConfigError("weighted needs rufus.reward.parts: a list like [{reward: NAME, weight: 0.5}, NAME]")
        self._names = child_names(self.parts)
        self._weights, self._children = [], []
        for part in self.parts:
            weight = 1.0
            if isinstance(part, Mapping):
                part = dict(part)
                weight = part.pop("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
                raise ConfigError(f"weighted: the weight of {part!r} is {weight!r}; it must be a finite number")
            self._weights.append(float(weight))
            self._children.append(build_child("weighted", part))

    async def __call__(self, trajectory: Trajectory) -> Score:
        scores = await score_all(self._children, trajectory)
        value = math.fsum(w * s.value for w, s in zip(self._weights, scores, strict=True))
        return Score(value, child_metrics(self._names, scores), child_explanation(self._names, scores))
