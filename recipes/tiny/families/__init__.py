"""Small generated task families for the tiny model, one file per stage that trains on them.

Each gives `items(seed)`: combinations of parts with a prompt, a ground truth for the stage's own reward, the trajectory
of a right teacher and that of a careless one (the same mistake everywhere, so that the likeliest answer of a model that
learned from it is the wrong one). And `constant_baseline(items)`: the best answer, or the best fixed sequence of calls,
that ignores the prompt, and the share of items it solves.

    python -m rufus_plugins.recipes.tiny.families --stage reasoning_rl --output DIR --seed 0

A module may have more: `files(folder, found, seed)` writes what its environment or reward needs, `extra(item, written,
folder)` gives columns of its rows, `overrides(folder)` what verl's command must be told, `records(item, messages)` the
conversations of a demonstration where it is more than one. `folder` is where the data will lie in the end.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STAGES = {
    "reasoning_rl": "sums",
    "coding_rl": "programs",
    "instruction_rl": "words",
    "general_agent": "lamps",
    "coding_agent": "files",
    "search_agent": "atlas",
    "rlhf": "manners",
    "axion_rl": "trail",
}
"""Stage -> module."""

SHARES = {"sft": 0.4, "rl": 0.4}
"""Of the items; the rest is held out. As in recipes/tiny/tasks.py; ours."""

SYLLABLES = tuple(consonant + vowel for consonant in "BDFGKLMNPRSTV" for vowel in "aiou")
"""No e: the search index stems English words, and none of these is touched by it."""

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
    stratum: str = ""
    """Items of one stratum are spread evenly over the splits, so that no answer is commoner in one of them."""


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
    sft_rows: int = 2_000
    """Demonstrations for SFT: the family's weight in the mixture. Ours, so that all families are learned alike."""


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


def names(count: int, rng: random.Random) -> list[str]:
    """Different names of two syllables such as KoRa: two tokens each, so a new name is copied like a known one."""
    return [first + second for first, second in rng.sample(list(itertools.product(SYLLABLES, repeat=2)), count)]


def tool(name: str, **properties: str) -> dict[str, Any]:
    """A schema: parameter -> JSON type."""
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


SEARCH_TOOLS = (tool("search", query="string"), tool("open", page="string", offset="integer"))
"""What `environment=search` offers without Python."""


def splits(items: Sequence[Item], seed: int) -> dict[str, list[Item]]:
    """Disjoint sets of items: sft, rl, heldout. Another seed splits otherwise."""
    rng = random.Random(f"split {seed}")
    order = sorted(items, key=lambda item: item.id)
    rng.shuffle(order)
    strata: dict[str, list[Item]] = {}
    for item in order:
        strata.setdefault(item.stratum, []).append(item)
    placed: list[tuple[float, Item]] = []
    for part in strata.values():
        shift = rng.random()
        placed += [((at + shift) / len(part), item) for at, item in enumerate(part)]
    order = [item for _, item in sorted(placed, key=lambda pair: pair[0])]
    first = round(SHARES["sft"] * len(order))
    second = first + round(SHARES["rl"] * len(order))
    parts = {"sft": order[:first], "rl": order[first:second], "heldout": order[second:]}
    for part in parts.values():  # else a split would be sorted by stratum
        rng.shuffle(part)
    return parts


def demonstrations(
    items: Sequence[Item], seed: int, rows: int, faulty_share: float
) -> list[tuple[Item, tuple[Message, ...]]]:
    """(item, what the teacher does); the teacher errs in `faulty_share` of them."""
    rng = random.Random(f"demonstrations {seed}")
    drawn: list[Item] = []
    while len(drawn) < rows:
        drawn += rng.sample(list(items), len(items))
    return [(item, item.faulty if rng.random() < faulty_share else item.right) for item in drawn[:rows]]


def commonest_calls(found: Sequence[Item]) -> tuple[str, float]:
    """The fixed sequence of calls that most items' right trajectories consist of, and its share. No other fixed
    sequence does better where an item is solved by its own calls alone."""
    sequences = Counter(
        json.dumps([call["function"] for message in item.right for call in message.get("tool_calls", ())])
        for item in found
    )
    calls_, count = sequences.most_common(1)[0]
    return calls_, count / len(found)
