"""A generated world to search in: people, companies, towns and rivers that exist nowhere, and questions about them.

Nothing of it can be known without searching. One-hop questions ask for a fact of one document, two-hop questions for
a fact of an entity that another document names. The answers of a kind are spread evenly, so that the best constant
answer finds little (`constant_baseline`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rufus_plugins.recipes.data.records import Raw
from rufus_plugins.recipes.data.source_list import Source

SOURCE = Source("sample", "questions", "", {"question": "question", "answers": "answers", "kind": "type"})
SIZE = 120
"""People, companies, towns: so many of each. Ours."""

_ONSETS = "b br d dr f fl g gr h j k kl l m n p pr r s st t tr v w z".split()
_VOWELS = "a e i o u ai or en il an".split()
_TRADES = "cartographer glassblower botanist surveyor composer astronomer printer mason weaver chemist".split()
_GOODS = "lanterns bridges compasses violins ceramics turbines telescopes carpets clocks engines".split()
_RIVERS = 12


def build(seed: int) -> dict[str, list[dict[str, Any]]]:
    """The facts: people, companies and towns. Deterministic."""
    rng = random.Random(f"world {seed}")
    used: set[str] = set()

    def name(parts: int) -> str:
        while True:
            word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(parts)).capitalize()
            if word not in used and len(word) > 3:
                used.add(word)
                return word

    rivers = [name(2) for _ in range(_RIVERS)]
    towns = [
        {"name": name(3), "river": rivers[i % _RIVERS], "founded": 1100 + 7 * i, "mayor": f"{name(2)} {name(3)}"}
        for i in range(SIZE)
    ]
    rng.shuffle(towns)
    companies = [
        {
            "name": f"{name(2)} {rng.choice(('Works', 'Brothers', 'Foundry'))}",
            "town": towns[i]["name"],
            "makes": _GOODS[i % len(_GOODS)],
            "started": 1801 + i,
        }
        for i in range(SIZE)
    ]
    rng.shuffle(companies)
    people = [
        {
            "name": f"{name(2)} {name(3)}",
            "trade": _TRADES[i % len(_TRADES)],
            "born": 1700 + 2 * i,
            "town": towns[(7 * i) % SIZE]["name"],
            "employer": companies[i]["name"],
        }
        for i in range(SIZE)
    ]
    rng.shuffle(people)
    return {"people": people, "companies": companies, "towns": towns}


def corpus(seed: int) -> list[dict[str, str]]:
    """One document per entity: `{"id", "title", "text", "contents"}`; `contents` is the title, a newline, the text."""
    made = build(seed)
    documents = []
    for person in made["people"]:
        text = (
            f"{person['name']} (born {person['born']}) was a {person['trade']} from {person['town']}. "
            f"Most of the work of {person['name']} was done for {person['employer']}."
        )
        documents.append((person["name"], text))
    for company in made["companies"]:
        text = (
            f"{company['name']} is a company in {company['town']} that makes {company['makes']}. "
            f"It was started in {company['started']}."
        )
        documents.append((company["name"], text))
    for town in made["towns"]:
        text = (
            f"{town['name']} is a town on the river {town['river']}, founded in {town['founded']}. "
            f"Its mayor is {town['mayor']}."
        )
        documents.append((town["name"], text))
    return [
        {"id": f"doc-{i}", "title": title, "text": text, "contents": f"{title}\n{text}"}
        for i, (title, text) in enumerate(documents)
    ]


def questions(seed: int) -> list[dict[str, Any]]:
    """Every question: `{"id", "question", "answers", "type", "titles"}`; `titles` are the documents that are needed."""
    made = build(seed)
    towns = {town["name"]: town for town in made["towns"]}
    companies = {company["name"]: company for company in made["companies"]}
    found: list[tuple[str, str, list[str], list[str]]] = []
    for person in made["people"]:
        who, town, employer = person["name"], towns[person["town"]], companies[person["employer"]]
        found += [
            ("one_hop", f"In which year was {who} born?", [str(person["born"])], [who]),
            ("one_hop", f"For which company did {who} do most of the work?", [employer["name"]], [who]),
            (
                "two_hop",
                f"When was the town that {who} came from founded?",
                [str(town["founded"])],
                [who, town["name"]],
            ),
            ("two_hop", f"Who is the mayor of the town that {who} came from?", [town["mayor"]], [who, town["name"]]),
            (
                "two_hop",
                f"In which town is the company for which {who} worked?",
                [employer["town"]],
                [who, employer["name"]],
            ),
            (
                "three_hop",
                f"Who is the mayor of the town where the company that {who} worked for is?",
                [towns[employer["town"]]["mayor"]],
                [who, employer["name"], employer["town"]],
            ),
        ]
    for company in made["companies"]:
        town = towns[company["town"]]
        found.append(
            ("one_hop", f"In which year was {company['name']} started?", [str(company["started"])], [company["name"]])
        )
        found.append(
            (
                "two_hop",
                f"When was the town in which {company['name']} is founded?",
                [str(town["founded"])],
                [company["name"], town["name"]],
            )
        )
    random.Random(f"questions {seed}").shuffle(found)
    return [
        {"id": f"world-{seed}-{i}", "question": question, "answers": answers, "type": kind, "titles": titles}
        for i, (kind, question, answers, titles) in enumerate(found)
    ]


def records(count: int, seed: int) -> Iterator[tuple[Source, Raw]]:
    for number, record in enumerate(questions(seed)[:count]):
        yield SOURCE, Raw(f"world {seed}/{number}", record)


def constant_baseline(asked: list[dict[str, Any]]) -> float:
    """The share of questions that the best constant answer gets right."""
    counts = Counter(answer for record in asked for answer in set(record["answers"]))
    return max(counts.values()) / len(asked)
