"""The productive band: which groups are worth a training step.

Reasoning RL keeps `0 < mean <= 0.8`; General Agent RL drops groups without variance (DAPO, arXiv 2503.14476,
section 3.2); Search drops groups that all or none of the rollouts solve. Judged on the raw reward (or a named metric)
of the rollouts that are part of the group: faulted rollouts do not count, the segments of a rollout count once.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np

from rufus_plugins.algos import rules
from rufus_plugins.errors import ConfigError, RufusError


class Verdict(StrEnum):
    """What the filter says of one group: kept, or the reason why not."""

    KEPT = "kept"
    BELOW = "below_band"
    ABOVE = "above_band"
    NO_VARIANCE = "zero_variance"
    NONE_SOLVED = "none_solved"
    ALL_SOLVED = "all_solved"
    TOO_FEW = "too_few_rollouts"
    """Fewer rollouts than `min_rollouts` ended without an infrastructure fault."""
    TOO_OLD = "too_old"
    """A surplus group that waited longer than `max_age_steps`, or one beyond verl's off-policy threshold."""
    LOST = "lost"
    """Its rollout worker died, or it did not end before the deadline."""
    CUT = "cut"
    """A surplus group for which there is no room (`max_age_steps=0`)."""


@dataclass(frozen=True)
class GroupFilter:
    """`rufus.group_filter`. Without any rule every group with enough rollouts is kept."""

    low: float | None = None
    """Keep only `low < mean`."""
    high: float | None = None
    """Keep only `mean <= high`."""
    zero_variance: bool = False
    """Drop groups whose values are all the same."""
    all_or_none: bool = False
    """Drop groups that every rollout solved, or none."""
    solved_at: float = 1.0
    """From this value on a rollout counts as solved (`all_or_none`); ours."""
    metric: str = "reward"
    """`reward`, or a metric of the reward's `Score.metrics`."""
    min_rollouts: int = 2
    """Healthy rollouts a group needs; ours (a group of one has no baseline)."""
    oversample: float = 1.0
    """Prompts asked for, as a multiple of the batch; ours."""
    max_age_steps: int = 1
    """Steps that a surplus good group may wait; 0 throws surplus away. Ours."""
    max_rounds: int = 8
    """Generation rounds a step may take, the first one included; ours."""
    max_wait_s: float = 14400.0
    """Wall time a step may wait for rollouts before it goes on with what it has; ours."""
    lost_after_s: float = 7200.0
    """Without any rollout ending for this long, the ones in flight count as lost; ours. The prompts of a rollout
    worker that died are lost at once."""
    on_short: str = "continue"
    """`continue`: train on fewer groups and say so; `stop`: end the run."""
    min_groups: int = 1
    """Below this many groups the run ends even with `on_short=continue`."""

    def __post_init__(self) -> None:
        name = "rufus.group_filter"
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ConfigError(f"{name}: low={self.low} is not below high={self.high}, no group could be kept")
        if any(edge is not None and not math.isfinite(edge) for edge in (self.low, self.high)):
            raise ConfigError(f"{name}: low and high are finite numbers or null, not {self.low}, {self.high}")
        if self.min_rollouts < 1 or self.min_groups < 1 or self.max_rounds < 1:
            raise ConfigError(f"{name}: min_rollouts, min_groups and max_rounds are at least 1")
        if not 1 <= self.oversample < math.inf:
            raise ConfigError(f"{name}: oversample is at least 1, not {self.oversample}")
        if self.max_age_steps < 0:
            raise ConfigError(f"{name}: max_age_steps is at least 0, not {self.max_age_steps}")
        if not self.max_wait_s > 0 or not self.lost_after_s > 0:
            raise ConfigError(f"{name}: max_wait_s and lost_after_s are positive")
        if self.on_short not in ("continue", "stop"):
            raise ConfigError(f"{name}: on_short is continue or stop, not {self.on_short!r}")

    @property
    def filters(self) -> bool:
        """Whether any rule can drop a healthy group."""
        return self.low is not None or self.high is not None or self.zero_variance or self.all_or_none

    def judge(self, values: Sequence[float]) -> Verdict:
        """The verdict on a group, from the values of its healthy rollouts (NaN or infinite ones do not count)."""
        values = [v for v in values if math.isfinite(v)]
        if len(values) < self.min_rollouts:
            return Verdict.TOO_FEW
        if self.low is not None and compare_mean(values, self.low) <= 0:
            return Verdict.BELOW
        if self.high is not None and compare_mean(values, self.high) > 0:
            return Verdict.ABOVE
        if self.all_or_none:
            solved = sum(compare_mean([v], self.solved_at) >= 0 for v in values)
            if solved == 0:
                return Verdict.NONE_SOLVED
            if solved == len(values):
                return Verdict.ALL_SOLVED
        if self.zero_variance and min(values) == max(values):
            return Verdict.NO_VARIANCE
        return Verdict.KEPT

    def side(self, values: Sequence[float]) -> str:
        """`below`, `inside` or `above` the band, for the curriculum.

        Without `low`, a mean of 0 is below; without `high`, a mean of `solved_at` is above.
        """
        values = [v for v in values if math.isfinite(v)]
        if not values:
            return "unknown"
        if compare_mean(values, 0.0 if self.low is None else self.low) <= 0:
            return "below"
        if self.high is not None:
            return "above" if compare_mean(values, self.high) > 0 else "inside"
        return "above" if compare_mean(values, self.solved_at) >= 0 else "inside"


def group_filter(config: Mapping[str, Any] | None) -> GroupFilter:
    """Builds `rufus.group_filter`; None gives a filter that keeps every group."""
    return rules.build("rufus.group_filter", GroupFilter, rules.section("rufus.group_filter", config))


def compare_mean(values: Sequence[float], edge: float) -> int:
    """-1, 0 or 1: the mean of `values` is below, at or above `edge`, read as the decimals the user wrote.

    Rewards travel as float32, where .8 is .800000012: compared as bits, a group of .8s would be above a band that
    closes at .8. Close to the edge the comparison is therefore made on the shortest decimals, exactly.
    """
    distance: Any = math.fsum(values) / len(values) - edge
    if abs(distance) <= 1e-5 * max(1.0, abs(edge), max(abs(v) for v in values)):
        whole = all(float(v).is_integer() for v in values)  # rewards of 0 and 1 need no fractions to be exact
        total = int(math.fsum(values)) if whole else sum(map(_decimal, values))
        distance = total - _decimal(edge) * len(values)
    return (distance > 0) - (distance < 0)


@functools.lru_cache(maxsize=4096)
def _decimal(value: float) -> Fraction:
    """The shortest decimal that is `value` in float32, as a fraction; its own decimal if float32 cannot hold it."""
    short = np.float32(value)
    close = abs(float(short) - value) <= 1e-9 * abs(value)
    return Fraction(str(short if close else float(value)))


def reward_histogram(values: Iterable[float], bins: int = 10, width: int = 40) -> str:
    """The group means as text, for the message that ends a run: one line per bin (or per value if they are few)."""
    values = sorted(float(v) for v in values if math.isfinite(v))
    if not values:
        return "  (no group had a finite reward)"
    distinct = Counter(round(v, 6) for v in values)
    if len(distinct) <= bins:
        rows = [(f"{value:g}", count) for value, count in sorted(distinct.items())]
    else:
        counts, edges = np.histogram(values, bins=bins)
        rows = [(f"{a:.3g} .. {b:.3g}", int(c)) for c, a, b in zip(counts, edges, edges[1:], strict=False)]
    most, label = max(count for _, count in rows), max(len(text) for text, _ in rows)
    return "\n".join(
        f"  {text:>{label}}  {'#' * round(width * count / most):<{width}}  {count}" for text, count in rows
    )


class NoProductiveGroups(RufusError):
    """A step found too few groups worth training on; the message shows what was generated."""
