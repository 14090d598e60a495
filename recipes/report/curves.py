"""Metrics of a stage by step, and few enough points of them to draw.

verl's file logger writes `{"step": n, "data": {name: number}}`, a file per attempt. An attempt that resumes does the
steps after its checkpoint again: what earlier attempts said of those steps does not count.
"""

from __future__ import annotations

import bisect
import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rufus_plugins.algos.curriculum import SIDES
from rufus_plugins.recipes.report.run_folder import json_lines, mapping, number, whole

POINTS = 240
"""Points of a curve at most: a chart is a few hundred pixels wide. Ours."""


class Metrics:
    """Step -> value per metric, in arrays (a chain of 80,000 steps fits into some megabytes)."""

    def __init__(self) -> None:
        self._steps: dict[str, array] = {}
        self._values: dict[str, array] = {}
        self.lines = 0
        self.last_step = 0

    def attempt(self, path: Path, wanted: Callable[[str], bool]) -> None:
        """Takes a file on; the first step in it is where the attempt went on. Steps must not fall within a file."""
        first = True
        known: dict[str, bool] = {}
        for line in json_lines(path):
            step = whole(mapping(line).get("step"))
            data = mapping(mapping(line).get("data"))
            if step is None or not data:
                continue
            if first:
                self._forget(step)
                first = False
            self.lines += 1
            self.last_step = max(self.last_step, step)
            for name, value in data.items():
                use = known.get(name)
                if use is None:
                    use = known[name] = wanted(name)
                if use and (value := number(value)) is not None:
                    self._add(name, step, value)

    def _add(self, name: str, step: int, value: float) -> None:
        steps = self._steps.setdefault(name, array("q"))
        values = self._values.setdefault(name, array("d"))
        if steps and steps[-1] >= step:
            at = bisect.bisect_left(steps, step)
            del steps[at:], values[at:]
        steps.append(step)
        values.append(value)

    def _forget(self, step: int) -> None:
        for name, steps in self._steps.items():
            at = bisect.bisect_left(steps, step)
            del steps[at:], self._values[name][at:]

    def names(self) -> list[str]:
        return sorted(name for name, steps in self._steps.items() if steps)

    def series(self, name: str) -> list[tuple[int, float]]:
        return list(zip(self._steps.get(name, ()), self._values.get(name, ()), strict=True))

    def __contains__(self, name: str) -> bool:
        return bool(self._steps.get(name))


@dataclass(frozen=True)
class Curve:
    """Points of a metric: means over buckets of steps, with the least and the most of each."""

    steps: list[int]
    """The last step of each bucket."""
    means: list[float | None]
    """None where nothing finite was logged: a gap."""
    lows: list[float | None]
    highs: list[float | None]
    bucket: int
    """Values per point, at most."""
    dropped: int
    """Values that were no finite number."""

    @property
    def last(self) -> float | None:
        return next((value for value in reversed(self.means) if value is not None), None)


def curve(points: Iterable[tuple[int, float]], limit: int = POINTS) -> Curve:
    points = list(points)
    size = max(1, math.ceil(len(points) / limit))
    made = Curve([], [], [], [], size, sum(not math.isfinite(value) for _, value in points))
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        finite = [value for _, value in bucket if math.isfinite(value)]
        made.steps.append(bucket[-1][0])
        made.means.append(math.fsum(finite) / len(finite) if finite else None)
        made.lows.append(min(finite) if finite else None)
        made.highs.append(max(finite) if finite else None)
    return made


@dataclass(frozen=True)
class Shares:
    """Parts of a whole by step: means over buckets of steps, weighted by the wholes."""

    steps: list[int]
    names: list[str]
    shares: list[list[float]]
    """Per step one share per name; all 0 where the whole is empty."""
    totals: dict[str, float]
    """Over all steps."""


def shares(counts: Mapping[int, Mapping[str, float]], names: Iterable[str], limit: int = POINTS) -> Shares:
    """From step -> name -> count. Names that never occur are left out."""
    totals = {name: math.fsum(row.get(name, 0.0) for row in counts.values()) for name in names}
    kept = [name for name, total in totals.items() if total > 0]
    made = Shares([], kept, [], {name: totals[name] for name in kept})
    order = sorted(counts)
    size = max(1, math.ceil(len(order) / limit))
    for start in range(0, len(order), size):
        bucket = order[start : start + size]
        sums = [math.fsum(counts[step].get(name, 0.0) for step in bucket) for name in kept]
        whole_sum = math.fsum(sums)
        made.steps.append(bucket[-1])
        made.shares.append([value / whole_sum if whole_sum else 0.0 for value in sums])
    return made


_JUDGED = re.compile(rb'"step": ?(\d+)\b.*"side": ?"(\w+)"')
"""Of a line of algos/curriculum.py. Quotes inside a prompt's id are escaped there, so it cannot imitate the fields."""


def curriculum(path: Path) -> dict[int, dict[str, float]]:
    """Step -> side of the band -> groups; line by line, so that a long history costs no memory. `{}` without a file."""
    counts: dict[int, dict[str, float]] = {}
    known = {side.encode(): side for side in (*SIDES, "unknown")}
    try:
        with path.open("rb") as file:
            for line in file:
                found = _JUDGED.search(line)
                if found and (side := known.get(found[2])):
                    row = counts.setdefault(int(found[1]), dict.fromkeys(SIDES, 0.0))
                    row[side] = row.get(side, 0.0) + 1.0
    except OSError:
        return {}
    return counts
