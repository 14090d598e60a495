"""What the episodes of a training batch were like, as step metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .score_tags import read_tag

SUMS = ("retries", "compactions", "tokens_diverged", "close_failed", "summary_missing")
"""Events: how many there were. Everything else is averaged over the rollouts; a rollout without it counts 0."""


def rollout_metrics(tags: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """From the tags of a batch's rows; empty where no environment was played.

    `rufus/rollout/malformed/mean` is a share of all calls of the batch: a rollout without calls weighs nothing.
    """
    told = [score["rollout"] for score in map(read_tag, tags) if score and score.get("rollout")]
    if not told:
        return {}
    found: dict[str, float] = {}
    for name in sorted({name for one in told for name in one}):
        values = [one.get(name, 0.0) for one in told]
        if name in SUMS:
            found[f"rufus/rollout/{name}/total"] = sum(values)
        else:
            found[f"rufus/rollout/{name}/mean"] = sum(values) / len(values)
    for name in ("turns", "segments", "tool_calls"):
        found[f"rufus/rollout/{name}/max"] = max(one.get(name, 0.0) for one in told)
    calls = sum(one.get("tool_calls", 0.0) for one in told)
    malformed = sum(one.get("tool_calls_malformed", 0.0) for one in told)
    found["rufus/rollout/malformed/mean"] = malformed / calls if calls else 0.0
    return found
