"""How routes are kept and moved: small integers, one row per token, joined in time linear in the tokens.

A segment of `n` tokens has `n - 1` rows: the last sampled token was never an input. A row that is not
known is MISSING and goes native in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rufus_plugins.algos.routing_replay.routers import RoutesError


def route_dtype(num_experts: int) -> np.dtype:
    """uint8 up to 256 experts, else uint16."""
    if not 0 < num_experts <= 32767:
        raise RoutesError(f"{num_experts} experts: routes hold 1 to 32767")
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


def missing(rows: int, layers: int, top_k: int, dtype: Any) -> np.ndarray:
    """Rows that go native: the largest id in every slot, a duplicate and (nearly always) out of range.

    With top_k 1 and exactly 256 experts 255 is a real expert: such a model has no MISSING row.
    """
    return np.full((rows, layers, top_k), np.iinfo(dtype).max, dtype)


class RouteBuffer:
    """Routes of one segment while its rollout runs: append-only, joined once.

    Joining at every turn would copy every earlier row again, quadratic in the turns (prime-rl#2608).
    """

    def __init__(self, layers: int, top_k: int, num_experts: int):
        self.layers, self.top_k = layers, top_k
        self.dtype = route_dtype(num_experts)
        self.num_experts = num_experts
        self._parts: list[np.ndarray] = []
        self.rows = 0
        self.gaps = 0
        """Rows that no generation reported; they go native in training."""

    def add(self, routes: np.ndarray, first: int = 0) -> None:
        """Takes the rows of one generation, of which the first belongs to token position `first`.

        An engine answers each turn, and each resumption after an abort, with rows for the whole prompt again.
        Rows that are here already stay: they are what the earlier tokens were sampled under. Only rows of new
        tokens are appended. Raises `RoutesError` for another shape, `first` beyond the end leaves a gap.
        """
        routes = np.asarray(routes)
        if routes.ndim != 3 or routes.shape[1:] != (self.layers, self.top_k):
            raise RoutesError(
                f"routes of one generation have shape {routes.shape}, not [rows, {self.layers}, {self.top_k}]"
            )
        if first > self.rows:
            self.gaps += first - self.rows
            self._append(missing(first - self.rows, self.layers, self.top_k, self.dtype))
        fresh = routes[self.rows - first :]
        if len(fresh):
            # a copy of the new rows only: a view would keep every turn's whole array alive
            self._append(compact(fresh, self.num_experts))

    def _append(self, part: np.ndarray) -> None:
        self._parts.append(part)
        self.rows += len(part)

    def cut(self, tokens: int) -> None:
        """Keeps what `tokens` tokens need, `tokens - 1` rows: a truncated response, or a context that was rewritten
        from there on."""
        keep = max(tokens - 1, 0)
        while self.rows > keep:
            last = self._parts.pop()
            self.rows -= len(last)
            if self.rows < keep:
                self._append(last[: keep - self.rows].copy())

    def join(self, tokens: int | None = None) -> np.ndarray:
        """`[rows, layers, top_k]`; with `tokens`, exactly `tokens - 1` rows, where absent ones are MISSING."""
        if len(self._parts) != 1:
            empty = np.empty((0, self.layers, self.top_k), self.dtype)
            self._parts = [np.concatenate(self._parts) if self._parts else empty]
        whole = self._parts[0]
        if tokens is None:
            return whole
        rows = max(tokens - 1, 0)
        if rows <= len(whole):
            return whole[:rows]
        return np.concatenate([whole, missing(rows - len(whole), self.layers, self.top_k, self.dtype)])


def compact(routes: np.ndarray, num_experts: int) -> np.ndarray:
    """Copies routes of any integer type into `route_dtype`; rows with an id that is no expert become MISSING."""
    routes = np.asarray(routes)
    if routes.dtype.kind not in "iu":
        raise RoutesError(f"routes are {routes.dtype}, not integers")
    dtype = route_dtype(num_experts)
    small = routes.astype(dtype)
    # two scans settle the usual case; the mask takes five
    if routes.size and (routes.max() >= num_experts or (routes.dtype.kind == "i" and routes.min() < 0)):
        bad = ((routes < 0) | (routes >= num_experts)).any(axis=-1)
        small[bad] = np.iinfo(dtype).max
    return small


def to_all_layers(routes: np.ndarray, layers: Sequence[int], num_layers: int) -> np.ndarray:
    """`[rows, moe_layers, top_k]` -> int16 `[rows, num_layers, top_k]`, indexed by absolute decoder layer.

    Dense layers are 0: what vLLM and SGLang answer and verl carries. `layers`: indices of the MoE layers
    (`Recorder.layers`)."""
    if len(layers) != routes.shape[1] or max(layers, default=0) >= num_layers:
        raise RoutesError(f"{routes.shape[1]} recorded layers, indices {list(layers)}, model of {num_layers} layers")
    whole = np.zeros((routes.shape[0], num_layers, routes.shape[2]), np.int16)
    whole[:, list(layers)] = routes.astype(np.int16)
    return whole


def from_all_layers(routes: np.ndarray, layers: Sequence[int], num_experts: int) -> np.ndarray:
    """The inverse: picks the MoE layers out of `[rows, num_layers, top_k]` (any integer type) and makes them small."""
    if routes.ndim != 3 or routes.shape[1] <= max(layers, default=0):
        raise RoutesError(f"routes {routes.shape} do not hold decoder layer {max(layers)}")
    return compact(routes[:, list(layers)], num_experts)
