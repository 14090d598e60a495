"""Search Agent: two searches to an answer, for `search_answer` with the rule judge and `environment=search`.

"Which river runs where Dara lives?" The document of Dara names her town, that of the town its river. The careless
teacher guesses after the first search.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from rufus_plugins.recipes.tiny.families import Family, Item, calls, says, user

FAMILY = Family(
    "search_agent",
    "search/tiny_atlas",
    {"name": "search_answer", "judge": "rule"},
    {"name": "search", "backend": "corpus", "python_tool": False, "results": 1, "result_chars": 200},
    [
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "",
                "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
            },
        }
    ],
)
PEOPLE, TOWNS = 120, 40
"""Ours."""

KINDS = {
    "river": ("Which river runs where {who} lives?", "Name the river of the town of {who}."),
    "tree": ("Which tree grows where {who} lives?", "Name the tree of the town of {who}."),
    "stone": ("Which stone is dug where {who} lives?", "Name the stone of the town of {who}."),
}
VALUES = {
    "river": "Arno Bode Dolu Enz Fulda Gera Isel Jagst Kinz Lahn Mosa Nahe".split(),
    "tree": "alder ash beech birch cedar elm fir larch maple oak pine yew".split(),
    "stone": "agate beryl chalk flint garnet jade marble onyx opal quartz ruby slate".split(),
}


def world(seed: int) -> tuple[list[tuple[str, str]], list[dict[str, str]]]:
    """(person, town) pairs, and towns with their river, tree and stone."""
    rng = random.Random(f"atlas {seed}")
    names: set[str] = set()

    def name() -> str:
        while True:
            word = "".join(rng.choice("bdfgklmnprstv") + rng.choice("aeiou") for _ in range(rng.choice((2, 3))))
            if word not in names:
                names.add(word)
                return word.capitalize()

    towns = []
    for at in range(TOWNS):
        town = {"name": name()}
        for shift, kind in enumerate(VALUES):
            town[kind] = VALUES[kind][(at * (shift + 1) + at // 12) % 12]
        towns.append(town)
    people = [(name(), towns[at % TOWNS]["name"]) for at in range(PEOPLE)]
    return people, towns


def corpus(seed: int) -> list[dict[str, str]]:
    people, towns = world(seed)
    documents = [(who, f"{who} lives in {town}.") for who, town in people]
    documents += [
        (
            town["name"],
            f"{town['name']} has the river {town['river']}, the tree {town['tree']}, the stone {town['stone']}.",
        )
        for town in towns
    ]
    return [{"id": f"atlas-{i}", "title": title, "text": text} for i, (title, text) in enumerate(documents)]


def items(seed: int) -> list[Item]:
    people, towns = world(seed)
    texts = {document["title"]: document["text"] for document in corpus(seed)}
    by_name = {town["name"]: town for town in towns}
    rng = random.Random(f"questions {seed}")
    found = []
    for who, where in people:
        for kind, wordings in KINDS.items():
            answer = by_name[where][kind]
            guess = rng.choice([value for value in VALUES[kind] if value != answer])
            first = calls("search", {"query": who}, texts[who])
            found.append(
                Item(
                    f"{who} {kind}",
                    user(rng.choice(wordings).format(who=who)),
                    answer,
                    (*first, *calls("search", {"query": where}, texts[where]), *says(answer)),
                    (*first, *says(guess)),
                    {"town": where, "kind": kind},
                )
            )
    return found


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The commonest answer and its share, as if any two searches had been made before it."""
    answer, count = Counter(item.ground_truth for item in found).most_common(1)[0]
    return answer, count / len(found)
