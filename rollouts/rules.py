"""The rules of an episode that hold for every environment: budgets, deadlines, retries, compaction.

They stand beside the environment's own fields, under `rufus.environment`. A field of the same name that the
environment declares is the environment's: it then keeps that rule itself (the shell has a clock per step of its task).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.fields import Unfit, fitted


@dataclass(frozen=True)
class EpisodeRules:
    max_turns: int | None = None
    """Assistant turns; the episode ends `max_turns` after the last one's calls ran. null: the tokens are the limit."""
    max_tool_calls: int | None = None
    """Calls beyond it are answered with an error; a turn that then calls again ends `tool_budget`."""
    max_malformed: int = 16
    """Malformed calls that are answered; one more ends the episode. Ours."""
    max_turn_tokens: int | None = None
    """Tokens sampled in one turn. A turn that reaches it ends the episode as truncated."""
    max_segments: int = 8
    """Contexts of one rollout, compaction included. Ours."""
    episode_timeout_s: float | None = None
    """Wall clock of the whole episode, part of the task: `episode_timeout` is a budget, not a fault."""
    retries: int = 1
    """How often a rollout that ended in a fault of our side starts anew, with a fresh environment. Ours."""
    start_timeout_s: float = 600.0
    """Deadlines of ours: what misses one ends `timeout_infra`. An environment has finer ones of its own."""
    step_timeout_s: float = 1800.0
    finish_timeout_s: float = 3600.0
    close_timeout_s: float = 120.0
    generate_timeout_s: float = 14400.0
    """A turn of 128K tokens at 10 tokens a second takes 3.6 hours. Ours."""
    tool_format: str | None = None
    """How the model writes calls (rollouts/tool_calls.py, or a parser of the host). null: by model family."""
    stop: list[str] = field(default_factory=list)
    """Strings that end a turn."""
    compaction: dict[str, Any] | None = None
    """Fields of rollouts/compaction.py, `Compaction`; null: a full context ends the episode."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tool_calls", "max_turn_tokens"):
            value = getattr(self, name)
            if value is not None and value < (0 if name == "max_tool_calls" else 1):
                raise ConfigError(f"rufus.environment.{name}={value}: null, or a positive number")
        for name in ("max_malformed", "retries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"rufus.environment.{name}={getattr(self, name)}: 0 or more")
        if self.max_segments < 1:
            raise ConfigError(f"rufus.environment.max_segments={self.max_segments}: 1 or more")
        for name in NAMES:
            value = getattr(self, name)
            if name.endswith("_timeout_s") and value is not None and value <= 0:
                raise ConfigError(f"rufus.environment.{name}={value}: seconds, more than 0")
        if self.compaction is not None:
            from rufus_plugins.rollouts.compaction import compaction

            compaction(self.compaction)


NAMES = tuple(f.name for f in dataclasses.fields(EpisodeRules))


def episode_rules(environment: Mapping[str, Any] | None, own: Collection[str] = ()) -> EpisodeRules:
    """The rules among the keys of `rufus.environment`, less the environment's `own` fields. Raises `ConfigError`."""
    given = {
        key: value for key, value in (environment or {}).items() if key in NAMES and key not in own and value != "???"
    }
    try:
        return EpisodeRules(**fitted(EpisodeRules, given))
    except Unfit as error:
        raise ConfigError(f"rufus.environment.{error} (rollouts/rules.py)") from None
