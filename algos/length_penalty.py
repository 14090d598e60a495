"""Linear length penalties: the one place where a reward changes because of its length.

They apply once per rollout, after the group filter and before the advantage, so that a group is judged by its raw
rewards (a group of mean .875 must not slip into the band by being shortened). Lengths count the response tokens that
the policy sampled (mask 1) over all segments of the rollout, never tool output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rufus_plugins.algos import rules
from rufus_plugins.errors import ConfigError


class LengthPenalty(Protocol):
    def __call__(
        self, reward: np.ndarray, length: np.ndarray, group: np.ndarray, inside: np.ndarray, cap: int
    ) -> np.ndarray:
        """All `[rollouts]`: reward, tokens, group number, whether it is part of its group. Returns new rewards."""
        ...


@dataclass(frozen=True)
class ShortestCorrect:
    """Reasoning RL: a correct rollout is discounted by how much longer it is than its group's shortest correct one.

    `r' = r * (1 - alpha * clip((L - L_min) / (cap - L_min), 0, 1))`. Wrong rollouts never change. The paper gives the
    anchor and the linear form; the slope is ours.
    """

    alpha: float = 0.2
    """Largest share of the reward that is taken; ours."""
    correct_at: float = 0.5
    """A rollout counts as correct from this reward on; ours (rewards of this recipe are 0 or 1)."""
    cap: int | None = None
    """Length at which the discount is full; None: the response budget."""

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        _check_cap(self.cap)
        if not self.correct_at > 0:
            raise ConfigError(f"rufus.length_penalty.correct_at must be positive, not {self.correct_at}")

    def __call__(self, reward, length, group, inside, cap):
        reward = np.asarray(reward, dtype=np.float64)
        correct = np.asarray(inside, dtype=bool) & np.isfinite(reward) & (reward >= self.correct_at)
        shortest = np.full(int(np.max(group, initial=-1)) + 1, np.inf)
        np.minimum.at(shortest, np.asarray(group)[correct], np.asarray(length, dtype=np.float64)[correct])
        anchor = np.where(correct, shortest[group], 0.0)
        excess = _share(np.asarray(length, dtype=np.float64), anchor, self.cap or cap)
        return np.where(correct, reward * (1 - self.alpha * excess), reward)


@dataclass(frozen=True)
class OverTarget:
    """RLHF: an over-long answer with a positive score is reduced linearly with its excess over a target length.

    `r' = r * (1 - alpha * clip((L - target) / (cap - target), 0, 1))` for r > 0; a score of 0 or below never changes.
    The paper gives the rule; target, slope and cap are ours.
    """

    target: int
    """Tokens up to which nothing is taken."""
    alpha: float = 0.2
    """Largest share of the score that is taken; ours."""
    cap: int | None = None
    """Length at which the reduction is full; None: the response budget."""

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        _check_cap(self.cap, above=self.target)
        if self.target < 0:
            raise ConfigError(f"rufus.length_penalty.target is a token count, not {self.target}")

    def __call__(self, reward, length, group, inside, cap):
        reward = np.asarray(reward, dtype=np.float64)
        positive = np.asarray(inside, dtype=bool) & np.isfinite(reward) & (reward > 0)
        excess = _share(np.asarray(length, dtype=np.float64), float(self.target), self.cap or cap)
        return np.where(positive, reward * (1 - self.alpha * excess), reward)


KINDS: dict[str, Any] = {"shortest_correct": ShortestCorrect, "over_target": OverTarget}


def length_penalty(config: Mapping[str, Any] | None) -> LengthPenalty | None:
    """Builds `rufus.length_penalty`: `{kind: shortest_correct | over_target, ...}`; None or no kind: no penalty."""
    config = rules.section("rufus.length_penalty", config)
    kind = config.pop("kind", None)
    if kind is None:
        if config:
            raise ConfigError(f"rufus.length_penalty has {sorted(config)} but no kind: choose from {sorted(KINDS)}")
        return None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"rufus.length_penalty.kind={kind!r} does not exist: choose from {sorted(KINDS)}")
    return rules.build(f"rufus.length_penalty ({kind})", KINDS[kind], config)


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ConfigError(f"rufus.length_penalty.alpha lies between 0 and 1 (a reward keeps its sign), not {alpha}")


def _check_cap(cap: int | None, above: int = 0) -> None:
    if cap is not None and not cap > above:
        raise ConfigError(f"rufus.length_penalty.cap is a token count above {above}, or null, not {cap}")


def _share(length: np.ndarray, start: np.ndarray | float, cap: float) -> np.ndarray:
    """How far `length` is on the way from `start` to `cap`, in [0, 1]; 1 beyond `start` when there is no way."""
    way = np.asarray(cap - start, dtype=np.float64)
    over = length - start
    return np.where(way > 0, np.clip(over / np.where(way > 0, way, 1.0), 0.0, 1.0), (over > 0).astype(np.float64))
