"""Axion's RL: three searches to a number, for `progress_chain` and `environment=search` with small contexts.

"What does @KoRa's box weigh?" The document of KoRa names a key, that of the key a box, that of the box its weight:
three numbers, each the next query, and the targets of the chain in this order. The context is compacted after the
second search (`environment.compaction` of recipes/axion_rl/tiny.yaml), so a demonstration is two conversations: the
whole one, and what follows the compaction. The careless teacher guesses after the second search.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rufus_plugins.recipes.tiny.families import SEARCH_TOOLS, Family, Item, calls, names, says, user
from rufus_plugins.recipes.tiny.families.index import overrides as overrides
from rufus_plugins.recipes.tiny.families.index import shown, write_index
from rufus_plugins.rollouts.compaction import carried, rule_summary
from rufus_plugins.rollouts.turns import UNTRUSTED_FROM

FAMILY = Family("axion_rl", "axion/tiny_trail", {"name": "progress_chain"}, {"name": "search"}, SEARCH_TOOLS)
PEOPLE, BOXES = 250, 75
"""Ours. Keys are 3xx to 5xx, boxes 1xx to 2xx, weights and prices 6xx to 9xx: no number is two things."""
KEEP_CHARS = 160
"""`environment.compaction.keep_chars` of recipes/axion_rl/tiny.yaml."""

KINDS = {
    "weight": ("What does @{who}'s box weigh?", "@{who}'s box: weight?"),
    "price": ("What does @{who}'s box cost?", "@{who}'s box: price?"),
}


def world(seed: int) -> tuple[dict[str, int], dict[int, int], dict[int, dict[str, int]]]:
    """Person -> key, key -> box, box -> kind -> number. Every number is used once."""
    rng = random.Random(f"trail {seed}")
    people = names(PEOPLE, rng)
    keys, boxes = rng.sample(range(300, 600), PEOPLE), rng.sample(range(100, 300), BOXES)
    values = iter(rng.sample(range(600, 1000), BOXES * len(KINDS)))
    return (
        dict(zip(people, keys, strict=True)),
        {key: boxes[at % BOXES] for at, key in enumerate(keys)},
        {box: {kind: next(values) for kind in KINDS} for box in boxes},
    )


def corpus(seed: int) -> list[dict[str, str]]:
    people, keys, boxes = world(seed)
    documents = [(who, f"key #{key}") for who, key in people.items()]
    documents += [(str(key), f"box #{box}") for key, box in keys.items()]
    documents += [(str(box), " ".join(f"{k}:{v}" for k, v in values.items())) for box, values in boxes.items()]
    # an id is letters: a number in it would be a quantity that the reward takes for evidence
    return [{"id": _letters(at), "title": title, "text": text} for at, (title, text) in enumerate(documents)]


def _letters(number: int) -> str:
    return chr(97 + number // 26) + chr(97 + number % 26)


def items(seed: int) -> list[Item]:
    people, keys, boxes = world(seed)
    texts = {document["title"]: shown(document) for document in corpus(seed)}
    rng = random.Random(f"errands {seed}")
    found = []
    for who, key in people.items():
        box = keys[key]
        for kind, wordings in KINDS.items():
            answer = boxes[box][kind]
            guess = rng.choice([values[kind] for other, values in boxes.items() if other != box])
            two = [m for query in (who, str(key)) for m in calls("search", {"query": query}, texts[query])]
            chain = {"key": key, "box": box, kind: answer}
            targets = [
                {"name": name, "value": value, "tolerance": 0.0, "depends_on": list(chain)[:at]}
                for at, (name, value) in enumerate(chain.items())
            ]
            found.append(
                Item(
                    f"{who} {kind}",
                    user(rng.choice(wordings).format(who=who)),
                    json.dumps({"answer": str(answer), "targets": targets}),
                    (*two, *calls("search", {"query": str(box)}, texts[str(box)]), *says(str(answer))),
                    (*two, *says(str(guess))),
                    {"kind": kind},
                    str(answer),
                )
            )
    return found


def records(item: Item, messages: Sequence[dict]) -> list[list[dict]]:
    """The whole conversation, and its last segment as the episode opens it after the second search."""
    head, pending, rest = messages[:3], messages[3:4], messages[4:]
    opening = carried(item.prompt, rule_summary(head, KEEP_CHARS), pending, KEEP_CHARS)
    opening = [{key: value for key, value in message.items() if key != UNTRUSTED_FROM} for message in opening]
    return [[*item.prompt, *messages], [*opening, *rest]]


def files(folder: Path, found: Sequence[Item], seed: int) -> None:
    write_index(folder, corpus(seed))


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The commonest answer and the share for which it is right. Fixed searches pass no target but by chance: each
    item's first query is its own."""
    answer, count = Counter(json.loads(item.ground_truth)["answer"] for item in found).most_common(1)[0]
    return answer, count / len(found)
