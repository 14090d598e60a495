"""The sandbox pool: what is ready ahead of time, forks of one initialised sandbox, limits, and what is left."""

import asyncio

import pytest

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.rollouts.sandboxes.local import Local
from rufus_plugins.rollouts.sandboxes.pool import SandboxPool


class Counted:
    """A sandbox that only counts."""

    alive, started, most = set(), 0, 0

    def __init__(self, fails=False):
        self.fails = fails

    async def start(self):
        await asyncio.sleep(0.01)
        if self.fails:
            raise InfrastructureError("no room")
        Counted.started += 1
        Counted.alive.add(self)
        Counted.most = max(Counted.most, len(Counted.alive))

    async def close(self):
        Counted.alive.discard(self)


@pytest.fixture(autouse=True)
def fresh():
    Counted.alive, Counted.started, Counted.most = set(), 0, 0


def test_the_next_ones_are_started_ahead():
    async def play():
        pool = SandboxPool(Counted, warm=2)
        first = await pool.take()
        await asyncio.sleep(0.1)
        assert pool.ready == 2 and Counted.started == 3
        second = await pool.take()
        assert pool.warm_hits == 1 and second is not first
        await asyncio.sleep(0.1)
        assert pool.ready == 2
        await pool.give_back(first)
        await pool.give_back(first)
        await pool.close()
        assert Counted.alive == {second}
        await pool.give_back(second)
        assert not Counted.alive and pool.unused
        with pytest.raises(InfrastructureError):
            await pool.take()

    asyncio.run(play())


def test_no_more_than_the_limit_exist_and_who_waits_gets_one():
    async def play():
        limit = asyncio.Semaphore(3)
        pools = [SandboxPool(Counted, warm=1, limit=limit) for _ in range(2)]

        async def use(pool):
            sandbox = await pool.take()
            await asyncio.sleep(0.01)
            await pool.give_back(sandbox)

        await asyncio.gather(*(use(pools[0]) for _ in range(20)))
        await pools[0].shrink()
        await asyncio.gather(*(use(pools[1]) for _ in range(5)))
        assert Counted.most <= 3
        for pool in pools:
            await pool.close()
        assert not Counted.alive and limit._value == 3

    asyncio.run(play())


def test_a_start_that_fails_is_told_and_gives_its_place_back():
    async def play():
        limit = asyncio.Semaphore(1)
        pool = SandboxPool(lambda: Counted(fails=True), warm=1, limit=limit)
        for _ in range(3):
            with pytest.raises(InfrastructureError, match="no room"):
                await pool.take()
        assert limit._value == 1
        await pool.close()

    asyncio.run(play())


def test_what_waits_too_long_is_ended():
    async def play():
        pool = SandboxPool(Counted, warm=1, idle_s=0.05)
        first = await pool.take()
        await asyncio.sleep(0.2)
        second = await pool.take()
        assert pool.warm_hits == 0
        for sandbox in (first, second):
            await pool.give_back(sandbox)
        await pool.close()
        assert not Counted.alive

    asyncio.run(play())


def test_real_sandboxes_are_forked_from_one_that_was_initialised_once():
    async def play():
        inits = []

        async def initialise(sandbox):
            inits.append(sandbox)
            assert (await sandbox.exec("echo ready > /root/state", 20)).exit_code == 0

        pool = SandboxPool(Local, warm=1, initialise=initialise)
        taken = await asyncio.gather(*(pool.take() for _ in range(3)))
        try:
            for i, sandbox in enumerate(taken):
                seen = await sandbox.exec(f"cat /root/state; echo {i} > /root/state", 20)
                assert seen.stdout == "ready\n"
        finally:
            for sandbox in taken:
                await pool.give_back(sandbox)
            await pool.close()
        assert len(inits) == 1 and inits[0].lost and all(sandbox.lost for sandbox in taken)

    asyncio.run(play())


def test_a_ready_sandbox_that_died_is_not_given_out():
    async def play():
        pool = SandboxPool(Local, warm=1)
        first = await pool.take()
        await pool._filling
        await pool._ready[0][1]._end("it was killed")
        second = await pool.take()
        assert (await second.exec("echo fine", 20)).stdout == "fine\n"
        for sandbox in (first, second):
            await pool.give_back(sandbox)
        await pool.close()

    asyncio.run(play())
