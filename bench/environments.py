"""Tool calls of stateful worlds: environments in host actors against the same worlds as HTTP servers.

`python -m bench.environments [--quick]`

256 concurrent episodes of our shop, desk and bank (AgentWorldModel's format). Ours: `environment=mcp` in the hosts of
rollouts/pool.py on Ray, each episode jailed, with a database of its own that is reset. The peers are 16 uvicorn
processes with the same FastAPI code (_environment_peers.py), without a jail and without resets, which favours them:
called as plain REST, and by MCP over streamable HTTP as AgentWorldModel serves them. The same read-only calls, drawn
with one seed. `peer` and `ratio` of the last line are of plain REST, the faster of the two; `mcp` and `mcp_ratio` of
the other.

A rate says something on an idle machine only, so each comes with the processor time of a call: that of all processes
that take part, the driver's and Ray's included. Also measured: memory of an idle episode beyond its database, and a
step of 3,072 trajectories (256 with `--quick`) through the same hosts.

Bars: at least 400 calls/s and twice the REST peer's, at most 12 MB per idle episode, and memory that the large step
does not raise by more than a tenth over that after the rounds of 256 episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench._environment_peers import SERVERS, Plan, Servers

WORLDS = ("shop", "desk", "bank")
EPISODES = 256
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
        command = [sys.executable, "-m", "bench._environment_peers", "document", str(code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def plan(calls: int, episodes: int) -> Plan:
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

    async def play(self, todo: Plan, together: bool, clock: Clock | None = None) -> dict[str, float]:
        """`together`: all start before any calls, so that calls are timed alone, by `clock` as well."""
        from rufus_plugins.rollouts import pool

        joined = pool.join("bench", self.rules)
        started = called = 0
        go, end = asyncio.Event(), asyncio.Event()
        times: dict[str, float] = {}
        begun = time.perf_counter()

        async def one(number: int, world: str, calls: list[tuple[str, str]]) -> None:
            nonlocal started, called
            environment = joined.environment()
            await environment.admitted()
            try:
                await environment.start(_task(number, world))
                started += 1
                if together:
                    if started == len(todo):
                        if clock:
                            clock.start()
                        times["started"] = time.perf_counter()
                        go.set()
                    await go.wait()
                for turn, (name, _) in enumerate(calls):
                    answer = await environment.step(_call(turn, name))
                    if str(answer.messages[0]["status"]) != "ok":
                        raise RuntimeError(f"{world} {name}: {answer.messages[0]['content'][:300]}")
                times["called"] = time.perf_counter()
                called += 1
                if together:  # nobody ends before all have called
                    if called == len(todo):
                        if clock:
                            clock.stop()
                        end.set()
                    await end.wait()
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

    async def idle(self, todo: Plan) -> tuple[float, float]:
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


class Clock:
    """Processor time of processes and of the children they waited for: `s` between `start` and `stop`."""

    def __init__(self, pids: Callable[[], Sequence[int]]):
        self.pids, self.s = pids, 0.0

    def start(self) -> None:
        self.s = -self._now()

    def stop(self) -> None:
        self.s += self._now()

    def _now(self) -> float:
        ticks = 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended: its parent has its time
                continue
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    rounds, calls, mcp_calls, step = (1, 8, 2, 256) if options.quick else (5, 20, 5, 3072)
    ours = Ours(hosts=2, episodes=EPISODES)
    try:
        fresh_mb, rested_mb = asyncio.run(ours.idle(plan(4, EPISODES - len(WORLDS))))
        print(
            f"idle episode: {fresh_mb:.1f} MB before its first call, {rested_mb:.1f} MB {REST_S:g} s after its "
            f"last one (bar: at most {BAR_IDLE_MB:g})",
            flush=True,
        )
        idle_mb = max(fresh_mb, rested_mb)
        asyncio.run(ours.play(plan(1, EPISODES), together=True))  # warm
        with tempfile.TemporaryDirectory() as folder:
            rates, (mcp, mcp_ms) = against(ours, Path(folder) / "peer", rounds, calls, mcp_calls)
        before = ours.memory_mb()
        begun = time.perf_counter()
        whole = asyncio.run(ours.play(plan(3, step), together=False))
        took_s = time.perf_counter() - begun
        after = ours.memory_mb()
    finally:
        ours.close()
    growth = after / before
    print(
        f"{step} trajectories in {took_s:.0f} s: {whole['episodes_per_s']:.1f} episodes/s; memory of the hosts "
        f"{before:.0f} -> {after:.0f} MB afterwards (bar: at most x{BAR_GROWTH:g})"
    )
    mine, theirs, mine_ms, their_ms = (statistics.median(side) for side in zip(*rates, strict=True))
    ratio = statistics.median(a / b for a, b, _, _ in rates)
    ok = mine >= BAR_CALLS and ratio >= BAR_RATIO and idle_mb <= BAR_IDLE_MB and growth <= BAR_GROWTH
    result = {"bench": "environments", "ours": round(mine, 1), "peer": round(theirs, 1), "ratio": round(ratio, 2)}
    result |= {"bar": BAR_RATIO, "ok": ok, "mcp": round(mcp, 1), "mcp_ratio": round(mine / mcp, 2)}
    result |= {"cpu_ms": {"ours": round(mine_ms, 2), "peer": round(their_ms, 2), "mcp": round(mcp_ms, 2)}}
    print(json.dumps({**result, "idle_mb": round(idle_mb, 1), "growth": round(growth, 3)}))
    return 0 if ok else 1


Rates = tuple[float, float, float, float]
"""Calls/s of ours and theirs, processor time of a call in ms of ours and theirs."""


def against(ours: Ours, folder: Path, rounds: int, calls: int, mcp_calls: int) -> tuple[list[Rates], Sequence[float]]:
    """Rounds of ours and plain REST in turn, then calls/s and processor time of MCP."""
    todo, found = plan(calls, EPISODES), []
    peer = Servers(folder, WORLDS)
    mine = Clock(lambda: sorted({*tree({os.getpid()})} - {*tree(peer.pids)}))
    theirs = Clock(lambda: [os.getpid(), *tree(peer.pids)])
    try:
        asyncio.run(peer.rest(plan(1, EPISODES)))  # warm
        for number in range(rounds):
            played = asyncio.run(ours.play(todo, together=True, clock=mine))
            rate = asyncio.run(peer.rest(todo, theirs))
            ms = [1000 * clock.s / (calls * EPISODES) for clock in (mine, theirs)]
            found.append((played["calls_per_s"], rate, *ms))
            print(
                f"round {number + 1}: ours {played['calls_per_s']:.0f} calls/s, {ms[0]:.2f} ms of CPU a call, "
                f"{played['episodes_per_s']:.1f} episodes/s with start, reset and end; {SERVERS} HTTP servers "
                f"{rate:.0f} calls/s, {ms[1]:.2f} ms",
                flush=True,
            )
        rate = asyncio.run(peer.mcp(plan(mcp_calls, EPISODES), theirs))
    finally:
        peer.close()
    ms = 1000 * theirs.s / (mcp_calls * EPISODES)
    print(f"the same {SERVERS} servers by MCP over HTTP: {rate:.0f} calls/s, {ms:.2f} ms of CPU a call", flush=True)
    return found, (rate, ms)


if __name__ == "__main__":
    raise SystemExit(main())
