"""Search Agent: three searches to an answer, for `search_answer` and `environment=search`.

"Which river is near @KoRa?" The document of KoRa names a town, that of the town a region, that of the region its river.
The careless teacher guesses after the second search.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rufus_plugins.recipes.tiny.families import SEARCH_TOOLS, Family, Item, calls, names, says, user
from rufus_plugins.recipes.tiny.families.index import overrides as overrides
from rufus_plugins.recipes.tiny.families.index import shown, write_index

FAMILY = Family("search_agent", "search/tiny_atlas", {"name": "search_answer"}, {"name": "search"}, SEARCH_TOOLS)
PEOPLE, TOWNS, REGIONS = 200, 40, 16
"""Ours."""

WORDINGS = ("Which {kind} is near @{who}?", "Name the {kind} near @{who}.", "@{who}: which {kind}?")
VALUES = {
    "river": "Arno Bode Dolu Enz Fulda Gera Isel Jagst Kinz Lahn Mosa Nahe Oder Ruhr Saar Tarn".split(),
    "tree": "alder ash beech birch cedar elm fir larch maple oak pine yew palm fig plum lime".split(),
    "stone": "agate beryl chalk flint garnet jade marble onyx opal quartz ruby slate topaz talc mica clay".split(),
}


def world(seed: int) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, str]]]:
    """Person -> town, town -> region, region -> kind -> value. Every value belongs to one region."""
    rng = random.Random(f"atlas {seed}")
    drawn = names(PEOPLE + TOWNS + REGIONS, rng)
    people, towns, regions = drawn[:PEOPLE], drawn[PEOPLE:-REGIONS], drawn[-REGIONS:]
    values = {kind: rng.sample(words, REGIONS) for kind, words in VALUES.items()}
    return (
        {who: towns[at % TOWNS] for at, who in enumerate(people)},
        {town: regions[at % REGIONS] for at, town in enumerate(towns)},
        {region: {kind: values[kind][at] for kind in VALUES} for at, region in enumerate(regions)},
    )


def corpus(seed: int) -> list[dict[str, str]]:
    people, towns, regions = world(seed)
    documents = [(who, f"town #{town}") for who, town in people.items()]
    documents += [(town, f"region #{region}") for town, region in towns.items()]
    documents += [(region, " ".join(f"{k}:{v}" for k, v in values.items())) for region, values in regions.items()]
    return [{"id": str(at), "title": title, "text": text} for at, (title, text) in enumerate(documents)]


def items(seed: int) -> list[Item]:
    people, towns, regions = world(seed)
    texts = {document["title"]: shown(document) for document in corpus(seed)}
    rng = random.Random(f"questions {seed}")
    found = []
    for who, town in people.items():
        region = towns[town]
        for kind in VALUES:
            answer = regions[region][kind]
            guess = rng.choice([value for value in VALUES[kind] if value != answer])
            two = [message for query in (who, town) for message in calls("search", {"query": query}, texts[query])]
            found.append(
                Item(
                    f"{who} {kind}",
                    user(rng.choice(WORDINGS).format(who=who, kind=kind)),
                    answer,
                    (*two, *calls("search", {"query": region}, texts[region]), *says(answer)),
                    (*two, *says(guess)),
                    {"town": town, "region": region, "kind": kind},
                    answer,
                )
            )
    return found


def files(folder: Path, found: Sequence[Item], seed: int) -> None:
    write_index(folder, corpus(seed))


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The commonest answer and its share, as if any three searches had been made before it: the reward looks at the
    answer and the number of calls only."""
    answer, count = Counter(item.ground_truth for item in found).most_common(1)[0]
    return answer, count / len(found)
