"""General Agent: two calls that change a house's lamps, for `environment=mcp` and `post_state`.

"Turn on the lamp in the hall. Make the one in the attic red." The world is AgentWorldModel's format: `write_world`
makes the folder that `rufus.environment.worlds` names. A task is done if exactly what it asks for has changed. The
careless teacher forgets the second half.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rufus_plugins.recipes.tiny.families import Family, Item, calls, says, user

SCENARIO = "lamps"
ROOMS = "attic bath cellar den garage hall kitchen loft".split()
COLOURS = "red green blue white amber".split()
SIZE = 600
"""Ours."""


def _tool(name: str, **properties: str) -> dict:
    parameters = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}}
    parameters["required"] = list(properties)
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


FAMILY = Family(
    "general_agent",
    "tiny_lamps",
    {"name": "post_state"},
    {"name": "mcp"},
    [_tool("switch", room="string", on="boolean"), _tool("paint", room="string", colour="string")],
)

APP = '''"""Lamps in a house."""

import os

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine, text

engine = create_engine(os.environ.get("DATABASE_PATH", "sqlite:///lamps.db"), connect_args={"check_same_thread": False})
app = FastAPI(title="Lamps")


class Switch(BaseModel):
    room: str
    on: bool


class Paint(BaseModel):
    room: str
    colour: str


def change(room, column, value):
    with engine.begin() as db:
        done = db.execute(text(f"UPDATE lamp SET {column} = :value WHERE room = :room"), {"value": value, "room": room})
        if not done.rowcount:
            raise HTTPException(404, f"there is no lamp in {room}")
    return {"room": room, column: value}


@app.post("/switch", operation_id="switch")
def switch(body: Switch):
    return change(body.room, "is_on", int(body.on))


@app.post("/paint", operation_id="paint")
def paint(body: Paint):
    return change(body.room, "colour", body.colour)
'''

_VERIFIER = """def verify_task_completion(initial_db_path, final_db_path, final_answer=None):
    import sqlite3

    def lamps(path):
        return {{r[0]: r[1:] for r in sqlite3.connect(path).execute("SELECT room, is_on, colour FROM lamp")}}

    wanted = lamps(initial_db_path)
    wanted[{first!r}] = ({on}, wanted[{first!r}][1])
    wanted[{second!r}] = (wanted[{second!r}][0], {colour!r})
    return {{"result": "complete" if lamps(final_db_path) == wanted else "others"}}
"""


def initial() -> dict[str, tuple[int, str]]:
    """Room -> (is on, colour)."""
    return {room: (at % 2, "plain") for at, room in enumerate(ROOMS)}


def items(seed: int) -> list[Item]:
    rng = random.Random(f"lamps {seed}")
    every = [(a, b, colour, way) for a, b in itertools.permutations(ROOMS, 2) for colour in COLOURS for way in range(4)]
    return [_item(*parts) for parts in rng.sample(every, SIZE)]


def _item(first: str, second: str, colour: str, way: int) -> Item:
    on = 1 - initial()[first][0]
    word = "on" if on else "off"
    text = (
        f"Turn {word} the lamp in the {first}. Make the one in the {second} {colour}.",
        f"The {first} lamp {word}, please. The {second} lamp {colour}.",
        f"Switch {word} the {first}, and paint the {second} {colour}.",
        f"I want the {first} {word} and the {second} {colour}.",
    )[way]
    one = calls("switch", {"room": first, "on": bool(on)}, json.dumps({"room": first, "is_on": on}))
    two = calls("paint", {"room": second, "colour": colour}, json.dumps({"room": second, "colour": colour}))
    return Item(
        f"{first} {second} {colour} {way}",
        user(text),
        {"verifier": _VERIFIER.format(first=first, second=second, colour=colour, on=on)},
        (*one, *two, *says("Done.")),
        (*one, *says("Done.")),
        {"scenario": SCENARIO},
    )


def write_world(folder: Path, found: Sequence[Item]) -> None:
    """AgentWorldModel's files for these items."""
    folder.mkdir(parents=True, exist_ok=True)
    ddl = "CREATE TABLE lamp (room TEXT PRIMARY KEY, is_on INTEGER NOT NULL, colour TEXT NOT NULL)"
    inserts = [f"INSERT INTO lamp VALUES ('{room}', {on}, '{colour}')" for room, (on, colour) in initial().items()]
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
    """The fixed pair of calls that solves most items, and its share. One call or none solves none of them: every item
    needs two changes."""
    pairs = Counter(
        json.dumps([m["tool_calls"][0]["function"] for m in item.right if m.get("tool_calls")]) for item in found
    )
    calls_, count = pairs.most_common(1)[0]
    return calls_, count / len(found)
