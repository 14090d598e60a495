"""`rufus data deduplicate`: keeps the first of records that say the same, word for word or nearly (MinHash).

Two looks at the input: a sketch of every record, then the records themselves. Exact duplicates have the same normalised
words (ngrams.py); near duplicates share most of their runs of five words: MinHash signatures by rensa, candidates by
banded hashing, then compared (alike.py). Near duplicates of a near duplicate belong to the same cluster.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data import writing
from rufus_plugins.recipes.data.alike import Signatures
from rufus_plugins.recipes.data.ngrams import grams, hashes_of, words
from rufus_plugins.recipes.data.records import Raw
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.texts import missing, turns_of
from rufus_plugins.recipes.data.tool import RecordTool, SetAside

SIZE = 128
"""Values of a signature; the estimate of a similarity s has the standard error sqrt(s (1 - s) / 128). Ours."""
RUN = 5
"""Words of a run that two texts can share; a shorter text is one run. Ours."""
CLUSTERS = "clusters.jsonl"


@dataclass
class Deduplicate(RecordTool):
    """Keeps the first record of each cluster of duplicates and lists the clusters."""

    columns: tuple[str, ...] = ()
    """Columns that are compared (for RL prompt sets: prompt); default: the conversation, else every text column."""
    near: bool = True
    """Near duplicates too, not the exact ones alone."""
    threshold: float = 0.8
    """Least similarity of near duplicates: the shared share of all their runs of five words. Ours."""
    seed: int = 1
    """Of the signatures' hash functions."""

    name = "deduplicate"
    version = 3

    def __post_init__(self) -> None:
        if not 0.1 <= self.threshold <= 1:
            raise ConfigError(f"--threshold is {self.threshold}; it lies between 0.1 and 1")
        if self.near:
            _rensa()
        self._removed = self._kept = np.empty(0, dtype=np.int64)
        """Numbers of the records that go, sorted, and of those that stand for them."""
        self._similarity = np.empty(0, dtype=np.float32)
        """`EXACT` for the same words."""
        self._report: dict[str, Any] = {}

    def survey(self, job: Job) -> None:
        sketch = Sketch(self.columns, self.near, self.seed)
        numbers, exact = [], []
        for row in job.map("sketch", sketch):
            numbers.append(_array(row["numbers"], np.int64))
            exact.append(_array(row["exact"], np.uint64).reshape(-1, 2))
        number = np.concatenate([np.empty(0, dtype=np.int64), *numbers])
        first = _first_of_equal(np.concatenate([np.empty((0, 2), dtype=np.uint64), *exact]))
        label, similarity = first.copy(), np.full(len(first), EXACT, dtype=np.float32)
        if self.near:
            alone = np.flatnonzero(first == np.arange(len(first)))
            group, alike = self._near(job, alone)
            rank = np.searchsorted(alone, first)
            label = alone[group[rank]]
            similarity = np.where(label == first, EXACT, alike[rank])
        gone = np.flatnonzero(label != np.arange(len(label)))
        self._removed, self._kept, self._similarity = number[gone], number[label[gone]], similarity[gone]
        self._list_clusters(job, label, similarity)

    def _near(self, job: Job, alone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For the records `alone` (the first with their words): the first of its cluster, and how alike they are."""
        signatures = Signatures(job.folder / "signatures", SIZE, self.threshold)
        seen = 0
        for row in _rows(job):
            part = _array(row["signatures"], np.uint32).reshape(-1, SIZE)
            inside = alone[np.searchsorted(alone, seen) : np.searchsorted(alone, seen + len(part))]
            signatures.add(part[inside - seen])
            seen += len(part)
        group = signatures.labels()
        alike = np.ones(len(group), dtype=np.float32)
        others = np.flatnonzero(group != np.arange(len(group)))
        alike[others] = signatures.similarity(group[others], others)
        return group, alike

    def _list_clusters(self, job: Job, label: np.ndarray, similarity: np.ndarray) -> None:
        sizes = np.bincount(label, minlength=len(label))
        exact = int((similarity[label != np.arange(len(label))] >= EXACT).sum())
        removed = len(self._removed)
        self._report = {
            "clusters": int((sizes > 1).sum()),
            "largest_cluster": int(sizes.max(initial=0)),
            "removed": {"exact": exact, "near": removed - exact},
            "library": _version() if self.near else None,
        }
        at = 0
        with job.extra(CLUSTERS).open("wb") as out:
            for row in _rows(job):
                for where in row["where"]:
                    if sizes[label[at]] > 1:
                        kind = "kept" if label[at] == at else "exact" if similarity[at] >= EXACT else "near"
                        line = {"cluster": int(label[at]), "record": where, "kind": kind}
                        if kind == "near":
                            line["similarity"] = round(float(similarity[at]), 3)
                        out.write(writing.dumped(line))
                    at += 1

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        for raw in raws:
            at = int(np.searchsorted(self._removed, raw.number))
            if lacking := missing(raw.record, self.columns):
                yield SetAside(raw, "no_columns", lacking)
            elif at == len(self._removed) or self._removed[at] != raw.number:
                yield raw.record
            elif self._similarity[at] >= EXACT:
                yield SetAside(raw, "duplicate_exact", f"the same words as record {self._kept[at]}")
            else:
                said = f"{self._similarity[at]:.2f} alike with record {self._kept[at]}, or linked to it by others"
                yield SetAside(raw, "duplicate_near", said)

    def finish(self, job: Job) -> Mapping[str, Any]:
        return self._report


@dataclass
class Sketch(RecordTool):
    """One row per chunk: the numbers, digests and signatures of its records that say anything."""

    columns: tuple[str, ...] = ()
    near: bool = True
    seed: int = 1

    name = "sketch"
    version = 2

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        numbers, where, exact = [], [], []
        runs: list[np.ndarray] = []
        for raw in raws:
            found = words("\n".join(text for _, text in turns_of(raw.record, self.columns)))
            if not found:
                continue
            numbers.append(raw.number)
            where.append(raw.where)
            exact.append(hashlib.blake2b(b" ".join(found), digest_size=16).digest())
            if self.near:
                runs.append(grams(hashes_of(found), min(RUN, len(found))))
        row = {"numbers": _text(np.array(numbers, dtype=np.int64)), "where": where, "exact": _text(b"".join(exact))}
        if self.near:
            row["signatures"] = _text(self._signatures(runs))
        yield row

    def _signatures(self, runs: Sequence[np.ndarray]) -> np.ndarray:
        """`uint32[records, SIZE]`"""
        if not runs:
            return np.empty((0, SIZE), dtype=np.uint32)
        ends = np.concatenate(([0], np.cumsum([len(r) for r in runs])))
        made = _rensa().digest_matrix_from_flat_token_hashes(np.concatenate(runs), ends.tolist(), SIZE, self.seed)
        return np.array(made.to_rows(), dtype=np.uint32)


EXACT = 2.0
"""Stands for "the same words" among similarities."""


def _rensa() -> Any:
    try:
        from rensa import RMinHash
    except ImportError as error:
        raise ConfigError("Near duplicates need rensa: pip install 'rufus-plugins[data]', or --no-near") from error
    return RMinHash


def _version() -> str:
    import importlib.metadata

    return f"rensa {importlib.metadata.version('rensa')}, R-MinHash {_rensa().ALGORITHM_VERSION}"


def _first_of_equal(exact: np.ndarray) -> np.ndarray:
    """For each row of `uint64[n, 2]` the number of the first row that is equal."""
    order = np.lexsort((exact[:, 1], exact[:, 0]))  # stable: equal rows stay in order
    ranked = exact[order]
    new = np.concatenate(([True], (ranked[1:] != ranked[:-1]).any(axis=1))) if len(order) else np.empty(0, dtype=bool)
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.flatnonzero(new)[np.cumsum(new) - 1]]
    return first


def _rows(job: Job) -> Iterator[dict[str, Any]]:
    for shard in job.shards("sketch"):
        yield from writing.read_shard(shard)


def _text(data: Any) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.tobytes()).decode("ascii")


def _array(text: str, kind: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)
