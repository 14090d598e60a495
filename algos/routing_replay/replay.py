"""Replays given experts in a forward pass: the model computes with the rollout's choice, its own scores and gradients.

with replay(model, routes) as pass_:
    loss = model(...)...            # exactly one forward
loss.backward()                     # may come later: checkpointed layers remember their routes
pass_.match_rate()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rufus_plugins.algos.routing_replay.routers import _ACTIVE, RoutesError, _State, install

if TYPE_CHECKING:
    from rufus_plugins.algos.routing_replay.routers import Routers, RouterSite


class Replayed:
    """One forward pass with given choices. Rows that are no choice go native:
    out of range or negative, the same expert twice, or not `present`."""

    replaces = True

    def __init__(self, routers: Routers, targets: torch.Tensor, present: torch.Tensor | None):
        self.routers = routers
        self._targets, self._present = targets, present
        self._valid: torch.Tensor | None = None
        self._ran = [0] * len(routers.sites)
        self._same: list[torch.Tensor] = []

    def enter(self, site: RouterSite) -> None:
        self._ran[site.position] += 1
        if self._ran[site.position] > 1:
            raise RoutesError(
                f"the router of layer {site.layer} ran twice in one replayed forward: one `replay` block holds one "
                "forward, and checkpointing must be the model's own (gradient_checkpointing_enable)"
            )

    def choose(self, site: RouterSite, scores: torch.Tensor, native: Any, again: bool) -> Any:
        if scores.shape[0] != self._targets.shape[0]:
            raise RoutesError(
                f"the forward has {scores.shape[0]} tokens in layer {site.layer}, the routes have "
                f"{self._targets.shape[0]} rows"
            )
        if self._valid is None:
            self._ready(scores.device)
        valid = self._valid[:, site.position]
        wanted = self._targets[:, site.position].to(native[1].dtype)  # int64 for this layer only
        chosen = torch.where(valid[:, None], wanted, native[1])
        if not again:
            same = (native[1][:, :, None] == wanted[:, None, :]).any(1) & valid[:, None]
            self._same.append(same.sum())
        return torch.return_types.topk((scores.gather(1, chosen), chosen))

    def _ready(self, device: torch.device) -> None:
        """Once, at the first router: all routes move as small integers, and one look says which rows are choices."""
        self._targets = self._targets.to(device, non_blocking=True)
        self._valid = valid_rows(self._targets, self.routers.num_experts)
        if self._present is not None:
            self._valid &= self._present.to(device)[:, None]

    def finish(self) -> None:
        """Raises `RoutesError` unless every router ran exactly once."""
        silent = [site.layer for site, ran in zip(self.routers.sites, self._ran, strict=True) if ran != 1]
        if silent:
            raise RoutesError(
                f"routes were given, but the routers of layers {silent} did not run: nothing was replayed"
            )

    def counts(self) -> torch.Tensor:
        """int64 `[3]` on the device: choices the model would have made too, choices replayed, choices of present rows.

        Adding these over passes and reading them once costs one device sync per batch.
        """
        if self._valid is None:
            return torch.zeros(3, dtype=torch.int64)
        replayed = self._valid.sum() * self.routers.top_k
        rows = self._valid.shape[0] if self._present is None else self._present.sum().to(replayed.device)
        everything = torch.zeros_like(replayed) + rows * self._valid.shape[1] * self.routers.top_k
        return torch.stack([torch.stack(self._same).sum(), replayed, everything])

    def match_rate(self) -> float:
        """Share of the replayed choices that the model would have made itself; nan if nothing was replayed."""
        same, replayed, _ = self.counts().tolist()
        return same / replayed if replayed else float("nan")


def valid_rows(targets: torch.Tensor, num_experts: int) -> torch.Tensor:
    """bool `[tokens, layers]`: rows that hold `top_k` different experts of the model."""
    if targets.shape[-1] == 1:
        # nothing can repeat, and expert 0 is a choice like any other: absent rows must be named by `present`
        only = targets[..., 0]
        return (only >= 0) & (only < num_experts)
    ordered = targets.sort(dim=-1).values
    return (
        (ordered[..., 0] >= 0) & (ordered[..., -1] < num_experts) & (ordered[..., 1:] != ordered[..., :-1]).all(dim=-1)
    )


_WIDE = (torch.uint16, torch.uint32, torch.uint64)
"""torch computes next to nothing on these."""


def _as_torch(routes: Any) -> torch.Tensor:
    try:
        array = np.asarray(routes)
    except ValueError as error:  # ragged lists
        raise RoutesError(f"routes are no array: {error}") from None
    if array.dtype.kind not in "iu":
        raise RoutesError(f"routes are {array.dtype}, not integers")
    # what an engine sent may be read-only, reversed or of another byte order
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    if array.dtype == np.uint16:
        array = array.view(np.int16)  # MISSING becomes -1
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _as_targets(routers: Routers, routes: Any) -> torch.Tensor:
    if routes is None:
        raise RoutesError("routing replay is on, but this batch has no routes")
    if not isinstance(routes, torch.Tensor):
        routes = _as_torch(routes)
    targets = routes.to(torch.int64) if routes.dtype in _WIDE else routes
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise RoutesError(f"routes are {targets.dtype}, not integers")
    layers, top_k = len(routers.sites), routers.top_k
    if targets.dim() != 3 or targets.shape[1:] != (layers, top_k):
        raise RoutesError(
            f"routes have shape {tuple(targets.shape)}, this model needs [tokens, {layers} MoE layers, top {top_k}]"
        )
    return targets


@contextmanager
def replay(model: Any, routes: Any, present: Any = None) -> Iterator[Replayed]:
    """Runs one forward of `model` with given experts.

    `routes`: integers `[tokens, moe_layers, top_k]` (numpy or torch), one row per token that the model sees, in
    its flattened order, padding included. `present`: bool `[tokens]`, False where a row holds nothing; needed for
    top-1 models, where no value of a row can say so. Slot order is kept.

    Raises `RoutesError` when the routes do not fit the forward or a router did not run.
    """
    routers = install(model)
    routers.bind_checkpoints()
    targets = _as_targets(routers, routes)
    if present is not None:
        present = torch.as_tensor(present).to(torch.bool)
        if present.shape != targets.shape[:1]:
            raise RoutesError(f"`present` has shape {tuple(present.shape)}, the routes have {targets.shape[0]} rows")
    pass_ = Replayed(routers, targets, present)
    routers.replayed |= torch.is_grad_enabled()
    token = _ACTIVE.set(_State(pass_, again=False))
    try:
        yield pass_
    finally:
        _ACTIVE.reset(token)
    pass_.finish()


@contextmanager
def native() -> Iterator[None]:
    """Forwards inside go native and are not recorded: the reference pass of a LoRA actor, for example."""
    token = _ACTIVE.set(_State(None, again=False))
    try:
        yield
    finally:
        _ACTIVE.reset(token)
