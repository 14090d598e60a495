"""Environments in hosts: admission, batching, typed failures, dead hosts and dead clients."""

import asyncio
import os
from dataclasses import dataclass

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.plugins import registry
from rufus_plugins.protocols import Environment
from rufus_plugins.rollouts import environment_host, pool
from rufus_plugins.rollouts.environment_host import EnvironmentHost
from rufus_plugins.types import StepResult, Task, Termination

LIVE: set[str] = set()


@dataclass
class Counting:
    """Answers the number of calls so far; `how` makes it misbehave."""

    how: str = ""

    def __post_init__(self):
        self.tools = ()
        self.calls = 0
        self.task = None

    async def start(self, task):
        LIVE.add(task.id)
        self.task = task
        self.tools = ({"type": "function", "function": {"name": "count"}},)
        if task.extra.get("fails") == "start":
            raise DataError("a record that cannot be played")
        return [*task.prompt, {"role": "user", "content": f"of process {os.getpid()}"}]

    async def step(self, message):
        self.calls += 1
        how = self.task.extra.get("fails", "")
        if how == "step":
            raise InfrastructureError("the sandbox is gone", Termination.SANDBOX_LOST)
        if how == "bug":
            raise ZeroDivisionError("1 / 0")
        await asyncio.sleep(float(self.task.extra.get("sleep_s", 0.0)))
        return StepResult([{"role": "tool", "content": f"{self.task.id} {self.calls}"}], metrics={"calls": 1})

    async def finish(self):
        return {"calls": self.calls}

    async def close(self):
        LIVE.discard(self.task.id)


@pytest.fixture(autouse=True)
def counting(monkeypatch):
    from rufus_plugins import plugins

    LIVE.clear()
    found = registry()
    part = plugins.Part("environment", "counting", "a_test", Counting)
    monkeypatch.setitem(found.parts["environment"], "counting", part)


def task(number, **extra):
    return Task(f"t{number}", "count", [{"role": "user", "content": "Count."}], None, extra)


async def play(environment, number, steps=3, **extra):
    await environment.admitted()
    try:
        opening = await environment.start(task(number, **extra))
        told = [(await environment.step({"role": "assistant", "content": str(i)})).messages for i in range(steps)]
        return opening, [m[0]["content"] for m in told], await environment.finish()
    finally:
        await environment.close()


def test_many_episodes_answer_each_its_own_calls_in_order_and_leave_nothing():
    async def run():
        made = pool.in_process("counting", {}, pool.PoolRules(hosts=2, episodes=8))
        played = await asyncio.gather(*(play(made.environment(), n, sleep_s=0.001) for n in range(100)))
        for number, (opening, told, kept) in enumerate(played):
            assert opening[0] == {"role": "user", "content": "Count."}
            assert told == [f"t{number} {i}" for i in (1, 2, 3)] and kept == {"calls": 3}
        links = made.links
        assert sum(link.asked for link in links) == 100 * 7  # admit, start, three steps, finish, close
        assert sum(link.hops for link in links) < 400  # calls of several episodes travel together
        return [link._exchange.__self__.state() for link in links]

    states = asyncio.run(run())
    assert not LIVE
    assert [(s["episodes"], s["admitted"], s["waiting"]) for s in states] == [(0, 0, 0)] * 2
    assert all(s["peak"] <= 8 for s in states) and sum(s["closed"] for s in states) == 100


def test_the_interface_is_that_of_an_environment():
    made = pool.in_process("counting", {}, pool.PoolRules(hosts=1))
    assert isinstance(made.environment(), Environment)


@pytest.mark.parametrize(
    "how, error, said",
    [
        ("start", DataError, "cannot be played"),
        ("step", InfrastructureError, "sandbox is gone"),
        ("bug", RuntimeError, "ZeroDivisionError: 1 / 0"),
    ],
)
def test_what_an_environment_raises_keeps_its_type_and_costs_its_own_episode(how, error, said):
    async def run():
        made = pool.in_process("counting", {}, pool.PoolRules(hosts=1, episodes=2))
        bad, good = play(made.environment(), 0, fails=how), play(made.environment(), 1)
        return await asyncio.gather(bad, good, return_exceptions=True)

    bad, good = asyncio.run(run())
    assert isinstance(bad, error) and said in str(bad)
    if how == "step":
        assert bad.termination is Termination.SANDBOX_LOST
    assert good[1] == ["t1 1", "t1 2", "t1 3"] and not LIVE


def test_who_comes_when_all_is_full_waits_for_room_without_using_up_a_deadline():
    async def run():
        made = pool.in_process("counting", {}, pool.PoolRules(hosts=1, episodes=1, admission_timeout_s=0.2))
        first, second, third = made.environment(), made.environment(), made.environment()
        await first.admitted()
        with pytest.raises(InfrastructureError, match="no environment host had room within 0.2 s") as raised:
            await second.admitted()
        assert raised.value.termination is Termination.TIMEOUT_INFRA
        await second.close()
        waiting = asyncio.ensure_future(third.admitted())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await first.close()
        await asyncio.wait_for(waiting, 5)
        await third.close()
        return made.links[0]._exchange.__self__.state()

    state = asyncio.run(run())
    assert (state["admitted"], state["waiting"], state["episodes"]) == (0, 0, 0)


def test_a_cancelled_call_is_cancelled_in_the_host_and_the_episode_can_be_closed():
    async def run():
        made = pool.in_process("counting", {}, pool.PoolRules(hosts=1))
        environment = made.environment()
        await environment.start(task(0, sleep_s=60))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await environment.step({"role": "assistant", "content": ""})
        await asyncio.sleep(0.05)
        host = made.links[0]._exchange.__self__
        assert not any(task for client in host._clients.values() for task in client.tasks)
        await environment.close()
        return host.state()

    assert asyncio.run(run())["episodes"] == 0 and not LIVE


def test_a_host_that_was_started_anew_loses_the_episodes_of_the_old_one_and_takes_new_ones():
    async def run():
        hosts = [EnvironmentHost("counting", {}, 8), EnvironmentHost("counting", {}, 8)]
        hosts[1].incarnation = "another"
        dead = False

        async def exchange(client, requests):
            if dead:
                return await hosts[1].exchange(client, requests)
            return await hosts[0].exchange(client, requests)

        made = pool.EnvironmentPool([pool.Link(exchange, "host")], pool.PoolRules(hosts=1))
        old = made.environment()
        await old.start(task(0))
        dead = True
        with pytest.raises(InfrastructureError, match="no such episode") as raised:
            await old.step({"role": "assistant", "content": ""})
        assert raised.value.termination is Termination.ENVIRONMENT_LOST
        await old.close()
        return await play(made.environment(), 1)

    assert asyncio.run(run())[1] == ["t1 1", "t1 2", "t1 3"]


def test_a_host_that_cannot_be_reached_ends_every_call_typed_and_is_not_asked_twice():
    async def run():
        asked = []

        async def exchange(client, requests):
            asked.extend(requests)
            raise ConnectionError("the actor died")

        made = pool.EnvironmentPool([pool.Link(exchange, "host 3")], pool.PoolRules(hosts=1))
        results = await asyncio.gather(*(made.environment().admitted() for _ in range(5)), return_exceptions=True)
        return asked, results

    asked, results = asyncio.run(run())
    assert len(asked) == 5
    for result in results:
        assert isinstance(result, InfrastructureError) and result.termination is Termination.ENVIRONMENT_LOST
        assert "host 3 is lost: ConnectionError: the actor died" in str(result)


def test_the_episodes_of_a_client_that_fell_silent_are_closed(monkeypatch):
    monkeypatch.setattr(environment_host, "SILENT_S", 0.4)
    monkeypatch.setattr(environment_host, "LONGEST_WAIT_S", 0.1)

    async def run():
        host = EnvironmentHost("counting", {}, 2)
        gone = pool.EnvironmentPool([pool.Link(host.exchange, "host")], pool.PoolRules(hosts=1))
        alive = pool.EnvironmentPool([pool.Link(host.exchange, "host")], pool.PoolRules(hosts=1))
        await gone.environment().start(task(0))  # and never comes back
        environment = alive.environment()
        await environment.start(task(1, sleep_s=1.5))
        answer = await environment.step({"role": "assistant", "content": ""})  # a waiting client is no silent one
        state = host.state()
        await environment.close()
        return answer, state

    answer, state = asyncio.run(run())
    assert answer.messages[0]["content"] == "t1 1"
    assert (state["episodes"], state["abandoned"], state["admitted"]) == (1, 1, 1)


def test_memory_above_the_limit_lets_nobody_in_until_an_episode_ended(monkeypatch):
    monkeypatch.setattr(environment_host, "_rss_mb", lambda: 500.0)

    async def run():
        made = pool.in_process("counting", {}, pool.PoolRules(hosts=1, memory_mb=100))
        first, second = made.environment(), made.environment()
        await first.admitted()  # one is always let in, or nothing would ever end
        waiting = asyncio.ensure_future(second.admitted())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await first.close()
        await asyncio.wait_for(waiting, 5)
        await second.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "given, said",
    [
        ({"hosts": 0}, "hosts=0"),
        ({"episodes": "many"}, "episodes"),
        ({"nodes": 3}, "nodes"),
        ({"memory_mb": -1}, "memory_mb"),
    ],
)
def test_wrong_rules_say_what_exists(given, said):
    with pytest.raises(ConfigError, match=said):
        pool.pool_rules(given)


def test_no_rules_mean_no_pool():
    assert pool.pool_rules(None) is None


@pytest.mark.parametrize("given", [True, [1], "yes", {"resources": {"own": -1.0}}, {"resources": {"GPU": 1.0}}])
def test_a_pool_of_the_wrong_shape_is_told(given):
    with pytest.raises(ConfigError, match="rufus.environment_pool"):
        pool.pool_rules(given)
