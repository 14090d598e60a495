"""Clusters of records that say the same, from MinHash signatures on disk: candidates by bands, then compared.

Memory is some 40 bytes per record, whatever its length; the signatures (512 bytes each) stay in files. The result
depends on the records and their order alone: a cluster's first record is the one that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rufus_plugins.recipes.data.ngrams import BASE, mixed

CERTAIN = 0.99
"""Chance with which a pair at the threshold becomes a candidate. Ours."""
PAIRS = 1 << 13
"""Pairs that are compared at once (8 MB of signatures). Ours."""
ROUNDS = 16
"""How often the members of a bucket that are not like its first member are compared among themselves. Ours."""


def bands(threshold: float, size: int) -> tuple[int, int]:
    """(bands, rows): the most rows for which a pair at the threshold still becomes a candidate `CERTAIN`ly.

    A pair with Jaccard similarity s agrees in one of b bands of r rows with probability 1 - (1 - s^r)^b.
    """
    for rows in range(size, 0, -1):
        count = size // rows
        if 1 - (1 - threshold**rows) ** count >= CERTAIN:
            return count, rows
    return size, 1


class Signatures:
    """Signatures of consecutive records, appended to files of `folder`."""

    def __init__(self, folder: Path, size: int, threshold: float):
        folder.mkdir(exist_ok=True)
        self.size, self.threshold, self.count = size, threshold, 0
        self.bands, self.rows = bands(threshold, size)
        self.path = folder / "signatures"
        self._file = self.path.open("wb")
        self._paths = [folder / f"band{i}" for i in range(self.bands)]
        self._bands = [path.open("wb") for path in self._paths]

    def add(self, signatures: np.ndarray) -> None:
        """`uint32[n, size]`"""
        self.count += len(signatures)
        signatures.tofile(self._file)
        power = np.array([pow(BASE, i, 1 << 64) for i in range(self.rows)], dtype=np.uint64)
        for i, file in enumerate(self._bands):
            part = signatures[:, i * self.rows : (i + 1) * self.rows].astype(np.uint64)
            (mixed(part) * power).sum(axis=1, dtype=np.uint64).tofile(file)

    def labels(self) -> np.ndarray:
        """The number of the first record of each record's cluster, `int64[count]`."""
        for file in (self._file, *self._bands):
            file.close()
        label = np.arange(self.count)
        if not self.count:
            return label
        for path in self._paths:
            for first, second in self._alike(np.fromfile(path, dtype=np.uint64), label):
                label = joined(label, first, second)
        return label

    def _alike(self, buckets: np.ndarray, label: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of one band that are alike: each member of a bucket with the first; the others among themselves."""
        order = np.argsort(buckets, kind="stable")
        ranked = buckets[order]
        run = np.cumsum(np.concatenate(([0], ranked[1:] != ranked[:-1])))
        for _ in range(ROUNDS):
            starts = np.flatnonzero(np.concatenate(([True], run[1:] != run[:-1])))
            head = np.repeat(order[starts], np.diff(np.append(starts, len(order))))
            other = np.ones(len(order), dtype=bool)
            other[starts] = False
            new = other & (label[head] != label[order])
            like = np.zeros(len(order), dtype=bool)
            places = np.flatnonzero(new)
            like[places] = self.similarity(head[places], order[places]) >= self.threshold
            if like.any():
                yield head[like], order[like]
            left = new & ~like
            order, run = order[left], run[left]
            if len(order) < 2:
                return

    def similarity(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The estimated Jaccard similarity of pairs."""
        made = np.empty(len(first), dtype=np.float32)
        for at in range(0, len(first), PAIRS):
            one, two = first[at : at + PAIRS], second[at : at + PAIRS]
            # mapped anew for each block: pages that stay mapped would count as memory of this process
            table = np.memmap(self.path, dtype=np.uint32, mode="r", shape=(self.count, self.size))
            made[at : at + PAIRS] = (table[one] == table[two]).mean(axis=1)
        return made


def joined(label: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`label` after uniting the clusters of each pair. A label is the least member of its cluster, before and after."""
    label = label.copy()
    while True:
        one, two = label[first], label[second]
        apart = one != two
        if not apart.any():
            return label
        np.minimum.at(label, np.maximum(one, two)[apart], np.minimum(one, two)[apart])
        while not np.array_equal(label, shorter := label[label]):
            label = shorter
