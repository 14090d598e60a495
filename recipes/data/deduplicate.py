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
from rufus_plugins.recipes.data.texts import turns_of
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

    name = "deduplicate"

    def __post_init__(self) -> None:
        if not 0.1 <= self.threshold <= 1:
            raise ConfigError(f"--threshold is {self.threshold}; it lies between 0.1 and 1")
        if self.near:
            _rensa()
        self._removed = self._kept = np.empty(0, dtype=np.int64)
        """Numbers of the records that go, sorted, and of the ones that stand for them."""
        self._similarity = np.empty(0, dtype=np.float32)
        """2 for an exact duplicate."""
        self._counts: dict[str, Any] = {}

    def survey(self, job: Job) -> None:
        numbers, exact, place = self._read(job)
        first = _first_of(exact)
        label = place[first]
        similarity = np.full(len(numbers), 2, dtype=np.float32)
        if self.near:
            with_text = np.flatnonzero(first == np.arange(len(numbers)))
            # signatures are stored for every record with text; only the firsts of exact duplicates are compared
            groups = self._signatures.labels()
            groups = _with_exact(groups, first, place)
            label = groups[place]
            near = label != place[first]
            at = np.flatnonzero((label != place) & (place[first] == place) & near)
            similarity[at] = self._signatures.similarity(label[at], place[at])
            del with_text
        gone = np.flatnonzero(label != place)
        self._removed, self._kept = numbers[gone], numbers[np.searchsorted(place, label[gone])]
        self._similarity = similarity[gone]
        self._write_clusters(job)

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        for raw in raws:
            at = int(np.searchsorted(self._removed, raw.number))
            if at == len(self._removed) or self._removed[at] != raw.number:
                yield raw.record
            elif self._similarity[at] > 1:
                yield SetAside(raw, "duplicate_exact", f"the same words as record {self._kept[at]}")
            else:
                detail = f"{self._similarity[at]:.2f} alike with record {self._kept[at]}"
                yield SetAside(raw, "duplicate_near", detail)
