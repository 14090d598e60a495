"""Small generated task families for the tiny model, one file per stage that trains on them.

Each gives `items(seed)`: combinations of parts with a prompt, a ground truth for the stage's own reward, the trajectory
of a right teacher and that of a careless one (the same mistake everywhere, so that the likeliest answer of a model that
learned from it is the wrong one). And `constant_baseline(items)`: the best answer, or the best fixed sequence of calls,
that ignores the prompt, and the share of items it solves.

    python -m rufus_plugins.recipes.tiny.families --stage reasoning_rl --output DIR --seed 0
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STAGES = {
    "reasoning_rl": "sums",
    "instruction_rl": "words",
    "general_agent": "lamps",
    "search_agent": "atlas",
    "rlhf": "manners",
}
"""Stage -> module."""

SHARES = {"sft": 0.4, "rl": 0.4}
"""Of the items; the rest is held out. As in recipes/tiny/tasks.py; ours."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Item:
    id: str
    prompt: tuple[Message, ...]
    ground_truth: Any
    right: tuple[Message, ...]
    """Messages that earn the reward."""
    faulty: tuple[Message, ...]
    """What the careless teacher does; equal to `right` where the mistake changes nothing."""
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """What a module of this package offers as `FAMILY`."""

    stage: str
    data_source: str
    reward: Mapping[str, Any]
    """`rufus.reward`: name and fields."""
    environment: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas that the demonstrations show; the environment's own, by name."""


def user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def says(text: str) -> tuple[Message, ...]:
    return ({"role": "assistant", "content": text},)


def calls(name: str, arguments: Mapping[str, Any], result: str) -> tuple[Message, ...]:
    """An assistant's call and the tool's answer."""
    id_ = "-".join([name, *map(str, arguments.values())])
    call = {"id": id_, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "tool_call_id": call["id"], "content": result},
    )


def splits(items: Sequence[Item], seed: int) -> dict[str, list[Item]]:
    """Disjoint sets of items: sft, rl, heldout. Another seed splits otherwise."""
    order = sorted(items, key=lambda item: item.id)
    random.Random(f"split {seed}").shuffle(order)
    first = round(SHARES["sft"] * len(order))
    second = first + round(SHARES["rl"] * len(order))
    return {"sft": order[:first], "rl": order[first:second], "heldout": order[second:]}


def demonstrations(
    items: Sequence[Item], seed: int, rows: int, faulty_share: float
) -> list[tuple[Item, tuple[Message, ...]]]:
    """(item, what the teacher does); the teacher errs in `faulty_share` of them."""
    rng = random.Random(f"demonstrations {seed}")
    drawn: list[Item] = []
    while len(drawn) < rows:
        drawn += rng.sample(list(items), len(items))
    return [(item, item.faulty if rng.random() < faulty_share else item.right) for item in drawn[:rows]]
