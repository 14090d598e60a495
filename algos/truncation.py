"""Which endings are left out of the loss, the truncation rate, and the response-budget schedule.

A response that hit a length cap says nothing about its answer, so its tokens are masked. Which endings are masked is a
stage's choice (`rufus.mask_terminations`): Search trains on exhausted budgets, Reasoning does not. Infrastructure
faults are always masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.algos import rules
from rufus_plugins.errors import ConfigError
from rufus_plugins.types import Fault, Termination

TRUNCATED = frozenset({Termination.RESPONSE_LENGTH, Termination.CONTEXT_LENGTH})
"""Endings that count as truncation."""
MASKED = (Termination.RESPONSE_LENGTH, Termination.CONTEXT_LENGTH)
"""Default of `rufus.mask_terminations`."""


def masked_terminations(names: Iterable[str] | None) -> frozenset[Termination]:
    """The endings to mask, checked; None gives the default. Infrastructure faults need not be named."""
    if names is None:
        return frozenset(MASKED)
    if not isinstance(names, Iterable) or isinstance(names, str | Mapping):
        raise ConfigError(f"rufus.mask_terminations is a list, not {names!r}: write [{names}]")
    choices = [t.value for t in Termination if t.fault is not Fault.INFRASTRUCTURE]
    found = set()
    for name in names:
        if name not in choices:
            extra = " (infrastructure faults are always masked)" if name in set(Termination) else ""
            raise ConfigError(
                f"rufus.mask_terminations: {name!r} is no ending that can be named{extra}; choose from {choices}"
            )
        found.add(Termination(name))
    return frozenset(found)


def truncation_rate(terminations: Iterable[Termination | None]) -> float:
    """Share of truncated rollouts among those that did not end in an infrastructure fault; 0.0 if there are none.

    None: an ending that nobody named, but that was not a length limit.
    """
    kept = [t for t in terminations if t is None or t.fault is not Fault.INFRASTRUCTURE]
    return sum(t in TRUNCATED for t in kept) / len(kept) if kept else 0.0


@dataclass
class ResponseBudget:
    """Watches the truncation rate against a list of response budgets (`rufus.response_budgets`).

    Not in the papers as an algorithm: they report 11-28 % truncated at 64K and under 0.1 % at 128K and chose the
    larger budget by hand.
    """

    budgets: Sequence[int]
    """Response tokens, increasing: `[65536, 131072]`."""
    threshold: float = 0.1
    """Rate above which a step counts; ours."""
    patience: int = 5
    """Steps in a row above the threshold before it warns; ours."""
    move_on: bool = False
    """Whether it moves to the next budget by itself."""
    position: int = 0
    above: int = field(default=0)
    """Steps in a row above the threshold."""

    def __post_init__(self) -> None:
        budgets = list(self.budgets)
        if not budgets or any(not isinstance(b, int) or isinstance(b, bool) or b <= 0 for b in budgets):
            raise ConfigError(f"rufus.response_budgets.budgets is a list of positive token counts, not {budgets}")
        if any(later <= earlier for earlier, later in zip(budgets, budgets[1:], strict=False)):
            raise ConfigError(f"rufus.response_budgets.budgets must increase, not {budgets}")
        if not 0 < self.threshold < 1:
            raise ConfigError(f"rufus.response_budgets.threshold is a rate between 0 and 1, not {self.threshold}")
        if self.patience < 1:
            raise ConfigError(f"rufus.response_budgets.patience is at least 1, not {self.patience}")

    @property
    def current(self) -> int:
        return self.budgets[self.position]

    def observe(self, rate: float) -> str | None:
        """Takes one step's truncation rate; returns the message to show, if there is one."""
        self.above = self.above + 1 if rate > self.threshold else 0
        if self.above < self.patience:
            return None
        seen = f"{rate:.1%} of the responses were truncated at {self.current} tokens"
        seen += f", above {self.threshold:.1%} for {self.above} steps"
        if self.position + 1 == len(self.budgets):
            return f"{seen}; this is the last budget of {list(self.budgets)}: add a larger one"
        following = self.budgets[self.position + 1]
        if not self.move_on:
            return f"{seen}; set rufus.response_budgets.move_on=true to go on with {following}, or start there"
        self.position += 1
        self.above = 0
        return f"{seen}; from the next step on the budget is {following}"

    def state(self) -> dict[str, Any]:
        return {"budget": self.current, "above": self.above}

    def resume(self, state: dict[str, Any]) -> None:
        """Goes on where `state()` was taken. A budget that is no longer in the list starts at the next larger one."""
        later = [i for i, budget in enumerate(self.budgets) if budget >= state["budget"]]
        self.position = later[0] if later else len(self.budgets) - 1
        self.above = int(state["above"]) if self.current == state["budget"] else 0


def response_budget(config: Mapping[str, Any] | None) -> ResponseBudget | None:
    """Builds `rufus.response_budgets`: `{budgets, threshold, patience, move_on}`; None: no schedule."""
    if config is None:
        return None
    config = rules.section("rufus.response_budgets", config)
    return rules.build(
        "rufus.response_budgets", ResponseBudget, config, ("budgets", "threshold", "patience", "move_on")
    )
