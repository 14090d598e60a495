"""The E2B sandbox, by the real SDK against a loopback peer with real sandboxes behind it."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.plugins import registry
from rufus_plugins.types import Termination

pytest.importorskip("e2b")
sys.path.insert(0, str(Path(__file__).parent))
from e2b_peer import peer  # noqa: E402

from rufus_plugins.rollouts.sandboxes.e2b import E2B  # noqa: E402


def played(function, **fields):
    async def play():
        async with peer() as served:
            sandbox = E2B(**fields)
            try:
                return await function(sandbox, served)
            finally:
                await sandbox.close()

    return asyncio.run(play())


def created(served):
    """(headers, body) of the requests that made sandboxes."""
    return [(h, json.loads(b)) for m, p, h, b in served.requests if (m, p) == ("POST", "/v2/sandboxes")]


def test_commands_files_and_users():
    async def play(s, served):
        result = await s.exec("echo out; echo err >&2; pwd; echo $NAME; exit 3", 20, env={"NAME": "v"}, cwd="/tmp")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n/tmp\nv\n", "err\n", 3)
        await s.write_file("/a/b c", b"\0\xff")
        assert await s.read_file("/a/b c") == b"\0\xff"
        with pytest.raises(FileNotFoundError):
            await s.read_file("/none")
        refused = await s.exec("echo x", 20, cwd="/none")
        assert not refused.started and refused.exit_code is None
        long = await s.exec("x=" + "y" * 200_000 + "; echo ${#x}", 30)
        assert long.stdout == "200000\n"
        assert not (await s.exec("a\0b", 20)).started

    played(play)


def test_a_flood_is_cut_in_the_sandbox_and_background_output_holds_nothing_up():
    async def play(s, served):
        result = await s.exec("echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last", 60)
        assert result.stdout.startswith("first\nxxx") and result.stdout.endswith("x\nlast\n")
        assert f"[... {6 + 20_000_000 + 6 - 64 * 1024} bytes left out ...]" in result.stdout
        assert sum(len(b) for *_, b in served.requests) < 1_000_000
        started = await s.exec("(sleep 30; echo late) & echo hi", 20)
        assert started.stdout == "hi\n" and started.duration_s < 15

    played(play, output_kb=64)


def test_a_deadline_kills_what_runs_and_keeps_what_was_said():
    async def play(s, served):
        result = await s.exec("echo before; sleep 777", 1.0)
        assert result.exit_code is None and result.started and result.stdout == "before\n"
        assert (await s.exec("pgrep -x -a sleep | grep 777", 20)).exit_code == 1

    played(play)


def test_a_cancelled_command_is_killed():
    async def play(s, served):
        running = asyncio.create_task(s.exec("sleep 778", 500))
        await asyncio.sleep(0.7)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await s.exec("pgrep -x -a sleep | grep 778", 20)).exit_code == 1

    played(play)


@pytest.mark.parametrize("fault", ["503", "429", "drop_after"])
def test_creating_carries_an_idempotency_key_and_makes_one_sandbox(fault):
    async def play(s, served):
        served.rest_faults = [fault, fault]
        assert (await s.exec("echo hi", 20)).stdout == "hi\n"
        keys = {headers["idempotency-key"] for headers, _ in created(served)}
        assert len(created(served)) == 3 and len(keys) == 1
        assert len(served.sandboxes) == 1

    played(play)


@pytest.mark.parametrize(
    "fields, allowed, network",
    [
        ({}, False, None),
        ({"network": "public"}, True, None),
        (
            {"network": "allowlist", "allowed_hosts": ["pypi.org"]},
            True,
            {"allowOut": ["pypi.org"], "denyOut": ["0.0.0.0/0"]},
        ),
    ],
)
def test_the_network_policy_is_asked_for(fields, allowed, network):
    async def play(s, served):
        await s.start()
        body = created(served)[0][1]
        assert body["allow_internet_access"] is allowed
        asked = body.get("network")
        assert asked == network or {k: asked[k] for k in network} == network

    played(play, **fields)


def test_snapshots_and_forks_start_from_what_was_there():
    async def play(s, served):
        await s.exec("echo base > /root/f", 20)
        snapshot = await s.snapshot()
        await s.exec("echo later > /root/f", 20)
        other = E2B(template=snapshot)
        copies = await s.fork(2)
        try:
            assert (await other.exec("cat /root/f", 20)).stdout == "base\n"
            for i, copy in enumerate(copies):
                assert (await copy.exec(f"cat /root/f; echo {i} > /root/f", 20)).stdout == "later\n"
            assert await s.read_file("/root/f") == b"later\n"
        finally:
            for sandbox in (other, *copies):
                await sandbox.close()

    played(play)


def test_a_fork_that_may_have_happened_is_not_asked_for_twice():
    async def play(s, served):
        await s.start()
        served.rest_faults = ["drop_after"]
        with pytest.raises(InfrastructureError, match="may have"):
            await s.fork(1)
        assert len([1 for _, path, *_ in served.requests if path.endswith("/fork")]) == 1

    played(play)


def test_a_paused_sandbox_goes_on_where_it_was():
    async def play(s, served):
        await s.exec("echo x > /root/f; (sleep 500 &)", 20)
        id = await s.pause()
        other = await E2B().connect(id)
        assert (await other.exec("cat /root/f; pgrep -c -x sleep", 20)).stdout == "x\n1\n"
        await s.pause()
        await s.resume()
        assert (await s.exec("cat /root/f", 20)).stdout == "x\n"

    played(play)


def test_a_sandbox_killed_in_mid_command_is_lost():
    async def play(s, served):
        await s.start()
        running = asyncio.create_task(s.exec("sleep 100", 200))
        await asyncio.sleep(0.5)
        await served.kill(next(iter(served.sandboxes)))
        for work in (running, s.exec("true", 20), s.read_file("/x"), s.write_file("/x", b"")):
            with pytest.raises(InfrastructureError) as lost:
                await work
            assert lost.value.termination is Termination.SANDBOX_LOST

    played(play)


def test_its_life_is_prolonged_for_long_commands():
    async def play(s, served):
        await s.exec("true", 5000)
        asked = [json.loads(b)["timeout"] for _, path, _, b in served.requests if path.endswith("/timeout")]
        assert asked and asked[0] >= 5000

    played(play, lifetime_s=300)


def test_closing_ends_the_sandbox_and_twice_is_once():
    async def play(s, served):
        await s.start()
        served.rest_faults = ["503", "drop_after"]
        await s.close()
        await s.close()
        assert not served.sandboxes
        with pytest.raises(InfrastructureError):
            await s.exec("true", 20)

    played(play)


def test_wrong_fields_are_told():
    with pytest.raises(ConfigError, match="allowed_hosts"):
        registry().build("sandbox", "e2b", {"network": "allowlist"})
    with pytest.raises(ConfigError, match="network"):
        registry().build("sandbox", "e2b", {"network": "some"})
