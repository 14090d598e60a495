"""A loaded world rehearses its operations before episodes fork from it: what its libraries make is shared, and nothing
else of it is ever seen."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest

from rufus_plugins.rollouts.environments.world_data import World
from rufus_plugins.rollouts.environments.world_host import WorldHost

HEAD = """
import os, time
from fastapi import FastAPI, Query
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, text
engine = create_engine("sqlite:///x.db", connect_args={"check_same_thread": False})
app = FastAPI()
@app.get("/compiled", operation_id="compiled")
def compiled():
    return len(engine._compiled_cache)
@app.get("/notes", operation_id="notes")
def notes():
    with engine.connect() as db:
        return [row[0] for row in db.execute(text("SELECT body FROM notes ORDER BY id"))]
@app.post("/notes", operation_id="add")
def add(body: str):
    with engine.begin() as db:
        db.execute(text("INSERT INTO notes (body) VALUES (:b)"), {"b": body})
"""


def answers(code: str, *names: str) -> tuple[list[tuple[int, str]], int]:
    """Of the first calls of an episode; how many processes of the world were started."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT); INSERT INTO notes VALUES (1, 'a')"
    )

    async def work():
        host = WorldHost()
        try:
            one = World("rehearsed", HEAD + code, [], [])
            tools = {tool.name: tool for tool in await host.start("e", one, connection.serialize())}
            replies = await host.call("e", [tools[name].request({}) for name in names])
            return [(reply.status, reply.body) for reply in replies], host.started
        finally:
            await host.shutdown()

    return asyncio.run(work())


def test_an_episode_finds_statements_compiled_and_the_database_as_it_was():
    ((_, compiled), notes), started = answers("", "compiled", "notes")
    assert int(compiled) == 2  # SELECT and INSERT, before its first call
    assert notes == (200, '["a"]') and started == 1


KEEPERS = {
    "app": """
app.calls = 0
@app.get("/n", operation_id="n")
def count():
    app.calls += 1
    return app.calls
""",
    "only after the trial": """
calls = []
@app.get("/n", operation_id="n")
def count():
    if not os.getcwd().endswith("trial"):
        calls.append(1)
    return len(calls)
""",
}


@pytest.mark.parametrize(("kind", "processes"), [("app", 1), ("only after the trial", 2)])
def test_what_a_world_would_remember_of_a_rehearsal_is_in_no_episode(kind, processes):
    """Also where the fork that tries the calls is told apart: the world is loaded anew then, without a rehearsal."""
    assert answers(KEEPERS[kind], "n", "n") == ([(200, "1"), (200, "2")], processes)


def test_calls_that_leave_hang_or_fill_the_disk_in_a_rehearsal_cost_it_and_nothing_else():
    for act in ("os._exit(3)", "time.sleep(1000)", "[open(f'{i}', 'wb').write(bytes(1 << 20)) for i in range(1000)]"):
        code = f'@app.get("/a", operation_id="a")\ndef a(k: str = Query("x")):\n    {act}\n'
        replies, started = answers(code, "compiled", "notes")
        assert replies[1] == (200, '["a"]') and started == 1, act
        assert int(replies[0][1]) == 1, act  # what came before it was rehearsed: the SELECT


def test_a_rehearsal_calls_each_operation_with_what_it_requires_and_with_all_it_takes():
    from rufus_plugins.rollouts.environments import world_rehearsal

    integer = {"type": "integer", "minimum": 3}
    body = {
        "type": "object",
        "required": ["name", "kind"],
        "properties": {
            "name": {"type": "string", "minLength": 4},
            "kind": {"enum": ["x", "y"]},
            "price": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }
    document = {
        "paths": {
            "/things": {
                "post": {
                    "operationId": "make",
                    "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                }
            },
            "/things/{id}": {
                "get": {
                    "operationId": "one",
                    "parameters": [
                        {"name": "id", "in": "path", "required": True, "schema": integer},
                        {"name": "day", "in": "query", "schema": {"type": "string", "format": "date"}},
                    ],
                }
            },
        }
    }
    made = world_rehearsal.requests(json.dumps(document).encode())
    assert [(one["method"], one["path"], one.get("query")) for one in made] == [
        ("GET", "/things/3", None),
        ("GET", "/things/3", "day=2026-01-01"),
        ("POST", "/things", None),
        ("POST", "/things", None),
    ]
    assert [json.loads(one["body"]) for one in made[2:]] == [
        {"name": "aaaa", "kind": "x"},
        {"name": "aaaa", "kind": "x", "price": 1, "tags": ["a"]},
    ]
    assert world_rehearsal.requests(b"{}") == []
