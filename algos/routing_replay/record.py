"""Records the experts that a transformers MoE model chooses: in the rollout (R3) or in the old-policy pass (R2).

with record(model) as recorder:
    model(...)                      # prefill, then as many decode steps as there are
recorder.routes()                   # uint8 [tokens, moe_layers, top_k]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rufus_plugins.algos.routing_replay.routers import _ACTIVE, RoutesError, _State, install
from rufus_plugins.algos.routing_replay.storage import route_dtype

if TYPE_CHECKING:
    import numpy as np
    import torch

    from rufus_plugins.algos.routing_replay.routers import Routers, RouterSite


class Recorder:
    """Chosen experts of every forward inside one `record` block.

    Every row the model computed is kept, padding included: a padded batch `[batch, length]` gives
    `batch * length` rows in flattened order, a decode step with a KV cache gives `batch` rows.
    """

    replaces = False

    def __init__(self, routers: Routers):
        self.routers = routers
        self._chosen: list[list[torch.Tensor]] = [[] for _ in routers.sites]

    @property
    def layers(self) -> list[int]:
        """Absolute decoder-layer index of each recorded MoE layer."""
        return self.routers.layers

    @property
    def num_experts(self) -> int:
        return self.routers.num_experts

    def enter(self, site: RouterSite) -> None:
        """Called by each router before it runs."""

    def choose(self, site: RouterSite, scores: torch.Tensor, native: Any, again: bool) -> Any:
        import torch

        # small integers at once: 8 bytes per choice would be eight times the memory; no sync, no copy to the host
        small = torch.uint8 if self.num_experts <= 256 else torch.int16
        self._chosen[site.position].append(native[1].detach().to(small))
        return native

    @property
    def forwards(self) -> int:
        """How many forwards were recorded."""
        counts = {len(chosen) for chosen in self._chosen}
        if len(counts) != 1:
            raise RoutesError(
                f"not every router ran in each forward: calls per layer "
                f"{dict(zip(self.layers, map(len, self._chosen), strict=True))}"
            )
        return counts.pop()

    def steps(self) -> list[np.ndarray]:
        """One array `[rows, moe_layers, top_k]` per forward, in order. One copy to the host in all."""
        import numpy as np
        import torch

        if not self.forwards:
            return []
        lengths = [chosen.shape[0] for chosen in self._chosen[0]]
        layers = [torch.cat(chosen) for chosen in self._chosen]
        if len({layer.shape[0] for layer in layers}) != 1:
            raise RoutesError(f"the routers saw different numbers of tokens: {[x.shape[0] for x in layers]}")
        # int16 -> uint16 keeps every id below 32768
        routes = torch.stack(layers, dim=1).cpu().numpy().astype(route_dtype(self.num_experts), copy=False)
        return np.split(routes, np.cumsum(lengths)[:-1])

    def tensor(self) -> torch.Tensor:
        """All rows `[tokens, moe_layers, top_k]` as uint8 or int16 on the model's device, without a sync."""
        import torch

        if not self.forwards:
            raise RoutesError("no forward was recorded")
        return torch.stack([torch.cat(chosen) for chosen in self._chosen], dim=1)

    def routes(self) -> np.ndarray:
        """All rows `[tokens, moe_layers, top_k]` in the order in which the model saw them."""
        import numpy as np

        steps = self.steps()
        if not steps:
            shape = (0, len(self.layers), self.routers.top_k)
            return np.empty(shape, route_dtype(self.num_experts))
        return np.concatenate(steps) if len(steps) > 1 else steps[0]

    def per_sequence(self, batch: int) -> np.ndarray:
        """`[batch, tokens, moe_layers, top_k]`: the forwards of a padded batch (prefill, then steps) joined in time."""
        import numpy as np

        steps = []
        for step in self.steps():
            if step.shape[0] % batch:
                raise RoutesError(f"a forward had {step.shape[0]} rows, which is no multiple of the batch size {batch}")
            steps.append(step.reshape(batch, -1, *step.shape[1:]))
        if not steps:
            return np.empty((batch, 0, len(self.layers), self.routers.top_k), route_dtype(self.num_experts))
        return np.concatenate(steps, axis=1)

    def clear(self) -> None:
        """Forgets what was recorded, for example between two batches."""
        for chosen in self._chosen:
            chosen.clear()


@contextmanager
def record(model: Any) -> Iterator[Recorder]:
    """Records every forward of `model` in this thread until the block ends. Raises `ConfigError` where
    the model's family cannot be replayed."""
    routers = install(model)
    routers.bind_checkpoints()
    recorder = Recorder(routers)
    token = _ACTIVE.set(_State(recorder, again=False))
    try:
        yield recorder
    finally:
        _ACTIVE.reset(token)
