"""All parts must pass. `rufus.reward.parts: [math_answer, {reward: rubrics}]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.rewards.children import build_child, child_explanation, child_metrics, child_names, score_all
from rufus_plugins.types import Score, Trajectory


@dataclass
class AllOf:
    """1 if every part reaches the threshold, else 0."""

    parts: Sequence[Any] = field(default_factory=list)
    """Rewards by name or as {reward, field: value ...}."""
    threshold: float = 1.0
    """A part passes from this value on."""

    def __post_init__(self) -> None:
        if not self.parts or isinstance(self.parts, (str, Mapping)):
            raise ConfigError("all_of needs rufus.reward.parts: a list of reward names or {reward: NAME, ...}")
        self._names = child_names(self.parts)
        self._children = [build_child("all_of", part) for part in self.parts]

    async def __call__(self, trajectory: Trajectory) -> Score:
        scores = await score_all(self._children, trajectory)
        passed = all(score.value >= self.threshold for score in scores)
        return Score(float(passed), child_metrics(self._names, scores), child_explanation(self._names, scores))
