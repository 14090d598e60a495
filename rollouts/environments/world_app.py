"""Runs in the jail: a world's FastAPI application, called through ASGI without a port.

The code of a world binds a SQLAlchemy engine to some path when it is imported. Here every SQLite file that it opens is
the episode's own: `sqlite3.connect` is told where that lies (`Database`), whatever path the code names.

A synchronous endpoint runs on the event loop's thread, in a copy of the context and without a running loop, as it would
see it in a thread of FastAPI's pool: same answers, no hop between threads. One call runs at a time.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import os
import signal
import sqlite3
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

import anyio.to_thread

from rufus_plugins.rollouts.environments.world_asgi import Answer, body_of, scope_of
from rufus_plugins.rollouts.environments.world_rest import Memory, nothing_runs

_UNWIND_S = 2.0
"""For an endpoint to clean up after its deadline. Ours."""
_STARTUP_S = 30.0
_SQLITE_STEPS = 50_000
"""Instructions of SQLite's machine between two looks at the clock. Ours."""


async def _run_here(function: Callable[..., Any], *args: Any, **_options: Any) -> Any:
    """Instead of a worker thread."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return contextvars.copy_context().run(function, *args)
    finally:
        asyncio._set_running_loop(loop)


class Deadline(BaseException):
    """A call's time is over. No Exception: the world's own handlers would answer it."""


class Database:
    """Where SQLite files lie: one for the process."""

    def __init__(self) -> None:
        self.path = ""
        self.until = float("inf")
        self._connect = sqlite3.connect
        sqlite3.connect = sqlite3.dbapi2.connect = self.connect

    def connect(self, database: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        name = os.fsdecode(database) if isinstance(database, bytes | os.PathLike) else database
        if isinstance(name, str) and name not in ("", ":memory:") and "mode=memory" not in name:
            if name.startswith("file:") and options.get("uri"):
                query = "?" + name.partition("?")[2] if "?" in name else ""
                name = f"file:{self.path}{query}" if ":memory:" not in name else name
            else:
                name = self.path
        connection = self._connect(name, *args, **options)
        connection.set_progress_handler(self._late, _SQLITE_STEPS)
        if name == self.path:
            connection.execute("PRAGMA synchronous = OFF").close()  # the episode's file does not outlive its process
        return connection

    def _late(self) -> bool:
        return time.monotonic() > self.until

    def read(self) -> bytes:
        """The whole database with what a write-ahead log holds."""
        connection = self._connect(self.path)
        try:
            return connection.serialize()
        finally:
            connection.close()


database: Database | None = None
"""Set by `prepare`."""


def prepare() -> None:
    """Before FastAPI is imported: one of its modules keeps the name that is replaced here."""
    global database
    anyio.to_thread.run_sync = _run_here
    database = Database()


_engines: dict[int, Any] = {}
"""Those found so far: what was frozen before a fork is found no more."""


def still_open() -> str:
    """What of the world's state a fork would not carry over: "" or its name. Engines are emptied first."""
    engine = sys.modules.get("sqlalchemy.engine")
    if engine is not None:
        _engines.update({id(o): o for o in gc.get_objects() if isinstance(o, engine.Engine)})
        for found in _engines.values():
            found.dispose()
    gc.collect()
    for found in [o for o in gc.get_objects() if isinstance(o, sqlite3.Connection)]:
        try:
            found.total_changes  # noqa: B018  raises where it is closed
        except sqlite3.ProgrammingError:
            continue
        return "a connection"
    return "a thread" if threading.active_count() > 1 else ""


class Application:
    """The loaded code of a world."""

    def __init__(self, source: str):
        module = types.ModuleType("world")
        module.__file__ = "world.py"
        sys.modules["world"] = module
        if "fastapi_mcp" not in sys.modules:
            sys.modules["fastapi_mcp"] = _no_mcp()
        os.environ["DATABASE_PATH"] = os.environ["DATABASE_URL"] = "sqlite:///world.db"
        exec(compile(source, "world.py", "exec", dont_inherit=True), module.__dict__)
        from fastapi import FastAPI

        app = module.__dict__.get("app")
        if not isinstance(app, FastAPI):
            found = [value for value in vars(module).values() if isinstance(value, FastAPI)]
            if not found:
                raise LookupError("the code makes no FastAPI application")
            app = found[0]
        self._set(app)
        self.memory = Memory(module, app)

    @classmethod
    def of(cls, app: Any) -> Application:
        self = cls.__new__(cls)
        self._set(app)
        return self

    def _set(self, app: Any) -> None:
        self.app = app
        self.loop: asyncio.AbstractEventLoop | None = None
        self._alive: Any = None
        self._calling = False
        self.memory: Memory | None = None

    def may_rest(self) -> bool:
        """Whether a new fork of the loaded world would go on as this process does."""
        return self.rests and self.memory.unchanged() and nothing_runs(self.loop) and not still_open()

    @property
    def rests(self) -> bool:
        """Whether the world has nothing that keeps its processes from resting, as far as is known."""
        return self.memory is not None and self.memory.first is not None and not self._has_lifespan()

    def _has_lifespan(self) -> bool:
        router = self.app.router
        plain = type(getattr(router, "lifespan_context", None)).__name__ == "_DefaultLifespan"
        return not plain or bool(getattr(router, "on_startup", ()) or getattr(router, "on_shutdown", ()))

    def settle(self) -> None:
        """What the first request would make, made before the forks."""
        if self.app.middleware_stack is None:
            self.app.middleware_stack = self.app.build_middleware_stack()
        orm = sys.modules.get("sqlalchemy.orm")
        if orm is not None:
            try:
                orm.configure_mappers()
            except Exception:  # the request that needs the mapping will say so
                pass
        if self.memory is not None:  # with what was made here
            self.memory = Memory(self.memory.module, self.app)

    def specification(self) -> bytes:
        return json.dumps(self.app.openapi(), default=str).encode("utf-8", "replace")

    def open(self) -> None:
        """Start-up handlers; in the process that will answer the calls."""
        self.loop = asyncio.new_event_loop()
        signal.signal(signal.SIGALRM, self._alarm)
        if self.memory is not None:
            self.memory.begin()
        if self._has_lifespan():
            self._in_time(self._start_up(), _STARTUP_S)

    def close(self) -> None:
        """Shut-down handlers."""
        if self._alive is not None:
            self._in_time(self._shut_down(), _STARTUP_S)

    def call(self, request: Mapping[str, Any], timeout_s: float, keep: int) -> dict[str, Any]:
        """One request: `{"status", "body"}`, status 0 where time was over before an answer."""
        answer = Answer(keep)
        try:
            self._in_time(self.app(scope_of(request), body_of(request), answer), timeout_s)
        except Deadline:
            return {"status": 0, "body": ""}
        except BaseException as error:  # Starlette raises again what it has answered with 500
            if answer.status is None:
                said = traceback.format_exception_only(error)[-1].strip()
                return {"status": 500, "body": f"Internal Server Error ({said})"[:keep]}
        return {"status": answer.status if answer.status is not None else 500, "body": answer.text()}

    def _in_time(self, work: Any, seconds: float) -> None:
        task = self.loop.create_task(work)
        database.until = time.monotonic() + seconds
        self._calling = True
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            self.loop.run_until_complete(task)
        except Deadline:
            self._unwind(task)
            raise
        finally:
            self._calling = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            database.until = float("inf")

    def _unwind(self, task: asyncio.Task) -> None:
        """Lets the call clean up. The loop may be in any state then: a new one takes its place."""
        old, self.loop = self.loop, asyncio.new_event_loop()
        asyncio._set_running_loop(None)
        try:
            task.cancel()
            signal.setitimer(signal.ITIMER_REAL, _UNWIND_S)
            old.run_until_complete(asyncio.wait([task], timeout=_UNWIND_S / 2))
        except BaseException:
            pass
        self._alive = None

    def _alarm(self, *_: Any) -> None:
        if self._calling:
            self._calling = False
            raise Deadline

    # -- lifespan ---------------------------------------------------------------------------------

    async def _start_up(self) -> None:
        state = {"asked": asyncio.Event(), "said": asyncio.Queue()}
        state["asked"].set()
        told = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> dict[str, Any]:
            await state["asked"].wait()
            state["asked"].clear()
            return {"type": next(told)}

        async def send(message: Mapping[str, Any]) -> None:
            await state["said"].put(message)

        running = asyncio.ensure_future(self.app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send))
        asked = asyncio.ensure_future(state["said"].get())
        await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
        if asked.done() and asked.result()["type"] == "lifespan.startup.failed":
            raise RuntimeError(f"start-up failed: {asked.result().get('message', '')[-1500:]}")
        if not asked.done():
            asked.cancel()
            running.result()  # an application without lifespan returns or raises: uvicorn goes on as well
        self._alive = (running, state)

    async def _shut_down(self) -> None:
        running, state = self._alive
        self._alive = None
        state["asked"].set()
        await asyncio.wait([running], timeout=_STARTUP_S / 2)


def _no_mcp() -> types.ModuleType:
    """Generated code may mount its own MCP server; nobody connects to it here."""

    class FastApiMCP:
        def __init__(self, *args: Any, **options: Any): ...

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **options: None

    module = types.ModuleType("fastapi_mcp")
    module.FastApiMCP = FastApiMCP
    return module
