"""Which benchmark items a record holds: an index of hashed n-grams, and the screen that looks records up in it.

The index keeps hashes and numbers, never a benchmark's text. It is built once and goes to every worker.

- First pass (Rufus-Air: "sampled 8-gram overlap against reported benchmarks"): of each item `samples` n-grams, those
  with the least hash, so the choice depends on the item alone.
- Review (Rufus-Air: "exhaustive n-gram" for math and knowledge): all n-grams of the chosen benchmarks.

Ours: n-grams that many items of a benchmark share are its template and say nothing, nor do those made mostly of numbers
and single letters. An item without any other n-gram, or shorter than one, is looked for as a whole turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rufus_plugins.recipes.data.ngrams import SEPARATOR, grams, hashes_of, mixed, stream_of, whole, word_hashes, words
from rufus_plugins.recipes.data.texts import Turn

LEAST_WORDS = 4
"""Of an item that is looked for as a whole turn; a shorter one ("2 + 2 = ?") proves nothing. Ours."""
COMMON = 5
"""Items of one benchmark that may share an n-gram before it counts as template. Ours."""


@dataclass(frozen=True)
class Item:
    benchmark: int
    where: str
    """`file:line` or `file row n`, with the item's own id if it has one."""
    text: str


@dataclass
class Hit:
    """One item of which a record holds something."""

    item: int
    sampled: int = 0
    """Different sampled n-grams of the item in the record."""
    all: int = 0
    """Different n-grams of the item in the record, sampled or not."""
    whole: bool = False
    """A turn of the record is the item."""


@dataclass
class GramIndex:
    n: int
    benchmarks: list[str]
    item_benchmark: np.ndarray
    """`int32[items]`"""
    item_where: list[str]
    sampled_of: np.ndarray
    """`int32[items]`: sampled n-grams of each item."""
    keys: np.ndarray
    """`uint64[m]`, sorted, each once."""
    starts: np.ndarray
    """`int64[m + 1]`: the entries of key i are `starts[i]:starts[i + 1]`."""
    entries: np.ndarray
    """`int32`: items."""
    is_sampled: np.ndarray
    """`bool`, per entry."""
    whole: dict[int, list[int]]
    """Hash of a whole text -> items."""
    lengths: frozenset[int]
    """Words of the texts in `whole`."""
    unscreened: Counter[str] = field(default_factory=Counter)
    """Benchmark -> items that are too short to be looked for."""

    def __post_init__(self) -> None:
        bits = min(max(int(len(self.keys) * 64).bit_length(), 10), 28)
        self._shift = np.uint64(64 - bits)
        self._seen = np.zeros(1 << bits, dtype=bool)
        self._seen[(self.keys >> self._shift).view(np.int64)] = True

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def screen(self, records: Sequence[Sequence[Turn]]) -> list[list[Hit]]:
        """The items that each record holds something of, best first."""
        streams: list[np.ndarray] = []
        owners: list[int] = []
        hits: list[dict[int, Hit]] = [{} for _ in records]
        bar = np.array([SEPARATOR])
        for number, turns in enumerate(records):
            hashed = [word_hashes(text) for _, text in turns]
            if self.lengths:
                for turn in hashed:
                    if len(turn) in self.lengths:
                        for item in self.whole.get(whole(turn), ()):
                            hits[number].setdefault(item, Hit(item)).whole = True
            for part in (*stream_of(hashed, [role for role, _ in turns], self.n), bar):
                streams.append(part)
                owners.append(number)
        if streams and len(self.keys):
            self._look_up(streams, owners, hits)
        order = lambda hit: (-hit.whole, -hit.all, hit.item)  # noqa: E731
        return [sorted(found.values(), key=order) for found in hits]

    def _look_up(self, streams: list[np.ndarray], owners: list[int], hits: list[dict[int, Hit]]) -> None:
        found = grams(np.concatenate(streams), self.n)
        places = np.flatnonzero(self._seen[(found >> self._shift).view(np.int64)])
        at = np.searchsorted(self.keys, found[places])
        at[at == len(self.keys)] = 0
        good = self.keys[at] == found[places]
        places, at = places[good], at[good]
        if not len(places):
            return
        ends = np.cumsum([len(s) for s in streams])
        records = np.asarray(owners)[np.searchsorted(ends, places, side="right")]
        for record, key in sorted(set(zip(records.tolist(), at.tolist(), strict=True))):
            for entry in range(self.starts[key], self.starts[key + 1]):
                item = int(self.entries[entry])
                hit = hits[record].setdefault(item, Hit(item))
                hit.all += 1
                hit.sampled += bool(self.is_sampled[entry])


def build(
    items: Iterable[Item],
    benchmarks: Sequence[str],
    *,
    n: int = 8,
    samples: int = 8,
    exhaustive: Iterable[str] = (),
    common: int = COMMON,
    seed: int = 0,
) -> GramIndex:
    """The index of the items, which come benchmark by benchmark."""
    full = set(exhaustive)
    item_benchmark: list[int] = []
    item_where: list[str] = []
    unscreened: Counter[str] = Counter()
    wholes: dict[int, list[int]] = {}
    lengths: set[int] = set()
    own: list[np.ndarray] = []
    texts: list[tuple[int, int]] = []
    """(hash, words) of each item."""
    for item in items:
        said = words(item.text)
        hashes = hashes_of(said)
        item_benchmark.append(item.benchmark)
        item_where.append(item.where)
        own.append(np.unique(grams(hashes, n)[~_weak(said, n)]))
        texts.append((whole(hashes), len(said)))
    of = np.asarray(item_benchmark, dtype=np.int32)
    chosen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    sampled_of = np.zeros(len(own), dtype=np.int32)
    for benchmark in range(len(benchmarks)):
        members = np.flatnonzero(of == benchmark).tolist()
        template = _template([own[i] for i in members], common)
        for i in members:
            mine = own[i][~np.isin(own[i], template)]
            if not len(mine):
                value, length = texts[i]
                if length >= LEAST_WORDS:
                    wholes.setdefault(value, []).append(i)
                    lengths.add(length)
                else:
                    unscreened[benchmarks[benchmark]] += 1
                continue
            order = np.argsort(mixed(mine, seed), kind="stable")
            flags = np.zeros(len(mine), dtype=bool)
            flags[order[:samples]] = True
            sampled_of[i] = flags.sum()
            if benchmarks[benchmark] not in full:
                mine, flags = mine[flags], flags[flags]
            chosen.append((mine, np.full(len(mine), i, dtype=np.int32), flags))
    empty = (np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32), np.empty(0, dtype=bool))
    hashes, entries, flags = (np.concatenate(parts) for parts in zip(empty, *chosen, strict=True))
    order = np.argsort(hashes, kind="stable")
    keys, first = np.unique(hashes[order], return_index=True)
    return GramIndex(
        n=n,
        benchmarks=list(benchmarks),
        item_benchmark=of,
        item_where=item_where,
        sampled_of=sampled_of,
        keys=keys,
        starts=np.append(first, len(hashes)).astype(np.int64),
        entries=entries[order],
        is_sampled=flags[order],
        whole=wholes,
        lengths=frozenset(lengths),
        unscreened=unscreened,
    )


def _weak(said: Sequence[bytes], n: int) -> np.ndarray:
    """Which n-grams are made mostly of numbers and single letters; `bool[max(len - n + 1, 0)]`."""
    if len(said) < n:
        return np.zeros(0, dtype=bool)
    weak = np.array([len(word) == 1 or word.isdigit() for word in said], dtype=np.int64)
    total = np.concatenate(([0], np.cumsum(weak)))
    return total[n:] - total[:-n] > n // 2


def _template(own: Sequence[np.ndarray], common: int) -> np.ndarray:
    if len(own) <= common:
        return np.empty(0, dtype=np.uint64)
    values, counts = np.unique(np.concatenate(own), return_counts=True)
    return values[counts > common]
