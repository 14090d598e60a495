"""Which checkpoint of SFT is taken: the one at the held-out plateau, by rule.

Later checkpoints that improve the held-out loss by next to nothing have only learned the demonstrations by heart; the
stages after SFT start better from the first one on the plateau.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rufus_plugins.errors import RufusError

WITHIN = 0.02
"""Relative distance to the best later held-out loss. Ours."""
LOSS = "val/loss"
"""verl's name of it."""


def pick(metrics: Mapping[int, Mapping[str, Any]], saved: Iterable[int]) -> dict[str, Any]:
    """The first saved step whose held-out loss is within `WITHIN` of the lowest one of all saved steps, and why.

    `metrics`: step -> verl's metrics. Returns `{"step", "loss", "best", "rule", "losses": {step: loss}}`; without any
    held-out loss the last saved step, and says so. Raises `RufusError` without a saved step.
    """
    steps = sorted(saved)
    if not steps:
        raise RufusError("SFT saved no checkpoint: trainer.save_freq is above its number of steps, or it was stopped")
    losses = {step: float(metrics[step][LOSS]) for step in steps if LOSS in metrics.get(step, {})}
    losses = {step: loss for step, loss in losses.items() if math.isfinite(loss)}
    if not losses:
        return {
            "step": steps[-1],
            "loss": None,
            "best": None,
            "losses": {},
            "rule": "the last: no held-out loss at any",
        }
    best = min(losses.values())
    step = next(step for step, loss in losses.items() if loss <= best + WITHIN * abs(best))
    rule = f"the first within {WITHIN:.0%} of the lowest held-out loss"
    return {"step": step, "loss": losses[step], "best": best, "losses": losses, "rule": rule}
