"""Coding RL: the generated programs of recipes/tiny/tasks.py, for `coding_tests`."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from rufus_plugins.recipes.tiny import tasks
from rufus_plugins.recipes.tiny.families import Family, Item, says, user

FAMILY = Family(
    "coding_rl", "rufus_tiny_programs", {"name": "coding_tests", "require_clean_ending": True}, sft_rows=3_500
)


def items(seed: int) -> list[Item]:
    return [item for part in splits(seed).values() for item in part]


@functools.lru_cache(4)
def splits(seed: int) -> dict[str, list[Item]]:
    """The module's own: every part of a combination occurs in SFT and in RL."""
    return {name: [_item(problem) for problem in tasks.problems(seed, name)] for name in ("sft", "rl", "heldout")}


def demonstrations(seed: int, rows: int, faulty_share: float) -> list[tuple[Item, tuple[dict, ...]]]:
    """As recipes/tiny/tasks.py draws them: a combination comes in several wordings."""
    return [
        (_item(problem), says(tasks.fenced(program)))
        for problem, program in tasks.demonstrations(seed, rows, faulty_share)
    ]


def _item(problem: tasks.Problem) -> Item:
    return Item(
        problem.combination,
        user(problem.statement),
        json.dumps(problem.tests),
        says(tasks.fenced(problem.program)),
        says(tasks.fenced(problem.faulty)),
    )


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """A program that prints the commonest output of a problem passes it only if all its outputs are equal; the best of
    the reference programs, given to all problems of its kind, does better. Its share of all problems."""
    tests = [json.loads(item.ground_truth) for item in found]
    best = ("", 0)
    for program, kind in _candidates(found):
        own = [test for test, item in zip(tests, found, strict=True) if _kind(item) == kind]
        solved = sum(_passes(program, kind, test) for test in own)
        best = max(best, (tasks.fenced(program), solved), key=lambda pair: pair[1])
    return best[0], best[1] / len(found)


def _kind(item: Item) -> str:
    return item.id.split("/")[0]


def _candidates(found: Sequence[Item]) -> list[tuple[str, str]]:
    """Right and careless programs of the items, once each."""
    texts = {
        (message["content"][len("```python\n") : -len("\n```")], _kind(item))
        for item in found
        for message in (*item.right, *item.faulty)
    }
    return sorted(texts)


def _passes(program: str, kind: str, tests: dict) -> bool:
    for given, expected in zip(tests["inputs"], tests["outputs"], strict=True):
        try:
            if tasks.run(program, kind, given) != expected:
                return False
        except (ValueError, IndexError, ZeroDivisionError):
            return False
    return True
