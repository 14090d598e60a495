"""Whether two checkpoints differ: before and after, item by item, under one and the same protocol.

Means, pass@1, pass@k and the greedy score, each with the 95 % interval of its gain by the paired bootstrap over items.
Measurements under different protocols are refused: such differences have no meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.evidence.intervals import Interval, interval
from rufus_plugins.recipes.evidence.measure import checked, load
from rufus_plugins.recipes.evidence.protocol import SEED_OWN, Protocol

FEWEST = 10
"""Items below which nothing is said to rise or fall: a bootstrap of so few is too narrow. Ours."""

Evidence = Mapping[str, Any] | Path | str


@dataclass(frozen=True)
class Metric:
    """One figure of both checkpoints and its gain."""

    before: float
    after: float
    gain: Interval
    items: int

    @property
    def verdict(self) -> str:
        """rose | fell | within noise | too few items"""
        if self.items < FEWEST:
            return "too few items"
        if not self.gain.excludes_zero:
            return "within noise"
        return "rose" if self.gain.value > 0 else "fell"

    @property
    def words(self) -> str:
        verdict, gain = self.verdict, self.gain
        ends = f"[{_short(gain.low)}, {_short(gain.high)}]"
        if verdict in ("rose", "fell"):
            return f"{verdict} by {_short(gain.value if verdict == 'rose' else -gain.value, verdict == 'rose')} {ends}"
        return f"{verdict}: {_short(gain.value)} {ends}"

    def as_json(self) -> dict[str, Any]:
        gain = {"value": self.gain.value, "low": self.gain.low, "high": self.gain.high}
        return {"before": self.before, "after": self.after, "gain": gain, "items": self.items, "words": self.words}


@dataclass(frozen=True)
class Change:
    """From one checkpoint to another. Their protocols are the same."""

    protocol: Protocol
    mean: Metric
    """Mean reward over samples at temperature 1."""
    pass_at_1: Metric
    pass_at_k: Metric
    k: int
    greedy: Metric | None
    notes: tuple[str, ...] = ()
    """What a reader has to know: attempts without a score, other code, the same checkpoint."""

    @property
    def words(self) -> str:
        """Of the mean reward."""
        return self.mean.words

    @property
    def metrics(self) -> dict[str, Metric]:
        named = {"mean reward": self.mean, "pass@1": self.pass_at_1, f"pass@{self.k}": self.pass_at_k}
        return named | ({"greedy": self.greedy} if self.greedy else {})

    def as_json(self) -> dict[str, Any]:
        return {
            "protocol": {"name": self.protocol.name, "stage": self.protocol.stage, "digest": self.protocol.digest},
            "metrics": {name: metric.as_json() for name, metric in self.metrics.items()},
            "k": self.k,
            "words": self.words,
            "baseline": dict(self.protocol.baseline),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Pooled(Change):
    """Over several seeds of one chain. Each seed generates and trains on its own data, so the protocols are equal
    except for `SEED_OWN`: the seed, the held-out file, the files that belong to it. `protocol` is the first seed's.

    Each figure is the mean over the seeds of the mean over items; items are resampled within each seed. The interval
    holds for these seeds: what other seeds would do shows in `by_seed`.
    """

    by_seed: tuple[Change, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"by_seed": [change.as_json() for change in self.by_seed]}


def compare(before: Evidence, after: Evidence, k: int | None = None, seed: int = 0) -> Change:
    """`k` of pass@k is by default the number of samples: then an item passes if any of its samples does.

    Raises `ConfigError` where the two may not be compared, and says why.
    """
    one, two = _read(before), _read(after)
    _same(one, two, frozenset())
    return Change(**_figures([(one, two)], k, seed))


def pooled(pairs: Sequence[tuple[Evidence, Evidence]], k: int | None = None, seed: int = 0) -> Pooled:
    """`compare` over (before, after) of several seeds. Raises `ConfigError`."""
    if not pairs:
        raise ConfigError("there are no measurements to pool")
    read = [(_read(before), _read(after)) for before, after in pairs]
    for one, two in read:
        _same(one, two, frozenset())
        _same(read[0][0], one, SEED_OWN)
    seen = [one["protocol_digest"] for one, _ in read]
    if len(set(seen)) < len(seen):
        raise ConfigError(
            "two of the measurements to pool have the same seed and held-out items: each seed counts once"
        )
    changes = tuple(Change(**_figures([pair], k, seed)) for pair in read)
    return Pooled(**_figures(read, k, seed), by_seed=changes)


def pass_at(n: int, passed: int, k: int) -> float:
    """The unbiased estimate of the chance that one of `k` samples passes, from `passed` of `n` samples:
    1 - C(n - passed, k) / C(n, k) (arXiv 2107.03374). For k = n: whether any passed. Needs k <= n."""
    if not 1 <= k <= n:
        raise ConfigError(f"pass@{k} cannot be estimated from {n} samples: k is between 1 and the number of samples")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def different(one: Protocol, two: Protocol, but: frozenset[str] = frozenset()) -> list[str]:
    """What differs between two protocols, a line each: `field: this, that`."""
    first, second = one.conditions(), two.conditions()
    found: list[str] = []
    for name in first:
        if name not in but:
            found += _lines(name, first[name], second[name])
    return found


def _lines(name: str, one: Any, two: Any) -> list[str]:
    if one == two:
        return []
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return [line for key in sorted({*one, *two}) for line in _lines(f"{name}.{key}", one.get(key), two.get(key))]
    return [f"{name}: {_brief(one)}, {_brief(two)}"]


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(evidence: Evidence) -> dict[str, Any]:
    return load(Path(evidence)) if isinstance(evidence, str | Path) else checked(evidence, "the evidence")


def _same(one: Mapping[str, Any], two: Mapping[str, Any], but: frozenset[str]) -> None:
    first, second = (Protocol.of(e["protocol"], "the evidence") for e in (one, two))
    if lines := different(first, second, but):
        raise ConfigError(
            f"protocol {first.name} was measured under different conditions, so the figures cannot be compared:\n  "
            + "\n  ".join(lines)
            + "\nMeasure both checkpoints under one protocol."
        )
    if not but and (odd := set(one["items"]) ^ set(two["items"])):
        raise ConfigError(
            f"protocol {first.name}: {len(odd)} items were measured on one side only, for example {min(odd)!r}: "
            "measure the checkpoint again"
        )


def _figures(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], k: int | None, seed: int) -> dict[str, Any]:
    protocol = Protocol.of(pairs[0][0]["protocol"], "the evidence")
    k = protocol.samples if k is None else k
    pass_at(protocol.samples, 0, k)

    def mean(item: Mapping[str, Any]) -> float | None:
        there = _there(item)
        return sum(there) / len(there) if there else None

    def passing(k: int) -> Any:
        def of(item: Mapping[str, Any]) -> float | None:
            there = _there(item)
            return pass_at(len(there), sum(s >= protocol.passes_at for s in there), k) if len(there) >= k else None

        return of

    def metric(figure: Any) -> Metric:
        before: list[list[float]] = []
        after: list[list[float]] = []
        for one, two in pairs:
            both = [(figure(one["items"][i]), figure(two["items"][i])) for i in sorted(one["items"])]
            both = [(a, b) for a, b in both if a is not None and b is not None]
            if not both:
                raise ConfigError(f"protocol {protocol.name}: no item has a score on both sides")
            before.append([a for a, _ in both])
            after.append([b for _, b in both])
        gains = [[b - a for a, b in zip(x, y, strict=True)] for x, y in zip(before, after, strict=True)]
        return Metric(_mean(before), _mean(after), interval(gains, seed), sum(map(len, gains)))

    return {
        "protocol": protocol,
        "mean": metric(mean),
        "pass_at_1": metric(passing(1)),
        "pass_at_k": metric(passing(k)),
        "k": k,
        "greedy": metric(lambda item: item["greedy"]) if protocol.greedy else None,
        "notes": tuple(dict.fromkeys(note for one, two in pairs for note in _notes(one, two))),
    }


def _there(item: Mapping[str, Any]) -> list[float]:
    return [score for score in item["scores"] if score is not None]


def _mean(strata: Sequence[Sequence[float]]) -> float:
    return sum(sum(values) / len(values) for values in strata) / len(strata)


def _notes(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    notes = []
    for side, evidence in (("before", one), ("after", two)):
        if evidence.get("unscored"):
            notes.append(f"{side}: {evidence['unscored']} attempts got no score (faults of our side) and count nowhere")
    if (one.get("code") or {}).get("digest") != (two.get("code") or {}).get("digest"):
        notes.append("before and after were measured by different versions of this package's code")
    if one["checkpoint"]["digest"] == two["checkpoint"]["digest"]:
        notes.append("before and after are the same checkpoint")
    return notes


def _short(value: float, sign: bool = True) -> str:
    """+.182; two figures before the point stay."""
    text = f"{value:+.3f}" if sign else f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 0.9995 else text
