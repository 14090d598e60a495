"""Records which experts each token went to.

In transformers 5 every MoE block calls its `experts` module with `(hidden_states, top_k_index, top_k_weights)`;
what is recorded is that very argument, so it is what the experts computed, in slot order.
"""

from __future__ import annotations

import re
from contextlib import contextmanager

import numpy as np
import torch

from rufus_plugins.errors import ConfigError

_LAYER = re.compile(r"\blayers\.(\d+)\.")


class RouteRecorder:
    """`layers[i]` of the last forward pass: int tensor `[tokens, top_k]`, or absent for a dense layer."""

    def __init__(self, model: torch.nn.Module):
        self.layers: dict[int, torch.Tensor] = {}
        self.depth = model.config.get_text_config().num_hidden_layers
        self.experts: dict[int, torch.nn.Module] = {}
        for name, module in model.named_modules():
            layer = _LAYER.search(f"{name}.")
            if layer and name.endswith(".experts"):
                self.experts[int(layer.group(1))] = module
        if not self.experts:
            raise ConfigError(
                f"rollout.enable_rollout_routing_replay: {type(model).__name__} has no `experts` module whose choices "
                "could be recorded; set it to False for a dense model"
            )
        count = max(getattr(module, "num_experts", 256) for module in self.experts.values())
        self.dtype = np.uint8 if count <= 256 else np.int16

    @contextmanager
    def recording(self):
        """While open, forward passes fill `layers`."""
        handles = [
            module.register_forward_pre_hook(self._hook(layer), with_kwargs=True)
            for layer, module in self.experts.items()
        ]
        self.layers = {}
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, layer: int):
        def record(module, args, kwargs):
            index = kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
            if torch.is_floating_point(index) or index.ndim != 2:
                raise ConfigError(
                    f"rollout.enable_rollout_routing_replay: {type(module).__name__} is not called with expert ids "
                    f"[tokens, top_k] but with {index.dtype} {tuple(index.shape)}; its family is not supported"
                )
            self.layers[layer] = index.detach()

        return record

    def take(self) -> np.ndarray:
        """The last forward pass as `[tokens, layers, top_k]`, zeros for dense layers."""
        if self.layers.keys() != self.experts.keys():
            missing = sorted(self.experts.keys() - self.layers.keys())
            raise RuntimeError(f"no expert choices were recorded for layers {missing}")
        some = next(iter(self.layers.values()))
        routes = np.zeros((some.shape[0], self.depth, some.shape[1]), dtype=self.dtype)
        for layer, index in self.layers.items():
            routes[:, layer] = index.numpy()
        self.layers = {}
        return routes
