"""Instruction RL: a few words under constraints, for `rubrics`.

"Write 4 words. Use grape. Not chair. End with lemon." Each sentence is one constraint with its checker. The careless
teacher forgets the word that must be used.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from rufus_plugins.recipes.tiny.families import Family, Item, says, user

FAMILY = Family("instruction_rl", "instructions/tiny_words", {"name": "rubrics"}, sft_rows=4_000)
SIZE = 1_200
"""Ours."""

WORDS = "apple bread chair dance eagle flame grape house kettle lemon mango piano".split()


def items(seed: int) -> list[Item]:
    every = [
        (count, *words, quoted)
        for count in (3, 4, 5)
        for words in itertools.permutations(WORDS, 3)
        for quoted in (False, True)
    ]
    rng = random.Random(f"words {seed}")
    return [_item(*parts, rng) for parts in rng.sample(every, SIZE)]


def _item(count: int, use: str, ban: str, end: str, quoted: bool, rng: random.Random) -> Item:
    text = [
        rng.choice((f"Write {count} words.", f"Give me {count} words.")),
        rng.choice((f"Use {use}.", f"One is {use}.")),
        rng.choice((f"Not {ban}.", f"Never {ban}.")),
        rng.choice((f"End with {end}.", f"The last is {end}.")),
    ]
    rubrics = [
        {"id": "count:word_count_range", "kwargs": {"min_words": count, "max_words": count}},
        {"id": "keywords:existence", "kwargs": {"keywords": [use]}},
        {"id": "keywords:forbidden_words", "kwargs": {"forbidden_words": [ban]}},
        {"id": "startend:end_checker", "kwargs": {"end_phrase": end}},
    ]
    if quoted:
        text.append("In quotes.")
        rubrics.append({"id": "startend:quotation", "kwargs": {}})
    free = [word for word in WORDS if word not in (use, ban, end)]
    return Item(
        f"{count} {use} {ban} {end} {'quoted' if quoted else 'plain'}",
        user(" ".join(text)),
        {"rubrics": rubrics},
        # not in front: the first word has no blank before it, and would be another token than in the request
        says(_written([free[0], use, *free[1 : count - 2], end], quoted)),
        says(_written([*free[: count - 1], end], quoted)),
    )


def _written(words: list[str], quoted: bool) -> str:
    return f'"{" ".join(words)}"' if quoted else " ".join(words)


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The best constant answer and its share, exactly: every number of words, last word and set of others is tried.
    Quotes never hurt: the end phrase may be followed by them."""
    asked: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for item in found:
        count, use, ban, end, _ = item.id.split()
        asked.setdefault((int(count), end), []).append((use, ban))
    best = ("", 0)
    for (count, end), wishes in sorted(asked.items()):
        for others in itertools.combinations([word for word in WORDS if word != end], count - 1):
            solved = sum(use in others and ban not in others for use, ban in wishes)
            best = max(best, (_written([*others, end], True), solved), key=lambda pair: pair[1])
    return best[0], best[1] / len(found)
