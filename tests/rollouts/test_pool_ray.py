"""Host actors on a real Ray: worlds in jails, and what is left when a host is killed with many episodes in flight."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rollouts import pool
from rufus_plugins.types import Task, Termination

EPISODES = 128
RULES = pool.PoolRules(hosts=2, episodes=EPISODES, cpus=0.5)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    import ray

    folder = tmp_path_factory.mktemp("worlds")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    handles = pool.launch("mcp", {"folder": str(folder)}, RULES, "test")
    yield handles, folder
    for handle in handles:
        ray.kill(handle)
    ray.shutdown()


def task(number):
    return Task(f"shop-{number}", "test", [{"role": "user", "content": "Look."}], None, {"world": "shop"})


def call(name, **arguments):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}],
    }


def below(pid):
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        deeper = children.get(todo.pop(), [])
        found += deeper
        todo += deeper
    return found


def states(handles):
    import ray

    return ray.get([handle.state.remote() for handle in handles])


def test_episodes_in_host_actors_have_databases_of_their_own_and_leave_nothing(hosts):
    handles, folder = hosts

    async def play(number):
        environment = pool.join("test", RULES).environment()
        await environment.start(task(number))
        try:
            names = [tool["function"]["name"] for tool in environment.tools]
            reader = next(name for name in names if name.startswith("list_"))
            answer = await environment.step(call(reader))
            kept = await environment.finish()
            return len(names), str(answer.messages[0]["status"]), kept["db_after"], Path(kept["db_after"]).exists()
        finally:
            await environment.close()

    async def run():
        return await asyncio.gather(*(play(number) for number in range(12)))

    played = asyncio.run(run())
    assert all(15 <= tools <= 35 and status == "ok" and there for tools, status, _, there in played)
    assert len({path for _, _, path, _ in played}) == 12
    assert [state["episodes"] for state in states(handles)] == [0, 0]
    assert len({state["pid"] for state in states(handles)}) == 2


def test_kill_9_of_a_host_costs_its_episodes_typed_leaves_no_process_or_file_and_the_next_one_serves(hosts):
    handles, folder = hosts

    async def open_all():
        joined = pool.join("test", RULES)
        environments = [joined.environment() for _ in range(2 * EPISODES)]
        await asyncio.gather(*(e.start(task(n)) for n, e in enumerate(environments)))
        return environments

    async def run():
        environments = await open_all()
        victim = states(handles)[0]["pid"]
        processes = below(victim)
        assert len(processes) > EPISODES  # a process per episode
        calls = [asyncio.ensure_future(e.step(call("list_products"))) for e in environments]
        await asyncio.sleep(0)
        os.kill(victim, signal.SIGKILL)
        results = await asyncio.gather(*calls, return_exceptions=True)
        lost = [r for r in results if isinstance(r, Exception)]
        assert all(isinstance(r, InfrastructureError) for r in lost), [r for r in lost][:3]
        assert {r.termination for r in lost} <= {Termination.ENVIRONMENT_LOST}
        later = await asyncio.gather(*(e.step(call("list_products")) for e in environments), return_exceptions=True)
        alive = [e for e, r in zip(environments, later, strict=True) if not isinstance(r, Exception)]
        assert len(alive) == EPISODES  # those of the other host
        await asyncio.gather(*(e.close() for e in environments))
        deadline = time.monotonic() + 60
        while left := [pid for pid in processes if Path(f"/proc/{pid}").exists() and not zombie(pid)]:
            assert time.monotonic() < deadline, f"{len(left)} processes outlive their host"
            await asyncio.sleep(0.2)
        again = await open_all()  # the killed one was started anew
        await asyncio.gather(*(e.close() for e in again))

    kept = sorted(folder.rglob("*"))
    asyncio.run(run())
    assert sorted(folder.rglob("*")) == kept  # no database was left
    assert [(s["episodes"], s["admitted"]) for s in states(handles)] == [(0, 0), (0, 0)]


def zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_what_an_environment_lacks_on_a_hosts_machine_is_told_before_any_episode(hosts):
    rules = pool.PoolRules(hosts=1, cpus=0.5)
    with pytest.raises(ConfigError, match="servers.a: the MCP server's program 'no-such-program' is not there"):
        pool.launch("mcp", {"servers": {"a": {"command": ["no-such-program"]}}}, rules, "lacking")
    with pytest.raises(ConfigError, match="no field 'world'"):
        pool.launch("mcp", {"world": "shop"}, rules, "unknown")


def test_more_hosts_than_ray_has_room_for_are_refused_before_they_start(hosts):
    with pytest.raises(ConfigError, match="Ray has 4"):
        pool.launch("mcp", {}, pool.PoolRules(hosts=50), "many")
    with pytest.raises(ConfigError, match="ray start --resources"):
        pool.launch("mcp", {}, pool.PoolRules(hosts=1, resources={"environments": 1.0}), "elsewhere")
