"""Intervals by the bootstrap over items. What is resampled is the item, never the sample: samples of one item are not
independent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float
    """Ends of the 95 % percentile interval."""

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def signed(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def pass_rate(passes: Mapping[str, Sequence[int]], seed: int = 0) -> Interval:
    """Mean over problems of the share of a problem's samples that pass. `passes`: problem -> 0/1 per sample."""
    return interval([[sum(samples) / len(samples) for samples in passes.values()]], seed)


def gain(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]], seed: int = 0) -> Interval:
    """Paired by problem. Raises `ValueError` if the two were not measured on the same problems."""
    if before.keys() != after.keys():
        raise ValueError("before and after were measured on different problems")
    return interval([[sum(after[p]) / len(after[p]) - sum(before[p]) / len(before[p]) for p in before]], seed)


def interval(strata: Sequence[Sequence[float]], seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean of the strata's means, items resampled within each stratum. One stratum: the plain bootstrap of a mean.

    Differences of two measurements, item by item, make it the paired bootstrap. Raises `ValueError` for a stratum
    without items.
    """
    import numpy as np

    if not strata or not all(len(values) for values in strata):
        raise ValueError("no problems")
    generator = np.random.default_rng(seed)
    means: Any = 0.0
    value = 0.0
    for values in strata:
        sample = np.asarray(values, dtype=np.float64)
        draws = generator.integers(0, len(sample), size=(resamples, len(sample)))
        means = means + sample[draws].mean(axis=1) / len(strata)
        value += float(sample.mean()) / len(strata)
    low, high = np.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value, float(low), float(high))
