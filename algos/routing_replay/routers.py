"""The routers of a transformers MoE model, and the hook that lets a pass record or replace their choice.

Routing replay: Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference
Routers" (R3), and Zheng et al., GSPO, section 5.3 (routing replay, R2).

Nearly every router picks its experts with one `torch.topk` over the expert dimension. The model's own
routing code runs unchanged under a `TorchFunctionMode` that touches this one call, so the scores, the
normalisation, the dtypes and the gradients stay the family's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.types import Termination

_TOPK = (torch.topk, torch.Tensor.topk)
_KEY = "_rufus_routers"
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.")


class RoutesError(InfrastructureError):
    """Routes do not fit the forward pass. Nothing was trained on them."""

    def __init__(self, message: str):
        super().__init__(message, Termination.ENGINE_FAILED)


@dataclass
class RouterSite:
    """One method of one module that selects experts. Set in place of the method; copies with its module."""

    owner: nn.Module
    method: str
    """Name of the method it stands for."""
    num_experts: int
    top_k: int
    layer: int
    """Absolute index of the decoder layer."""
    during_replay: dict[str, Any] = field(default_factory=dict)
    """Attributes of the owner that hold other values while choices are replaced."""
    position: int = -1
    """Index among the model's MoE layers."""
    routers: Routers | None = field(default=None, repr=False)
    original: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.original = getattr(self.owner, self.method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = _ACTIVE.get()
        if state is None:
            self._refuse_unbound_recompute()
            return self.original(*args, **kwargs)
        current = state.current
        if current is None or current.routers is not self.routers or (state.again and not current.replaces):
            return self.original(*args, **kwargs)
        if not state.again:
            current.enter(self)
        if not (current.replaces and self.during_replay):
            mode = _ExpertChoice(self, current, state.again)
            with mode:
                result = self.original(*args, **kwargs)
        else:
            # the family's own choice comes from the unchanged attributes, the replayed one from the changed
            own = _ExpertChoice(self, None, state.again)
            with torch.no_grad(), own:
                self.original(*args, **kwargs)
            mode = _ExpertChoice(self, current, state.again, own.native)
            kept = {name: getattr(self.owner, name) for name in self.during_replay}
            try:
                for name, value in self.during_replay.items():
                    setattr(self.owner, name, value)
                with mode:
                    result = self.original(*args, **kwargs)
            finally:
                for name, value in kept.items():
                    setattr(self.owner, name, value)
        if mode.hits != 1:
            raise RoutesError(
                f"the router of layer {self.layer} ({type(self.owner).__name__}) chose experts {mode.hits} times in "
                f"one call, not once (looking for a top-{self.top_k} of {self.num_experts} experts): its routing code "
                "does not fit the adapter"
            )
        return result

    def _refuse_unbound_recompute(self) -> None:
        # A checkpointed layer is recomputed during backward. When nothing bound it to its forward pass and the model
        # has been replayed, native routing here would give wrong gradients without any sign.
        if self.routers.replayed and torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1:
            raise RoutesError(
                f"layer {self.layer} is recomputed in backward by a checkpoint that routing replay does not know, so "
                "its routes are lost: use the model's gradient_checkpointing_enable() or torch's checkpoint_wrapper"
            )


class _ExpertChoice(TorchFunctionMode):
    """Hands the expert-selecting topk of one router call to the current pass (None: only looks)."""

    def __init__(self, site: RouterSite, current: Any, again: bool, native: Any = None):
        self.site, self.current, self.again, self.hits = site, current, again, 0
        self.native = native

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in _TOPK:
            return func(*args, **kwargs)
        native = func(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        # Group topks work on [tokens, groups, experts/groups] or [tokens, groups]: never 2-D over all experts.
        if scores.dim() != 2 or scores.shape[1] != self.site.num_experts or native[1].shape[1] != self.site.top_k:
            return native
        self.hits += 1
        self.native = native if self.native is None else self.native
        if self.current is None:
            return native
        return self.current.choose(self.site, scores, self.native, self.again)


class _State(NamedTuple):
    current: Any
    """The pass, or None where a checkpointed layer is known to run natively."""
    again: bool
    """Whether this is the recomputation of a checkpointed layer."""


_ACTIVE: ContextVar[_State | None] = ContextVar("rufus_routing_pass", default=None)


class Routers:
    """All routers of one model, in layer order. `install` makes it, once per model."""

    def __init__(self, model: nn.Module, sites: list[RouterSite]):
        self.sites = sorted(sites, key=lambda site: site.layer)
        self.replayed = False
        for position, site in enumerate(self.sites):
            site.position, site.routers = position, self
        self._checkpointing = [
            module
            for module in model.modules()
            if hasattr(module, "gradient_checkpointing") or hasattr(module, "checkpoint_fn")
        ]

    @property
    def num_experts(self) -> int:
        return self.sites[0].num_experts

    @property
    def top_k(self) -> int:
        return self.sites[0].top_k

    @property
    def layers(self) -> list[int]:
        """Absolute decoder-layer index of each MoE layer."""
        return [site.layer for site in self.sites]

    def bind_checkpoints(self) -> None:
        """Ties every checkpointed layer to the pass it was run in, also where backward comes much later.

        Two forwards may be outstanding and backward may run in another thread, so nothing global will do: the
        checkpointed function itself carries its pass. The checkpoint is the one of the moment: transformers sets
        it anew with each `gradient_checkpointing_enable`.
        """
        for module in self._checkpointing:
            for name in ("_gradient_checkpointing_func", "checkpoint_fn"):
                checkpoint = module.__dict__.get(name)
                if checkpoint is not None and not isinstance(checkpoint, _BoundCheckpoint):
                    setattr(module, name, _BoundCheckpoint(checkpoint))


@dataclass
class _BoundCheckpoint:
    checkpoint: Callable[..., Any]

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        state = _ACTIVE.get()
        return self.checkpoint(_BoundFunction(function, state.current if state else None), *args, **kwargs)


class _BoundFunction:
    def __init__(self, function: Callable[..., Any], current: Any):
        self.function, self.current, self.ran = function, current, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _ACTIVE.set(_State(self.current, again=self.ran))
        self.ran = True
        try:
            return self.function(*args, **kwargs)
        finally:
            _ACTIVE.reset(token)


def installed(model: nn.Module) -> Routers | None:
    """The routers of a model that `install` has seen, looked for in wrapped models (FSDP, PEFT) too."""
    for module in model.modules():
        if _KEY in module.__dict__:
            return module.__dict__[_KEY]
    return None


def install(model: nn.Module, adapter: Any = None) -> Routers:
    """Puts a `RouterSite` in front of every router of `model`. Idempotent. Call it before FSDP wraps the model.

    `adapter`: None takes the one registered for the model's family. Raises `ConfigError` for a family that has no
    adapter, or one that cannot be replayed.
    """
    found = installed(model)
    if found is not None:
        return found
    from rufus_plugins.algos.routing_replay.families import find_routers

    sites = find_routers(model, adapter)
    if len({(site.num_experts, site.top_k) for site in sites}) > 1:
        shapes = sorted({(site.num_experts, site.top_k) for site in sites})
        raise ConfigError(f"routing replay needs one (experts, top_k) for all MoE layers, this model has {shapes}")
    if len({site.layer for site in sites}) != len(sites):
        raise ConfigError("routing replay needs one router per decoder layer, this model has more")
    routers = Routers(model, sites)
    for site in sites:
        setattr(site.owner, site.method, site)
    model.__dict__[_KEY] = routers
    return routers


def layer_index(name: str) -> int:
    """Absolute decoder-layer index in a module's dotted name."""
    found = _LAYER.search(name + ".")
    if not found:
        raise ConfigError(f"no decoder layer in the module name {name!r} (expected layers.N, blocks.N or h.N)")
    return int(found[1])
