"""AgentWorldModel's format as it comes, and world code that means harm: what it costs, and whom."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rollouts.environments import world_host
from rufus_plugins.rollouts.environments.world_data import Library, World, initial_database, library, scenario_key
from rufus_plugins.rollouts.environments.world_host import WorldHost, WorldLimits
from rufus_plugins.rollouts.environments.world_tools import endpoints
from rufus_plugins.rollouts.tools import ToolResult
from rufus_plugins.types import Termination

HEAD = """
import os, sys, time, socket, subprocess, threading, sqlite3
from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine, text
engine = create_engine("sqlite:///./outputs/databases/anything.db", connect_args={"check_same_thread": False})
app = FastAPI()
"""
NOTES = """
@app.get("/notes", operation_id="notes")
def notes():
    with engine.connect() as db:
        return [row[0] for row in db.execute(text("SELECT body FROM notes ORDER BY id"))]

@app.post("/notes", operation_id="add")
def add(body: str):
    with engine.begin() as db:
        db.execute(text("INSERT INTO notes (body) VALUES (:b)"), {"b": body})
    return {"ok": True}
"""
DDL = ["CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT, at TEXT)"]
ROWS = ["INSERT INTO notes VALUES (1, 'first', datetime('now'))"]


def world(code: str, name: str = "attacked") -> World:
    return World(name, HEAD + NOTES + code, DDL, ROWS)


def database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript(";".join([*DDL, *ROWS]))
    return connection.serialize()


def run(work, backend="auto"):
    """Plays on a host of its own."""

    async def guarded():
        host = WorldHost(limits=WorldLimits(disk_mb=8, memory_mb=256), backend=backend)
        try:
            return await work(host)
        finally:
            await host.shutdown()

    return asyncio.run(guarded())


class Player:
    def __init__(self, host: WorldHost, one: World):
        self.host, self.world, self.tools = host, one, {}

    async def start(self, *ids: str) -> Player:
        for id in ids:
            found = await self.host.start(id, self.world, database())
            self.tools = {endpoint.name: endpoint for endpoint in found}
        return self

    async def __call__(self, id: str, name: str, timeout_s: float = 10.0, **arguments):
        reply = (await self.host.call(id, [self.tools[name].request(arguments)], timeout_s))[0]
        return reply.status, reply.body


# -- the format ------------------------------------------------------------------------------------------------------


def written(folder: Path, name: str = "My World!", code: str = HEAD + NOTES, ddl=DDL, rows=ROWS) -> Library:
    folder.mkdir(exist_ok=True)
    lines = {
        "gen_db.jsonl": {"db_schema": {"tables": [{"name": "notes", "ddl": one, "indexes": []} for one in ddl]}},
        "gen_sample.jsonl": {"sample_data": {"tables": [{"table_name": "notes", "insert_statements": list(rows)}]}},
        "gen_envs.jsonl": {"db_path": "x.db", "full_code": code},
        "gen_tasks.jsonl": {"tasks": ["one", "two"]},
    }
    for file, line in lines.items():
        (folder / file).write_text(json.dumps({"scenario": name, **line}) + "\n")
    return Library(folder)


def test_scenarios_are_joined_by_the_plain_form_of_their_name(tmp_path):
    assert [scenario_key(n) for n in ("My World!", "my__world", " E-Commerce 33 ")] == [
        "my_world",
        "my_world",
        "e_commerce_33",
    ]
    found = written(tmp_path)
    assert found.scenarios == ["my_world"] and found.tasks("MY WORLD") == ["one", "two"]
    with pytest.raises(DataError, match="no scenario 'other'; there are my_world"):
        found.world("other")
    with pytest.raises(DataError, match="cannot be read"):
        found.verifier("my world", 0)


def test_a_database_with_now_in_its_rows_is_made_once(tmp_path):
    one = written(tmp_path / "w").world("my world")
    first = asyncio.run(initial_database(one, tmp_path / "cache"))
    before = first.read_bytes()
    assert asyncio.run(initial_database(one, tmp_path / "cache")) == first and first.read_bytes() == before
    with contextlib.closing(sqlite3.connect(first)) as connection:
        body, at = connection.execute("SELECT body, at FROM notes").fetchone()
    assert body == "first" and at.startswith("20")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"ddl": ["CREATE TABLE notes (id INTEGER PRIMARY KEY,)"]}, "table or index 1: near"),
        ({"rows": ["INSERT INTO nowhere VALUES (1)"]}, "row 1: no such table: nowhere; in 'INSERT INTO nowhere"),
        ({"rows": ROWS * 2}, "row 2: UNIQUE constraint failed"),
        ({"rows": ["WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT count(*) FROM c"]}, "timeout"),
        (
            {"rows": ["ATTACH DATABASE '/etc/planted.db' AS p; CREATE TABLE p.t (x)"]},
            "unable to open|read-only|readonly",
        ),
    ],
)
def test_statements_that_fail_are_named(parts, message, tmp_path, monkeypatch):
    from rufus_plugins.rollouts.environments import world_data

    monkeypatch.setattr(world_data, "_BUILD_S", 2.0)
    one = written(tmp_path / "w", **parts).world("my world")
    with pytest.raises(DataError, match=f"the database of the world 'my_world' cannot be made: .*({message})"):
        asyncio.run(initial_database(one, tmp_path / "cache"))


def test_a_folder_or_line_that_is_none_is_told(tmp_path):
    with pytest.raises(ConfigError, match="gen_db.jsonl, gen_sample.jsonl, gen_envs.jsonl is missing"):
        Library(tmp_path)
    found = written(tmp_path)
    (tmp_path / "gen_envs.jsonl").write_text('{"scenario": "a"}\nnot json\n')
    with pytest.raises(DataError, match="gen_envs.jsonl, line 2: no record with a scenario"):
        found.scenarios  # noqa: B018


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_of_the_kind", "does not load: .*No module named 'nothing_of_the_kind'"),
        ("def broken(:", "does not load: .*SyntaxError"),
        ("app = None", "makes no FastAPI application"),
        ("os._exit(0)", "ended its process as it was loaded"),
        ("sys.exit(1)", "does not load: .*SystemExit"),
        ("while True: pass", "does not load within 2 s"),
        ("app.openapi = lambda: 7", "no OpenAPI document"),
        ("@app.on_event('startup')\ndef up(): raise ValueError('no start')", "does not start: .*no start"),
    ],
)
def test_code_that_does_not_load_says_why(code, message, monkeypatch):
    monkeypatch.setattr(world_host, "_LOAD_S", 2.0 if "while" in code else 90.0)

    async def work(host):
        with pytest.raises(DataError, match=f"(?s){message}"):
            await host.start("a", world(code), database())

    run(work)


# -- the same answers as over HTTP -----------------------------------------------------------------------------------


def test_a_jailed_world_answers_as_its_server_would(tmp_path, monkeypatch):
    """Our shop over FastAPI's own thread pool (httpx's ASGI transport) and in the jail, call by call."""
    import runpy
    import types

    import httpx

    solutions = runpy.run_path(str(Path(__file__).with_name("world_solutions.py")))
    calls = [call for solution, _ in [*solutions["SOLUTIONS"]["shop"], *solutions["NEAR"]["shop"]] for call in solution]
    calls += [("get_product", {"product_id": "x"}), ("add_item", {"order_id": 103, "product_id": 4, "quantity": 0})]
    one = library("builtin").world("shop")
    path = asyncio.run(initial_database(one, tmp_path))
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    monkeypatch.setenv("DATABASE_PATH", f"sqlite:///{copy}")
    module = types.ModuleType("shop_over_http")
    monkeypatch.setitem(__import__("sys").modules, "shop_over_http", module)
    exec(compile(one.code, "shop.py", "exec"), module.__dict__)

    async def work(host):
        tools = {tool.name: tool for tool in await host.start("a", one, path)}
        transport = httpx.ASGITransport(module.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            seen = set()
            for name, arguments in calls:
                request = tools[name].request(arguments)
                reply = (await host.call("a", [request]))[0]
                url = request["path"] + ("?" + request["query"] if "query" in request else "")
                headers = {"content-type": request["type"]} if "body" in request else {}
                wanted = await client.request(request["method"], url, content=request.get("body"), headers=headers)
                assert (reply.status, reply.body) == (wanted.status_code, wanted.text), (name, arguments)
                seen.add(reply.status)
        assert {200, 201, 402, 409, 422} <= seen

    run(work)


def test_sync_code_sees_no_loop_and_a_context_of_its_own():
    code = """
import asyncio, contextvars
from fastapi import Depends
mark = contextvars.ContextVar("mark", default="unset")
def sets():
    mark.set("by the dependency")
@app.get("/a", operation_id="a")
def a(_=Depends(sets)):
    async def inner():
        await asyncio.sleep(0)
        return "ran"
    return [asyncio.run(inner()), mark.get()]
"""

    async def work(host):
        play = await Player(host, world(code)).start("x")
        assert await play("x", "a") == (200, '["ran","unset"]')
        assert await play("x", "notes") == (200, '["first"]')

    run(work)


# -- code that means harm --------------------------------------------------------------------------------------------

HARM = """
import random
counter = {"n": 0}

@app.get("/exit", operation_id="leave")
def leave():
    os._exit(0)

@app.get("/loop", operation_id="loop")
def loop():
    while True: pass

@app.get("/deaf", operation_id="deaf")
def deaf():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@app.get("/query", operation_id="query")
def query():
    with engine.connect() as db:
        sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
        return db.execute(text(sql)).scalar()

@app.get("/flood", operation_id="flood")
def flood():
    for _ in range(100000):
        print("x" * 100)
        print("x" * 100, file=sys.stderr)
    os.write(1, b"y" * 10_000_000)
    return "flooded"

@app.get("/big", operation_id="big")
def big():
    return "B" + "x" * (10 << 20) + "E"

@app.get("/fill", operation_id="fill")
def fill():
    for i in range(40):
        with open(f"file{i}", "wb") as file:
            file.write(b"x" * (1 << 20))
    time.sleep(5)
    return "filled"

@app.get("/memory", operation_id="memory")
def memory():
    return len(bytearray(1 << 30))

@app.get("/count", operation_id="count")
def count():
    counter["n"] += 1
    return counter["n"]

@app.get("/reach", operation_id="reach")
def reach():
    found = []
    def threads():
        for _ in range(10000):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    attempts = {
        "network": lambda: socket.socket(),
        "fork": lambda: os.fork(),
        "program": lambda: subprocess.run(["/bin/true"]),
        "signal": lambda: os.kill(os.getppid(), 0),
        "siblings' folders": lambda: os.listdir(".."),
        "write": lambda: open("/scratch/planted", "w"),
        "system": lambda: open("/usr/planted", "w"),
        "parent's environment": lambda: open("/proc/1/environ").read(),
        "parent's memory": lambda: open("/proc/1/mem", "rb").read(1),
        "host's files": lambda: open("/root/.bashrc").read(),
        "passwords": lambda: open("/etc/passwd").read(),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
            found.append(name)
        except Exception:
            pass
    return found
"""


def test_hostile_code_reaches_nothing_and_costs_only_its_own_episode():
    async def work(host):
        play = await Player(host, world(HARM)).start("a", "b", "c", "d", "e")
        assert await play("a", "reach") == (200, "[]")
        assert await play("a", "flood", timeout_s=30) == (200, '"flooded"')
        status, body = await play("a", "big")
        assert status == 200 and body.startswith('"Bxxx') and body.endswith('xxxE"') and len(body) < 100_000
        assert f"{(10 << 20) + 4 - 80_000} bytes left out" in body
        status, body = await play("a", "memory")
        assert status == 500
        # a deadline that the code cannot swallow: told, and the episode goes on
        for name in ("loop", "query"):
            status, _ = await play("a", name, timeout_s=1.0)
            assert status in (0, 500)
        assert await play("a", "notes") == (200, '["first"]')
        # state of the module is the episode's own
        assert [await play("a", "count"), await play("a", "count"), await play("b", "count")] == [
            (200, "1"),
            (200, "2"),
            (200, "1"),
        ]
        for id, name in (("c", "leave"), ("d", "fill")):
            with pytest.raises(InfrastructureError) as caught:
                await play(id, name)
            assert caught.value.termination is Termination.ENVIRONMENT_LOST
        await play("b", "add", body="mine")
        assert await play("b", "notes") == (200, '["first","mine"]')
        assert await play("a", "notes") == (200, '["first"]')
        assert host.lost == 2 and host.started == 1

    run(work)


def test_where_namespaces_are_forbidden_landlock_holds_a_world():
    """The code is then loaded for every episode, in a process that cannot fork."""

    async def work(host):
        play = await Player(host, world(HARM)).start("a", "b")
        assert await play("a", "reach") == (200, "[]")
        await play("a", "add", body="mine")
        assert await play("b", "notes") == (200, '["first"]')
        with pytest.raises(InfrastructureError):
            await play("a", "leave")
        assert len(await host.finish("b")) > 4096

    run(work, "landlock")


def test_code_that_swallows_its_deadline_is_killed(monkeypatch):
    monkeypatch.setattr(world_host, "_GRACE_S", 1.5)

    async def work(host):
        play = await Player(host, world(HARM)).start("a", "b")
        with pytest.raises(InfrastructureError, match="did not answer within 2 s"):
            await play("a", "deaf", timeout_s=0.5)
        with pytest.raises(InfrastructureError, match="the episode is lost"):
            await play("a", "notes")
        assert await play("b", "notes") == (200, '["first"]')

    run(work)


def test_killing_a_world_loses_its_episodes_and_the_next_one_starts_anew():
    async def work(host):
        play = await Player(host, world(HARM)).start(*"abcd")
        loops = [asyncio.create_task(play(id, "loop", timeout_s=60)) for id in "abcd"]
        await asyncio.sleep(0.5)
        (pid,) = host.pids.values()
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        results = await asyncio.gather(*loops, return_exceptions=True)
        assert {getattr(one, "termination", one) for one in results} == {Termination.ENVIRONMENT_LOST}
        assert time.monotonic() - start < 20  # at once, not at a deadline
        await play.start("e")
        assert await play("e", "notes") == (200, '["first"]')
        assert host.started == 2
        for id in "abcde":
            await host.close(id)
        assert host.episodes == 0

    run(work)


def test_nothing_is_left_when_the_owner_is_killed(tmp_path):
    """A spinning call, and a world whose code never ends to load."""
    (tmp_path / "codes.json").write_text(json.dumps([HEAD + NOTES + HARM, HEAD + "while True: pass", DDL, ROWS]))
    source = f"""
import asyncio, json, sqlite3
from rufus_plugins.rollouts.environments.world_data import World
from rufus_plugins.rollouts.environments.world_host import WorldHost
first, second, ddl, rows = json.load(open({str(tmp_path / "codes.json")!r}))
connection = sqlite3.connect(":memory:")
connection.executescript(";".join([*ddl, *rows]))
async def main():
    host = WorldHost()
    tools = await host.start("a", World("one", first, ddl, rows), connection.serialize())
    loop = next(tool for tool in tools if tool.name == "loop")
    waiting = [asyncio.create_task(host.call("a", [loop.request({{}})], 300.0)),
               asyncio.create_task(host.start("b", World("two", second, ddl, rows), connection.serialize()))]
    while host.started < 2:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await asyncio.gather(*waiting)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "ready\n"
    below, todo = [], [owner.pid]
    while todo:
        for path in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            todo += [int(word) for word in path.read_text().split()]
            below += [int(word) for word in path.read_text().split()]
    assert len(set(below)) >= 7  # two jails of three processes, and an episode
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until = time.monotonic() + 10
    while (left := [pid for pid in below if _lives(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_world_that_keeps_a_connection_is_loaded_for_every_episode():
    code = """
kept = sqlite3.connect("kept.db", check_same_thread=False)
@app.get("/kept", operation_id="kept_notes")
def kept_notes():
    return [row[0] for row in kept.execute("SELECT body FROM notes ORDER BY id")]
"""

    async def work(host):
        play = await Player(host, world(code)).start("a", "b")
        await play("a", "add", body="mine")
        assert await play("a", "kept_notes") == (200, '["first","mine"]')
        assert await play("b", "kept_notes") == (200, '["first"]')
        final = sqlite3.connect(":memory:")
        final.deserialize(await host.finish("a"))
        assert final.execute("SELECT count(*) FROM notes").fetchone() == (2,)

    run(work)


def test_what_a_world_writes_as_it_is_imported_or_started_is_in_every_episode():
    code = """
with engine.begin() as db:
    db.execute(text("INSERT INTO notes (body) VALUES ('imported')"))
@app.on_event("startup")
def up():
    with engine.begin() as db:
        db.execute(text("INSERT INTO notes (body) VALUES ('started')"))
@app.on_event("shutdown")
def down():
    with engine.begin() as db:
        db.execute(text("INSERT INTO notes (body) VALUES ('ended')"))
"""

    async def work(host):
        play = await Player(host, world(code)).start("a", "b")
        for id in "ab":
            assert await play(id, "notes") == (200, '["first","imported","started"]')
        final = sqlite3.connect(":memory:")
        final.deserialize(await host.finish("b"))
        bodies = [row[0] for row in final.execute("SELECT body FROM notes ORDER BY id")]
        assert bodies == ["first", "imported", "started", "ended"]

    run(work)


def test_episodes_in_write_ahead_mode_finish_with_all_they_wrote():
    code = """
with engine.connect() as db:
    db.execute(text("PRAGMA journal_mode = WAL"))
"""

    async def work(host):
        play = await Player(host, world(code)).start("a")
        await play("a", "add", body="mine")
        final = sqlite3.connect(":memory:")
        data = await host.finish("a")
        final.deserialize(data[:18] + b"\x01\x01" + data[20:])
        assert final.execute("SELECT count(*) FROM notes").fetchone() == (2,)

    run(work)


# -- OpenAPI to tools ------------------------------------------------------------------------------------------------


def test_operations_become_tools_with_flat_arguments():
    document = {
        "paths": {
            "/users/{id}/posts": {
                "parameters": [{"$ref": "#/components/parameters/id"}],
                "post": {
                    "operationId": "add_post",
                    "summary": "Adds",
                    "description": "Adds a post.",
                    "parameters": [
                        {"name": "tag", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                        {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    ],
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Post"}}},
                    },
                },
            }
        },
        "components": {
            "parameters": {
                "id": {
                    "name": "id",
                    "in": "path",
                    "required": True,
                    "description": "Whose",
                    "schema": {"type": "integer", "title": "Id"},
                }
            },
            "schemas": {
                "Post": {
                    "type": "object",
                    "title": "Post",
                    "required": ["id", "parent"],
                    "properties": {
                        "id": {"type": "string"},
                        "title": {"type": "string", "title": "Title"},
                        "parent": {"$ref": "#/components/schemas/Post"},
                    },
                }
            },
        },
    }
    (tool,) = endpoints(document)
    function = tool.schema["function"]
    assert (function["name"], function["description"]) == ("add_post", "Adds\n\nAdds a post.")
    assert function["parameters"]["required"] == ["id", "body_id", "parent"]
    properties = function["parameters"]["properties"]
    assert properties["id"] == {"type": "integer", "description": "Whose"}
    assert properties["title"] == {"type": "string"}
    assert properties["parent"] == {"type": "object"}  # it contains itself
    request = tool.request(
        {"id": 7, "tag": ["a b", "c&d"], "X-Trace": "t", "body_id": "p/1", "parent": None, "title": "Ü"}
    )
    assert request == {
        "method": "POST",
        "path": "/users/7/posts",
        "query": "tag=a+b&tag=c%26d",
        "headers": [("X-Trace", "t")],
        "type": "application/json",
        "body": json.dumps({"id": "p/1", "title": "Ü", "parent": None}),
    }
    for arguments, problem in (
        ({"id": 1, "nope": 2}, "no parameter 'nope'; parameters: id, tag"),
        ({}, "'id' is missing"),
        ({"id": ""}, "'id' is empty"),
        ({"id": 1, "X-Trace": "a\r\nb"}, "has a line break"),
    ):
        refused = tool.request(arguments)
        assert isinstance(refused, ToolResult) and problem in refused.text and not refused.started
    assert tool.request({"id": "../../x?y"})["path"] == "/users/..%2F..%2Fx%3Fy/posts"


@pytest.mark.parametrize(
    "document",
    [None, {}, {"paths": []}, {"paths": {"/a": {"get": {"parameters": [{"$ref": "#/x"}]}}}}, {"paths": {"/a": 7}}],
)
def test_what_is_no_openapi_document_is_refused(document):
    with pytest.raises(DataError, match="OpenAPI"):
        endpoints(document)


def test_names_are_made_callable_and_unique():
    paths = {f"/{i}": {"get": {"operationId": "x" * 90 if i else "a b"}} for i in range(3)}
    names = [tool.name for tool in endpoints({"paths": paths})]
    assert names[0] == "a_b" and len(set(names)) == 3 and all(len(name) <= 64 for name in names)


# -- processes that end between two calls ----------------------------------------------------------------------------

STATEFUL = {
    "a counter": """
n = {"calls": 0}
@app.get("/n", operation_id="n")
def count():
    n["calls"] += 1
    return n["calls"]
""",
    "a name that is bound anew": """
n = 0
@app.get("/n", operation_id="n")
def count():
    global n
    n += 1
    return n
""",
    "a class": """
class Counter:
    calls = 0
@app.get("/n", operation_id="n")
def count():
    Counter.calls += 1
    return Counter.calls
""",
    "an object": """
class Counter:
    def __init__(self): self.calls = 0
counter = Counter()
@app.get("/n", operation_id="n")
def count():
    counter.calls += 1
    return counter.calls
""",
    "a default": """
def bump(seen=[]):
    seen.append(1)
    return len(seen)
@app.get("/n", operation_id="n")
def count():
    return bump()
""",
    "a closure": """
def make():
    seen = []
    def bump():
        seen.append(1)
        return len(seen)
    return bump
bump = make()
@app.get("/n", operation_id="n")
def count():
    return bump()
""",
    "an iterator": """
import itertools
numbers = itertools.count(1)
@app.get("/n", operation_id="n")
def count():
    return next(numbers)
""",
    "the application": """
app.state.n = 0
@app.get("/n", operation_id="n")
def count():
    app.state.n += 1
    return app.state.n
""",
    "a cache": """
import functools
seen = functools.lru_cache()(lambda: time.time())
@app.get("/n", operation_id="n")
def count():
    seen()
    return seen.cache_info().hits + 1
""",
    "a hidden attribute": """
class Counter:
    _calls = 0
@app.get("/n", operation_id="n")
def count():
    Counter._calls += 1
    return Counter._calls
""",
    "a namespace": """
import types
kept = types.SimpleNamespace(n=0)
@app.get("/n", operation_id="n")
def count():
    kept.n += 1
    return kept.n
""",
    "a dependency": """
from typing import Annotated
from fastapi import Depends
def make():
    class Counter:
        calls = 0
        def __call__(self):
            self.calls += 1
            return self.calls
    return Depends(Counter())
@app.get("/n", operation_id="n")
def count(n: Annotated[int, make()]):
    return n
""",
    "a middleware": """
from starlette.responses import JSONResponse
class Counts:
    def __init__(self, app):
        self.app, self.calls = app, 0
    async def __call__(self, scope, receive, send):
        if scope["path"] == "/n":
            self.calls += 1
            return await JSONResponse(self.calls)(scope, receive, send)
        await self.app(scope, receive, send)
app.add_middleware(Counts)
@app.get("/n", operation_id="n")
def count(): ...
""",
    "the random numbers": """
import random
@app.get("/n", operation_id="n")
def count():
    random.seed(7) if random.random() and not hasattr(random, "calls") else None
    random.calls = getattr(random, "calls", 0) + 1
    return random.calls
""",
    "a function": """
def bump():
    bump.calls = getattr(bump, "calls", 0) + 1
    return bump.calls
@app.get("/n", operation_id="n")
def count():
    return bump()
""",
}


async def resting(host, play, *calls):
    """Answers of the calls on one episode, with time to rest between them."""
    host.awake, host.rest_after_s = 0, 0.1
    await play.start("a")
    answers = []
    for name, arguments in calls:
        answers.append(await play("a", name, **arguments))
        await asyncio.sleep(0.5)
    return answers


EVERYDAY = ("a counter", "a dependency")


@pytest.mark.parametrize(
    "kind", [kind if kind in EVERYDAY else pytest.param(kind, marks=pytest.mark.slow) for kind in STATEFUL]
)
def test_a_world_that_remembers_keeps_its_process(kind):
    async def work(host):
        answers = await resting(host, Player(host, world(STATEFUL[kind])), *[("n", {})] * 3)
        assert answers == [(200, "1"), (200, "2"), (200, "3")]
        assert host.lost == 0

    run(work)


def test_a_world_whose_memory_is_its_database_rests_between_calls():
    async def work(host):
        play = Player(host, world("CONSTANT = ['a', {'b': (1, 2.5)}]\n"))
        adds = [("add", {"body": str(i)}) for i in range(3)]
        answers = await resting(host, play, *adds, ("notes", {}))
        assert answers[-1] == (200, '["first","0","1","2"]')
        assert host.rested >= 3 and host.lost == 0 and host.started == 1
        final = sqlite3.connect(":memory:")
        final.deserialize(await host.finish("a"))
        assert final.execute("SELECT count(*) FROM notes").fetchone() == (4,)

    run(work)


def test_our_own_worlds_rest(tmp_path):
    reads = {"shop": "list_coupons", "desk": "list_agents", "bank": "list_rates"}

    async def work(host):
        host.awake, host.rest_after_s = 0, 0.1
        for name, read in reads.items():
            one = library("builtin").world(name)
            tools = {tool.name: tool for tool in await host.start(name, one, await initial_database(one, tmp_path))}
            assert (await host.call(name, [tools[read].request({})]))[0].status == 200
        await asyncio.sleep(1.5)
        assert host.rested >= 3

    run(work)


def test_episodes_that_end_while_they_rest_or_wake_leave_nothing_behind():
    async def work(host):
        host.awake, host.rest_after_s = 0, 0.05
        play = await Player(host, world("")).start(*"abcdefgh")

        async def busy(id):
            for i in range(6):
                await play(id, "add", body=str(i))
                await asyncio.sleep(0.11)
            if id in "abcd":
                await host.close(id)

        await asyncio.gather(*(busy(id) for id in "abcdefgh"))
        for id in "efgh":
            assert await play(id, "notes") == (200, json.dumps(["first", *"012345"], separators=(",", ":")))
        (pid,) = host.pids.values()
        for id in "efgh":
            await host.close(id)
        assert (host.episodes, host.lost) == (0, 0)
        guard = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        main = int(Path(f"/proc/{guard}/task/{guard}/children").read_text())
        for _ in range(100):
            left = Path(f"/proc/{main}/task/{main}/children").read_text().split()
            folders = os.listdir(f"/proc/{main}/root/scratch")
            if not left and not folders:
                break
            await asyncio.sleep(0.05)
        assert (left, folders) == ([], [])

    run(work)
