"""Reasoning RL: two steps of arithmetic on digits, for `math_answer`.

"Start with 7. Add 5, then times 3. Last digits only." The answer is both results, written together: 7+5=12 -> 2, 2*3=6,
so \\boxed{26}. The careless teacher forgets the second step and writes the first result twice.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

from rufus_plugins.recipes.tiny.families import Family, Item, says, user

FAMILY = Family("reasoning_rl", "math/tiny_sums", {"name": "math_answer"}, sft_rows=3_500)
SIZE = 1_500
"""Ours."""

_STEPS = {
    "plus": ("+", lambda d, k: (d + k) % 10, ("add {k}", "plus {k}")),
    "minus": ("-", lambda d, k: (d - k) % 10, ("subtract {k}", "minus {k}")),
    "times": ("*", lambda d, k: d * k % 10, ("times {k}", "multiply by {k}")),
}


def items(seed: int) -> list[Item]:
    steps = list(itertools.product(_STEPS, range(2, 10)))
    # two zeros would be the commonest answer by far
    every = [parts for parts in itertools.product(range(10), steps, steps) if any(_results(*parts))]
    rng = random.Random(f"sums {seed}")
    return [_item(start, first, second, rng) for start, first, second in rng.sample(every, SIZE)]


def _item(start: int, first: tuple[str, int], second: tuple[str, int], rng: random.Random) -> Item:
    one, two = _results(start, first, second)
    words = [rng.choice(_STEPS[name][2]).format(k=k) for name, k in (first, second)]
    return Item(
        f"{start} {first[0]} {first[1]} {second[0]} {second[1]}",
        user(f"Start with {start}. First {words[0]}, then {words[1]}. Last digits only."),
        str(10 * one + two),
        says(_worked(start, first, one, second, two)),
        says(_worked(start, first, one, None, one)),
        stratum=str(10 * one + two),
    )


def _results(start: int, first: tuple[str, int], second: tuple[str, int]) -> tuple[int, int]:
    one = _STEPS[first[0]][1](start, first[1])
    return one, _STEPS[second[0]][1](one, second[1])


def _worked(start: int, first: tuple[str, int], one: int, second: tuple[str, int] | None, two: int) -> str:
    text = f"{start}{_STEPS[first[0]][0]}{first[1]}={one}"
    if second:
        text += f", {one}{_STEPS[second[0]][0]}{second[1]}={two}"
    return f"{text}. \\boxed{{{10 * one + two}}}"


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The commonest answer and its share."""
    answer, count = Counter(item.ground_truth for item in found).most_common(1)[0]
    return f"\\boxed{{{answer}}}", count / len(found)
