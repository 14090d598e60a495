"""KV cache of rows with different lengths, in the shape of a transformers `past_key_values`.

Row `i` holds `lengths[i]` positions; rows 0..n-1 are in use and stay packed: a row that leaves is replaced by the
last one. A prefill writes new rows from a left-padded batch; a decode appends one position to every row.
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache

_STEP = 64
"""Rows and positions are allocated in multiples of this. Ours."""


class RowCache(Cache):
    """One tensor of keys and one of values per layer, `[rows, kv_heads, positions, head_dim]`."""

    is_compileable = False

    def __init__(self) -> None:  # the stock constructor builds layer objects, which rows do not have
        self.layers = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.lengths: list[int] = []
        self._prefill: tuple[list[list[int]], list[int]] | None = None
        self._at: tuple[torch.Tensor, torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    def start_prefill(self, lengths: list[int], copies: list[int]) -> list[list[int]]:
        """Opens `copies[u]` new rows for each sequence `u` of `lengths[u]` tokens; returns their numbers."""
        first, opened = self.rows, []
        for length, count in zip(lengths, copies, strict=True):
            opened.append(list(range(first, first + count)))
            first += count
            self.lengths.extend([length] * count)
        self._prefill, self._at = (opened, lengths), None
        return opened

    def start_decode(self) -> torch.Tensor:
        """Appends one position to every row; returns the new positions, `[rows]`."""
        positions = torch.tensor(self.lengths)
        self._prefill, self._at = None, (torch.arange(self.rows), positions)
        self.lengths = [length + 1 for length in self.lengths]
        return positions

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args, **kwargs):
        """Stores `[batch, kv_heads, new, head_dim]` and returns what the queries may attend to."""
        self._reserve(layer_idx, keys, values)
        all_keys, all_values = self.keys[layer_idx], self.values[layer_idx]
        if self._prefill is not None:
            for sequence, (rows, length) in enumerate(zip(*self._prefill, strict=True)):
                first, stop = rows[0], rows[-1] + 1
                all_keys[first:stop, :, :length] = keys[sequence, :, keys.shape[2] - length :]
                all_values[first:stop, :, :length] = values[sequence, :, values.shape[2] - length :]
            return keys, values
        rows, positions = self._at
        all_keys[rows, :, positions] = keys[:, :, 0]
        all_values[rows, :, positions] = values[:, :, 0]
        return all_keys[: self.rows, :, : self.longest], all_values[: self.rows, :, : self.longest]

    def drop(self, row: int) -> int:
        """Frees `row`; returns the number of the row that took its place (`row` itself if it was the last)."""
        last = self.rows - 1
        if row != last:
            length = self.lengths[last]
            for store in (*self.keys, *self.values):
                store[row, :, :length] = store[last, :, :length]
            self.lengths[row] = length
        self.lengths.pop()
        return last

    def clear(self) -> None:
        """Frees all rows and their memory."""
        self.keys, self.values, self.lengths = [], [], []

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.longest

    def _reserve(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        while len(self.keys) <= layer:
            self.keys.append(keys.new_empty(0, keys.shape[1], 0, keys.shape[3]))
            self.values.append(values.new_empty(0, values.shape[1], 0, values.shape[3]))
        for stores in (self.keys, self.values):
            old = stores[layer]
            if old.shape[0] >= self.rows and old.shape[2] >= self.longest:
                continue
            rows = max(old.shape[0], -(-self.rows // _STEP) * _STEP)
            positions = max(old.shape[2], -(-self.longest // _STEP) * _STEP)
            # zeros: a masked position must be finite, 0 * NaN would spoil the row
            new = old.new_zeros(rows, old.shape[1], positions, old.shape[3])
            new[: old.shape[0], :, : old.shape[2]] = old
            stores[layer] = new
