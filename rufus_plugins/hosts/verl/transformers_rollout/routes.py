"""Records which experts each token went to, for any MoE family that routing replay knows."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import torch

from rufus_plugins.algos.routing_replay.record import record
from rufus_plugins.algos.routing_replay.routers import install


class RouteRecorder:
    """The expert choices of one forward pass at a time, indexed by absolute decoder layer as vLLM answers them."""

    def __init__(self, model: torch.nn.Module):
        """Raises `ConfigError`, naming the family, where nothing can be recorded."""
        self.model = model
        self.routers = install(model)
        self.depth = max(model.config.get_text_config().num_hidden_layers, self.routers.layers[-1] + 1)
        self.dtype = np.uint8 if self.routers.num_experts <= 256 else np.int16

    @contextmanager
    def recording(self):
        """While open, forward passes are recorded."""
        with record(self.model) as self._recorder:
            yield self

    def take(self) -> np.ndarray:
        """The last forward pass as `[tokens, layers, top_k]`, padding included, zeros for dense layers."""
        chosen = self._recorder.tensor().cpu().numpy()
        routes = np.zeros((chosen.shape[0], self.depth, chosen.shape[2]), dtype=self.dtype)
        routes[:, self.routers.layers] = chosen
        return routes
