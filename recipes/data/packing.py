"""Which conversations share a row of at most `capacity` tokens (Axion: packing to 128K).

Best fit, longest first, within windows of conversations drawn by seed: rows are nearly full, and what lies together
is random beyond its length. Positions restart with every conversation of a row. On that verl's engine with
`use_remove_padding` keeps them apart: it passes no attention mask, and attention reads the bounds off the positions.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rufus_plugins.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

WINDOW = 65_536
"""Conversations packed together. Ours: large enough that rows are full, small enough to mix."""


def packs(lengths: Sequence[int], capacity: int, seed: int = 0) -> list[list[int]]:
    """Places in `lengths`, row by row, each in exactly one row. The same arguments give the same rows.

    Raises `ConfigError` for a conversation that is longer than a row.
    """
    import numpy as np

    sizes = np.asarray(lengths, dtype=np.int64)
    if len(sizes) and sizes.max() > capacity:
        raise ConfigError(f"A conversation has {sizes.max()} tokens, but a row holds {capacity}.")
    order = np.random.default_rng(seed).permutation(len(sizes))
    rows: list[list[int]] = []
    for start in range(0, len(order), WINDOW):
        window = order[start : start + WINDOW]
        rows += _best_fit(window[np.argsort(-sizes[window], kind="stable")], sizes, capacity)
    return rows


def _best_fit(places: np.ndarray, sizes: np.ndarray, capacity: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for place in places.tolist():
        size = int(sizes[place])
        at = bisect.bisect_left(room, (size, -1))
        if at == len(room):
            rows.append([place])
            left, row = capacity - size, len(rows) - 1
        else:
            left, row = room.pop(at)
            rows[row].append(place)
            left -= size
        if left:
            bisect.insort(room, (left, row))
    return rows


def repeated(ids: Sequence[str], categories: Sequence[str], weights: Mapping[str, float], seed: int = 0) -> list[int]:
    """Places, each as often as its category's weight says; of a fraction, a share chosen by the conversation's id.

    Raises `ConfigError` for a weight below 0 or a category that is not there.
    """
    import hashlib

    for category, weight in weights.items():
        if not weight >= 0 or weight == float("inf"):
            raise ConfigError(f"The weight of category {category!r} is {weight}; a number of at least 0 is needed.")
    missing = sorted(set(weights) - set(categories))
    if missing:
        raise ConfigError(
            f"No conversation is of category {missing[0]!r}; there are {', '.join(sorted(set(categories)))}."
        )
    places: list[int] = []
    for place, (name, category) in enumerate(zip(ids, categories, strict=True)):
        whole, part = divmod(weights.get(category, 1.0), 1.0)
        digest = hashlib.sha256(f"{seed}\0{name}\0{place}".encode("utf-8", "surrogatepass")).digest()
        places += [place] * (int(whole) + (int.from_bytes(digest[:8], "big") < part * 2**64))
    return places
