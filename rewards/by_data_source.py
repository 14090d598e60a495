"""Routes each record to the reward of its `data_source`, because one batch mixes sources.

`rufus.reward.routes: {gsm8k: math_answer, gpqa: {reward: science_answer, threshold: 0.95}, "puzzle/*": puzzle}`
A pattern with `*` is used where no exact name fits; the longest pattern wins. There is no silent default.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.protocols import Reward
from rufus_plugins.rewards.children import build_child
from rufus_plugins.types import Score, Trajectory


@dataclass
class ByDataSource:
    """The reward that the record's data_source is routed to."""

    routes: Mapping[str, Any] = field(default_factory=dict)
    """data_source (or a pattern with *) -> reward, by name or as {reward, field: value ...}."""

    def __post_init__(self) -> None:
        if not self.routes or not isinstance(self.routes, Mapping):
            raise ConfigError("by_data_source needs rufus.reward.routes: a mapping like {gsm8k: math_answer}")
        self._children = {str(source): build_child("by_data_source", part) for source, part in self.routes.items()}
        self._patterns = sorted((s for s in self._children if "*" in s), key=lambda s: (-len(s), s))

    def _reward(self, source: str) -> Reward:
        if source in self._children:
            return self._children[source]
        for pattern in self._patterns:
            # only * means something: names of sets have brackets and question marks of their own
            if re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), source, re.DOTALL):
                return self._children[pattern]
        close = difflib.get_close_matches(source, self._children, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(
            f"no reward for data_source {source!r}.{hint} Routed: {', '.join(sorted(self._children))}. "
            f"Add it to rufus.reward.routes, or a route '*' for all others."
        )

    async def __call__(self, trajectory: Trajectory) -> Score:
        source = trajectory.task.data_source
        score = await self._reward(source)(trajectory)
        return Score(score.value, {**score.metrics, "data_source": source}, score.explanation)
