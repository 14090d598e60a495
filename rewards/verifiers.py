"""The rewards of a `verifiers` task, as its environment ran them (rollouts/environments/verifiers.py).

They need the task's live state and runtime, so the environment scores in `finish()` and this reward reads it. The value
is the weighted sum that verifiers itself would report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.types import Fault, Score, Trajectory


@dataclass
class VerifiersReward:
    """The weighted sum of a `verifiers` task's own rewards; needs environment=verifiers."""

    async def __call__(self, trajectory: Trajectory) -> Score:
        ending = trajectory.termination
        if ending.fault is Fault.INFRASTRUCTURE:
            raise InfrastructureError(f"the rollout ended with {ending.value}: nothing to score", ending)
        found = trajectory.artifacts.get("verifiers")
        if not isinstance(found, Mapping) or not math.isfinite(found.get("reward", math.nan)):
            raise ConfigError(
                "reward=verifiers reads what environment=verifiers scored; this rollout has nothing of it"
            )
        rewards = found.get("rewards", {})
        metrics = {f"reward_{name}": reward["score"] for name, reward in rewards.items()}
        metrics |= {f"metric_{name}": value for name, value in found.get("metrics", {}).items()}
        told = ", ".join(f"{name} {reward['score']:g} x {reward['weight']:g}" for name, reward in rewards.items())
        return Score(float(found["reward"]), metrics, told)
