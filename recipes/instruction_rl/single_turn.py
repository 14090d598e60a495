"""Single-turn prompts: a request and 2 to 6 atomic constraints (Rufus-Air), each with its checker.

A draw is kept only if `conflicts.conflict` has nothing against it *and* a witness exists: a response that every checker
accepts. Refused draws are counted by reason. The same seed gives the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.instruction_rl import requests
from rufus_plugins.recipes.instruction_rl.catalog import KINDS, Atomic
from rufus_plugins.recipes.instruction_rl.conflicts import conflict
from rufus_plugins.recipes.instruction_rl.witness import witness

FEWEST, MOST = 2, 6
"""Constraints of a prompt (Rufus-Air)."""


@dataclass(frozen=True)
class Prompt:
    request: str
    constraints: tuple[Atomic, ...]
    witness: str
    """A response that follows all of them: for tests and audits, never shown to a model."""

    @property
    def text(self) -> str:
        return worded(self.request, self.constraints)


def worded(request: str, constraints: Sequence[Atomic]) -> str:
    return request + "\n\n" + "\n".join(f"- {c.text}" for c in constraints)


def prompts(count: int, seed: int, given: Sequence[str] | None = None) -> Iterator[Prompt]:
    """`count` prompts, over `given` requests or generated ones. The number of constraints is spread evenly.

    Raises `ConfigError` if draws fail so often that nothing is to be expected (a catalog that contradicts itself).
    """
    rng = random.Random(f"instructions {seed}")
    for number in range(count):
        size = FEWEST + number % (MOST - FEWEST + 1)
        for _ in range(400):
            request = given[number % len(given)] if given else requests.draw(rng)
            drawn = draw(rng, request, size)
            found = drawn and witness(drawn)
            if drawn and found:
                yield Prompt(request, tuple(drawn), found)
                break
        else:
            raise ConfigError(f"no {size} constraints that go together were found for {request!r}")


def draw(rng: random.Random, request: str, size: int, start: Sequence[Atomic] = ()) -> list[Atomic] | None:
    """`start` and further constraints up to `size`, without a known conflict; None if the drawing got stuck."""
    chosen = list(start)
    kinds = rng.sample(list(KINDS.values()), len(KINDS))
    while len(chosen) < size and kinds:
        made = kinds.pop().make(rng, request)
        if conflict([*chosen, made], request) is None:
            chosen.append(made)
    return chosen if len(chosen) == size else None
