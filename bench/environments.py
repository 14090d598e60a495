"""Tool calls of stateful worlds: environments in host actors against the same worlds as HTTP servers.

`python -m bench.environments [--quick]`

256 concurrent episodes of our shop, desk and bank (AgentWorldModel's format). Ours: `environment=mcp` in the hosts of
rollouts/pool.py on Ray, each episode jailed, with a database of its own that is reset. Peer: 16 uvicorn processes that
serve the same FastAPI code, called by httpx over kept connections, without a jail and without resets, which favours it.
The same read-only calls, drawn with one seed. Also measured: memory of an idle episode beyond its database, and a step
of 3,072 trajectories (256 with `--quick`) through the same hosts.

Bars: at least 400 calls/s and twice the peer's, at most 12 MB per idle episode, and memory that the large step does not
raise by more than a tenth over that of its first 256 episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORLDS = ("shop", "desk", "bank")
EPISODES = 256
SERVERS = 16
BAR_CALLS, BAR_RATIO, BAR_IDLE_MB, BAR_GROWTH = 400.0, 2.0, 12.0, 1.1
EPISODE_S = 900.0
REST_S = 5.0
"""Without calls; a busy machine needs longer to have looked at all."""


def readers(world: str) -> list[tuple[str, str]]:
    """(operation, path) of what reads without arguments."""
    from rufus_plugins.rollouts.environments.world_data import library

    source = library("builtin").world(world)
    found = []
    for endpoint in _document(source)["paths"].items():
        path, methods = endpoint
        operation = methods.get("get")
        if operation and "{" not in path and not any(p.get("required") for p in operation.get("parameters", ())):
            found.append((operation["operationId"], path))
    return sorted(found)


def _document(world: Any) -> dict[str, Any]:
    """OpenAPI, from a process of its own: the world's code stays out of this one."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "code.py")
        code.write_text(world.code)
        command = [sys.executable, "-m", "bench.environments", "--document", str(code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def load(code: str) -> Any:
    """The world's application, imported as it is."""
    import types

    module = types.ModuleType("world")
    module.__file__ = "world.py"
    sys.modules["world"] = module
    exec(compile(Path(code).read_text(), "world.py", "exec"), module.__dict__)
    return module.app


def plan(calls: int, episodes: int) -> list[tuple[str, list[tuple[str, str]]]]:
    """World and calls of each episode; the same for both sides."""
    drawn, known = random.Random(7), {world: readers(world) for world in WORLDS}
    worlds = [WORLDS[i % len(WORLDS)] for i in range(episodes)]
    return [(world, drawn.choices(known[world], k=calls)) for world in worlds]


# -- ours ---------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, hosts: int, episodes: int):
        import ray

        from rufus_plugins.rollouts import pool

        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
        self.rules = pool.PoolRules(hosts=hosts, episodes=episodes // hosts, cpus=1.0)
        self.handles = pool.launch("mcp", {}, self.rules, "bench")

    async def play(self, todo: Sequence[tuple[str, list[tuple[str, str]]]], together: bool) -> dict[str, float]:
        """`together`: all start before any calls, so that calls are timed alone."""
        from rufus_plugins.rollouts import pool

        joined = pool.join("bench", self.rules)
        started, go = 0, asyncio.Event()
        times: dict[str, float] = {}
        begun = time.perf_counter()

        async def one(number: int, world: str, calls: list[tuple[str, str]]) -> None:
            nonlocal started
            environment = joined.environment()
            await environment.admitted()
            try:
                await environment.start(_task(number, world))
                started += 1
                if together:
                    if started == len(todo):
                        times["started"] = time.perf_counter()
                        go.set()
                    await go.wait()
                for turn, (name, _) in enumerate(calls):
                    answer = await environment.step(_call(turn, name))
                    if str(answer.messages[0]["status"]) != "ok":
                        raise RuntimeError(f"{world} {name}: {answer.messages[0]['content'][:300]}")
                times["called"] = time.perf_counter()
                await environment.finish()
            finally:
                await environment.close()

        async with asyncio.timeout(EPISODE_S):
            await asyncio.gather(*(one(n, world, calls) for n, (world, calls) in enumerate(todo)))
        ended = time.perf_counter()
        calls = sum(len(c) for _, c in todo)
        return {
            "calls_per_s": calls / (times["called"] - times.get("started", begun)),
            "episodes_per_s": len(todo) / (ended - begun),
        }

    async def idle(self, todo: Sequence[tuple[str, list[tuple[str, str]]]]) -> tuple[float, float]:
        """MB that an open episode takes beyond its database: before its first call, and when it rests after calls."""
        from rufus_plugins.rollouts import pool

        joined = pool.join("bench", self.rules)
        first = [joined.environment() for _ in WORLDS]
        for environment, world in zip(first, WORLDS, strict=True):
            await environment.start(_task(0, world))
        before = self.memory_mb()
        opened = [joined.environment() for _ in todo]
        await asyncio.gather(
            *(e.start(_task(n, world)) for n, (e, (world, _)) in enumerate(zip(opened, todo, strict=True)))
        )
        fresh = self.memory_mb()
        for turn in range(len(todo[0][1])):
            await asyncio.gather(
                *(e.step(_call(turn, calls[turn][0])) for e, (_, calls) in zip(opened, todo, strict=True))
            )
        await asyncio.sleep(REST_S)
        rested = self.memory_mb()
        await asyncio.gather(*(environment.close() for environment in [*first, *opened]))
        return (fresh - before) / len(todo), (rested - before) / len(todo)

    def memory_mb(self) -> float:
        """Proportional set size of the hosts and all below them: shared pages count once."""
        import ray

        pids = {state["pid"] for state in ray.get([handle.state.remote() for handle in self.handles])}
        return sum(map(pss_mb, tree(pids)))

    def close(self) -> None:
        import ray

        for handle in self.handles:
            ray.kill(handle)
        ray.shutdown()


def _call(turn: int, name: str) -> dict[str, Any]:
    call = {"id": f"c{turn}", "function": {"name": name, "arguments": {}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _task(number: int, world: str) -> Any:
    from rufus_plugins.types import Task

    return Task(f"{world}-{number}", "bench", [{"role": "user", "content": "Look around."}], None, {"world": world})


def tree(roots: set[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = list(roots), list(roots)
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def pss_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


# -- the peer -----------------------------------------------------------------------------------------


class Peer:
    """uvicorn processes, each with one world and one database."""

    def __init__(self, folder: Path):
        from rufus_plugins.rollouts.environments.world_data import initial_database, library

        self.servers: list[subprocess.Popen] = []
        self.ports: dict[str, list[int]] = {}
        for number in range(SERVERS):
            world = library("builtin").world(WORLDS[number % len(WORLDS)])
            code, database = folder / f"{number}.py", folder / f"{number}.db"
            code.write_text(world.code)
            database.write_bytes(asyncio.run(initial_database(world, folder / "initial")).read_bytes())
            with socket.create_server(("127.0.0.1", 0), backlog=EPISODES) as listening:
                descriptor = listening.fileno()
                command = [sys.executable, "-m", "bench.environments", "--serve"]
                command += [str(code), str(database), str(descriptor)]
                log = (folder / f"{number}.log").open("w")
                self.servers.append(subprocess.Popen(command, stdout=log, stderr=log, pass_fds=[descriptor]))
                self.ports.setdefault(world.scenario, []).append(listening.getsockname()[1])
        for port in [port for ports in self.ports.values() for port in ports]:
            self._wait(port)

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

    async def play(self, todo: Sequence[tuple[str, list[tuple[str, str]]]]) -> float:
        import httpx

        # a client per server: the cost of httpx's pool grows with the square of its connections. Without an expiry: it
        # now and then closes a connection that it is about to use.
        limits = httpx.Limits(keepalive_expiry=float("inf"))
        async with contextlib.AsyncExitStack() as stack:
            ports = [port for ports in self.ports.values() for port in ports]
            clients = {
                port: await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=120.0, trust_env=False))
                for port in ports
            }

            async def one(number: int, world: str, calls: list[tuple[str, str]]) -> None:
                port = self.ports[world][number % len(self.ports[world])]
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

            begun = time.perf_counter()
            async with asyncio.timeout(EPISODE_S):
                await asyncio.gather(*(one(n, world, calls) for n, (world, calls) in enumerate(todo)))
            return sum(len(c) for _, c in todo) / (time.perf_counter() - begun)

    def close(self) -> None:
        for server in self.servers:
            server.kill()
        for server in self.servers:
            server.wait()


def serve(code: str, database: str, descriptor: int) -> None:
    import sqlite3

    import uvicorn

    connect = sqlite3.connect
    sqlite3.connect = sqlite3.dbapi2.connect = lambda _, *args, **kwargs: connect(database, *args, **kwargs)
    os.environ["DATABASE_PATH"] = f"sqlite:///{database}"
    uvicorn.run(load(code), fd=descriptor, log_level="critical", timeout_keep_alive=600)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--document", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        serve(options.serve[0], options.serve[1], int(options.serve[2]))
        return 0
    if options.document:
        print(json.dumps(load(options.document).openapi()))
        return 0
    rounds, calls, step = (1, 8, 256) if options.quick else (5, 20, 3072)
    todo = plan(calls, EPISODES)
    ours = Ours(hosts=2, episodes=EPISODES)
    with tempfile.TemporaryDirectory() as folder:
        try:
            fresh_mb, rested_mb = asyncio.run(ours.idle(plan(4, EPISODES - len(WORLDS))))
            print(
                f"idle episode: {fresh_mb:.1f} MB before its first call, {rested_mb:.1f} MB {REST_S:g} s after its "
                f"last one (bar: at most {BAR_IDLE_MB:g})",
                flush=True,
            )
            idle_mb = max(fresh_mb, rested_mb)
            peer = Peer(Path(folder))
            try:
                asyncio.run(ours.play(plan(1, EPISODES), together=True))  # both warm
                asyncio.run(peer.play(plan(1, EPISODES)))
                pairs = []
                for number in range(rounds):
                    mine, theirs = asyncio.run(ours.play(todo, together=True)), asyncio.run(peer.play(todo))
                    pairs.append((mine["calls_per_s"], theirs))
                    print(
                        f"round {number + 1}: ours {mine['calls_per_s']:.0f} calls/s, {mine['episodes_per_s']:.1f} "
                        f"episodes/s with start, reset and end; {SERVERS} HTTP servers {theirs:.0f} calls/s",
                        flush=True,
                    )
            finally:
                peer.close()
            asyncio.run(ours.play(plan(3, EPISODES), together=False))
            before = ours.memory_mb()
            whole = asyncio.run(ours.play(plan(3, step), together=False))
            after = ours.memory_mb()
        finally:
            ours.close()
    growth = after / before
    print(
        f"{step} trajectories: {whole['episodes_per_s']:.1f} episodes/s; memory of the hosts {before:.0f} -> "
        f"{after:.0f} MB afterwards (bar: at most x{BAR_GROWTH:g})"
    )
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    ok = mine >= BAR_CALLS and ratio >= BAR_RATIO and idle_mb <= BAR_IDLE_MB and growth <= BAR_GROWTH
    result = {"bench": "environments", "ours": round(mine, 1), "peer": round(theirs, 1), "ratio": round(ratio, 2)}
    print(json.dumps({**result, "bar": BAR_RATIO, "ok": ok, "idle_mb": round(idle_mb, 1), "growth": round(growth, 3)}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
