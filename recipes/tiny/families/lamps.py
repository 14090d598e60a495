"""General Agent: one call that finds a lamp and two that change it, for `environment=mcp` and `post_state`.

"Turn on @KoRa's lamp and make it red." `find` gives the lamp's number, `switch` and `paint` want it and refuse a lamp
that was not found in this episode. The world is AgentWorldModel's format: `write_world` makes the folder that
`rufus.environment.worlds` names. A task is done if exactly what it asks for has changed. The careless teacher forgets
the last change.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

from rufus_plugins.recipes.tiny.families import Family, Item, calls, commonest_calls, names, says, tool, user

SCENARIO = "lamps"
PEOPLE, LAMPS = 40, range(10, 100)
COLOURS = "red green blue white amber".split()
SIZE = 600
"""Ours."""

WORDINGS = (
    "Turn {word} @{who}'s lamp and make it {colour}.",
    "@{who}'s lamp: {word}, {colour}.",
    "Switch {word} the lamp of @{who}, paint it {colour}.",
    "I want @{who}'s lamp {word} and {colour}.",
)

FAMILY = Family(
    "general_agent",
    "tiny_lamps",
    {"name": "post_state"},
    {"name": "mcp"},
    (
        tool("find", who="string"),
        tool("switch", lamp="integer", on="boolean"),
        tool("paint", lamp="integer", colour="string"),
    ),
)

APP = '''"""Lamps in a house."""

import os

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine, text

engine = create_engine(os.environ.get("DATABASE_PATH", "sqlite:///lamps.db"), connect_args={"check_same_thread": False})
app = FastAPI(title="Lamps")


class Find(BaseModel):
    who: str


class Switch(BaseModel):
    lamp: int
    on: bool


class Paint(BaseModel):
    lamp: int
    colour: str


def change(lamp, column, value):
    with engine.begin() as db:
        done = db.execute(
            text(f"UPDATE lamp SET {column} = :value WHERE id = :lamp AND found = 1"), {"value": value, "lamp": lamp}
        )
        if not done.rowcount:
            raise HTTPException(404, "find it first")
    return 1


@app.post("/find", operation_id="find")
def find(body: Find):
    with engine.begin() as db:
        row = db.execute(text("SELECT id FROM lamp WHERE who = :who"), {"who": body.who}).fetchone()
        if row is None:
            raise HTTPException(404, "nobody")
        db.execute(text("UPDATE lamp SET found = 1 WHERE id = :lamp"), {"lamp": row[0]})
    return row[0]


@app.post("/switch", operation_id="switch")
def switch(body: Switch):
    return change(body.lamp, "is_on", int(body.on))


@app.post("/paint", operation_id="paint")
def paint(body: Paint):
    return change(body.lamp, "colour", body.colour)
'''

_VERIFIER = """def verify_task_completion(initial_db_path, final_db_path, final_answer=None):
    import sqlite3

    def lamps(path):
        return {{r[0]: r[1:] for r in sqlite3.connect(path).execute("SELECT who, is_on, colour FROM lamp")}}

    wanted = lamps(initial_db_path)
    wanted[{who!r}] = ({on}, {colour!r})
    return {{"result": "complete" if lamps(final_db_path) == wanted else "others"}}
"""


def initial(seed: int) -> dict[str, tuple[int, int, str]]:
    """Who -> (number, is on, colour)."""
    rng = random.Random(f"lamps {seed}")
    people, numbers = names(PEOPLE, rng), rng.sample(LAMPS, PEOPLE)
    return {who: (numbers[at], at % 2, "plain") for at, who in enumerate(people)}


def items(seed: int) -> list[Item]:
    state = initial(seed)
    every = list(itertools.product(state, COLOURS, range(len(WORDINGS))))
    return [_item(who, *state[who][:2], colour, way) for who, colour, way in random.Random(seed).sample(every, SIZE)]


def _item(who: str, number: int, was_on: int, colour: str, way: int) -> Item:
    on = 1 - was_on
    one = calls("find", {"who": who}, str(number))
    two = calls("switch", {"lamp": number, "on": bool(on)}, "1")
    three = calls("paint", {"lamp": number, "colour": colour}, "1")
    return Item(
        f"{who} {colour} {way}",
        user(WORDINGS[way].format(word="on" if on else "off", who=who, colour=colour)),
        {"verifier": _VERIFIER.format(who=who, on=on, colour=colour)},
        (*one, *two, *three, *says("Done.")),
        (*one, *two, *says("Done.")),
        {"scenario": SCENARIO},
        f"{who} {colour}",
    )


def files(folder: Path, found: Sequence[Item], seed: int) -> None:
    write_world(folder / "worlds", found, seed)


def overrides(folder: Path) -> dict[str, Path]:
    return {"rufus.environment.worlds": folder / "worlds"}


def write_world(folder: Path, found: Sequence[Item], seed: int) -> None:
    """AgentWorldModel's files for these items."""
    folder.mkdir(parents=True, exist_ok=True)
    ddl = (
        "CREATE TABLE lamp (id INTEGER PRIMARY KEY, who TEXT NOT NULL, is_on INTEGER NOT NULL, colour TEXT NOT NULL, "
        "found INTEGER NOT NULL)"
    )
    inserts = [
        f"INSERT INTO lamp VALUES ({number}, '{who}', {on}, '{colour}', 0)"
        for who, (number, on, colour) in initial(seed).items()
    ]
    sample = {"tables": [{"table_name": "lamp", "insert_statements": inserts}]}
    lines: dict[str, list[dict]] = {
        "gen_tasks": [{"scenario": SCENARIO, "tasks": [item.prompt[0]["content"] for item in found]}],
        "gen_db": [{"scenario": SCENARIO, "db_schema": {"tables": [{"name": "lamp", "ddl": ddl, "indexes": []}]}}],
        "gen_sample": [{"scenario": SCENARIO, "sample_data": sample}],
        "gen_envs": [{"scenario": SCENARIO, "db_path": "lamps.db", "full_code": APP}],
        "gen_verifier.pure_code": [
            {"scenario": SCENARIO, "task_idx": at, "verification": {"code": item.ground_truth["verifier"]}}
            for at, item in enumerate(found)
        ],
    }
    for name, content in lines.items():
        text = "".join(json.dumps(line) + "\n" for line in content)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The fixed sequence of calls that solves most items, and its share: each is solved by its own three alone."""
    return commonest_calls(found)
