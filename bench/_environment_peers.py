"""The peers of bench/environments.py: the same worlds as HTTP servers, one uvicorn process and database each.

`rest` calls the FastAPI routes by httpx. `mcp` calls MCP tools over streamable HTTP, which is how AgentWorldModel
serves its worlds: the SDK's server and client, a session per episode. Both have what favours them: kept connections, no
access log, JSON answers instead of event streams, the FastAPI application called in the MCP server's own process; no
jail, no reset, no database per episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Plan = Sequence[tuple[str, list[tuple[str, str]]]]
SERVERS = 16
CONNECTIONS = 256
STEP_S = 900.0


def load(code: str) -> Any:
    """The world's application, imported as it is."""
    import types

    module = types.ModuleType("world")
    module.__file__ = "world.py"
    sys.modules["world"] = module
    exec(compile(Path(code).read_text(), "world.py", "exec"), module.__dict__)
    return module.app


class Servers:
    """Processes, each with one world and one database."""

    def __init__(self, folder: Path, worlds: Sequence[str]):
        from rufus_plugins.rollouts.environments.world_data import initial_database, library

        folder.mkdir()
        self.servers: list[subprocess.Popen] = []
        self.ports: dict[str, list[int]] = {}
        for number in range(SERVERS):
            world = library("builtin").world(worlds[number % len(worlds)])
            code, database = folder / f"{number}.py", folder / f"{number}.db"
            code.write_text(world.code)
            database.write_bytes(asyncio.run(initial_database(world, folder / "initial")).read_bytes())
            with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as listening:
                descriptor = listening.fileno()
                command = [sys.executable, "-m", "bench._environment_peers", "serve", str(code), str(database)]
                log = (folder / f"{number}.log").open("w")
                self.servers.append(
                    subprocess.Popen([*command, str(descriptor)], stdout=log, stderr=log, pass_fds=[descriptor])
                )
                self.ports.setdefault(world.scenario, []).append(listening.getsockname()[1])
        for port in [port for ports in self.ports.values() for port in ports]:
            self._wait(port)

    @property
    def pids(self) -> set[int]:
        return {server.pid for server in self.servers}

    def _wait(self, port: int) -> None:
        import httpx

        for _ in range(120):
            if any(server.poll() is not None for server in self.servers):
                raise RuntimeError("a server ended as it started")
            try:
                httpx.get(f"http://127.0.0.1:{port}/openapi.json", timeout=1.0, trust_env=False)
                return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise RuntimeError(f"the server on port {port} does not answer")

    def port(self, number: int, world: str) -> int:
        return self.ports[world][number % len(self.ports[world])]

    def close(self) -> None:
        for server in self.servers:
            server.kill()
        for server in self.servers:
            server.wait()

    # -- clients --------------------------------------------------------------------------------------

    async def rest(self, todo: Plan, clock: Any = None) -> float:
        """Calls a second."""
        import httpx

        # a client per server: the cost of httpx's pool grows with the square of its connections. Without an expiry: it
        # now and then closes a connection that it is about to use.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=float("inf"))
        async with contextlib.AsyncExitStack() as stack:
            clients = {
                port: await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=120.0, trust_env=False))
                for ports in self.ports.values()
                for port in ports
            }

            async def one(number: int, world: str, calls: list[tuple[str, str]]) -> None:
                port = self.port(number, world)
                for _, path in calls:
                    for _ in range(10):
                        try:
                            reply = await clients[port].get(f"http://127.0.0.1:{port}{path}")
                            break
                        except httpx.TransportError:  # httpx now and then takes a connection that it has closed
                            continue
                    else:
                        raise RuntimeError(f"{world} {path}: no answer in ten tries")
                    if reply.status_code != 200:
                        raise RuntimeError(f"{world} {path}: {reply.status_code} {reply.text[:300]}")

            if clock:
                clock.start()
            begun = time.perf_counter()
            async with asyncio.timeout(STEP_S):
                await asyncio.gather(*(one(n, world, calls) for n, (world, calls) in enumerate(todo)))
            took_s = time.perf_counter() - begun
            if clock:
                clock.stop()
            return sum(len(c) for _, c in todo) / took_s

    async def mcp(self, todo: Plan, clock: Any = None) -> float:
        """Calls a second, with all sessions open before the first one."""
        from mcp import Client

        opened = called = 0
        go, end = asyncio.Event(), asyncio.Event()
        times: dict[str, float] = {}

        async def one(number: int, world: str, calls: list[tuple[str, str]]) -> None:
            nonlocal opened, called
            async with Client(f"http://127.0.0.1:{self.port(number, world)}/mcp") as client:
                await client.list_tools()
                opened += 1
                if opened == len(todo):
                    if clock:
                        clock.start()
                    times["begun"] = time.perf_counter()
                    go.set()
                await go.wait()
                for name, _ in calls:
                    result = await client.call_tool(name, {})
                    if result.is_error:
                        raise RuntimeError(f"{world} {name}: {str(result.content)[:300]}")
                times["called"] = time.perf_counter()
                called += 1
                if called == len(todo):
                    if clock:
                        clock.stop()
                    end.set()
                await end.wait()

        async with asyncio.timeout(STEP_S), asyncio.TaskGroup() as group:
            for n, (world, calls) in enumerate(todo):
                group.create_task(one(n, world, calls))
        return sum(len(c) for _, c in todo) / (times["called"] - times["begun"])


def both(app: Any) -> Any:
    """The application as it is, and its operations as tools of the SDK's server at /mcp."""
    from mcp import types
    from mcp.server.lowlevel import Server

    from rufus_plugins.rollouts.environments.world_asgi import Answer, body_of, scope_of
    from rufus_plugins.rollouts.environments.world_tools import endpoints

    found = {endpoint.name: endpoint for endpoint in endpoints(app.openapi())}
    functions = {name: endpoint.schema["function"] for name, endpoint in found.items()}
    tools = [
        types.Tool(name=name, description=one["description"], input_schema=one["parameters"])
        for name, one in functions.items()
    ]

    async def listed(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=tools)

    async def called(context: Any, params: Any) -> Any:
        answer = Answer(20_000)
        request = found[params.name].request(params.arguments or {})
        await app(scope_of(request), body_of(request), answer)
        text = types.TextContent(type="text", text=answer.text())
        return types.CallToolResult(content=[text], is_error=answer.status != 200)

    server = Server("world", on_list_tools=listed, on_call_tool=called)
    tooled = server.streamable_http_app(json_response=True)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope.get("path", "/mcp") != "/mcp" else tooled)(scope, receive, send)

    return served


def serve(code: str, database: str, descriptor: int) -> None:
    import sqlite3

    import uvicorn

    connect = sqlite3.connect
    sqlite3.connect = sqlite3.dbapi2.connect = lambda _, *args, **kwargs: connect(database, *args, **kwargs)
    os.environ["DATABASE_PATH"] = f"sqlite:///{database}"
    uvicorn.run(both(load(code)), fd=descriptor, log_level="critical", access_log=False, timeout_keep_alive=600)


if __name__ == "__main__":
    if sys.argv[1] == "document":
        print(json.dumps(load(sys.argv[2]).openapi()))
    else:
        serve(*sys.argv[2:4], int(sys.argv[4]))
