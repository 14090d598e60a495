"""Pass rates with intervals. The unit that is resampled is the problem, never the sample: samples of one problem are
not independent, and a held-out problem is one combination of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 10_000


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
    return _bootstrap([sum(samples) / len(samples) for samples in passes.values()], seed)


def gain(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]], seed: int = 0) -> Interval:
    """Paired by problem. Raises `ValueError` if the two were not measured on the same problems."""
    if before.keys() != after.keys():
        raise ValueError("before and after were measured on different problems")
    differences = [sum(after[p]) / len(after[p]) - sum(before[p]) / len(before[p]) for p in before]
    return _bootstrap(differences, seed)


def _bootstrap(values: Sequence[float], seed: int) -> Interval:
    import numpy as np

    if not values:
        raise ValueError("no problems")
    sample = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(sample), size=(RESAMPLES, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), (0.025, 0.975))
    return Interval(float(sample.mean()), float(low), float(high))
