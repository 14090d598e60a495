"""Copies the trainer's parameters into the rollout model.

verl sends HF names with MoE experts unfused (workers/engine/fsdp/utils.py `unfuse_moe_params`); transformers 5
holds them packed, so they are written into their slice of the packed tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

_EXPERT = re.compile(r"^(?P<base>.*\.experts)\.(?P<id>\d+)\.(?P<part>gate_proj|up_proj|down_proj)\.weight$")


class WeightLoader:
    """One update: `load` any number of times, then `finish`."""

    def __init__(self, model: torch.nn.Module):
        self.targets = dict(model.named_parameters(remove_duplicate=False))
        saved = model.state_dict().keys()
        self.targets |= {name: b for name, b in model.named_buffers() if name in saved}
        self.seen: dict[int, int] = {}

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises KeyError for a name the model does not have, ValueError for another shape."""
        for name, tensor in weights:
            whole, target = self._target(name)
            if target.shape != tensor.shape:
                sent, here = tuple(tensor.shape), tuple(target.shape)
                raise ValueError(f"{name}: the trainer sends the shape {sent}, the rollout has {here}")
            target.copy_(tensor)
            self.seen[whole.data_ptr()] = self.seen.get(whole.data_ptr(), 0) + target.numel()

    def _target(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        if name in self.targets:
            return self.targets[name], self.targets[name]
        match = _EXPERT.match(name)
        if match:
            where = "down_proj" if match["part"] == "down_proj" else "gate_up_proj"
            packed = self.targets.get(f"{match['base']}.{where}")
            if packed is not None:
                expert = packed[int(match["id"])]
                if match["part"] == "down_proj":
                    return packed, expert
                half = expert.shape[0] // 2
                return packed, expert[:half] if match["part"] == "gate_proj" else expert[half:]
        raise KeyError(f"the rollout model has no parameter {name!r}")

    def finish(self) -> None:
        """Raises ValueError unless every parameter and saved buffer was written whole."""
        stale = [name for name, t in self.targets.items() if self.seen.get(t.data_ptr(), 0) < t.numel()]
        if stale:
            raise ValueError(f"the weight update left {len(stale)} tensors stale, for example {stale[0]!r}")
