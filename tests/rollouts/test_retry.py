"""The retry rule: what each failure proves, and that no command ever runs twice, whatever breaks."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.rollouts import retry
from rufus_plugins.rollouts.retry import NeverStarted, OutcomeUnknown, Started, exchange, started
from rufus_plugins.types import Termination

e2b = pytest.importorskip("e2b")

sys.path.insert(0, str(Path(__file__).parent))
from e2b_peer import FAULTS, peer  # noqa: E402

from rufus_plugins.rollouts.sandboxes.e2b import E2B  # noqa: E402


def caused(error, cause):
    error.__cause__ = cause
    return error


class ReadError(Exception):
    """As pyqwest's, for a connection that broke while it was read."""


class ActorDiedError(Exception):
    """As Ray's."""


class ActorUnavailableError(Exception):
    """As Ray's."""


@pytest.mark.parametrize(
    "error, proof",
    [
        (e2b.SandboxUnreachableException("x"), Started.UNKNOWN),
        (caused(e2b.SandboxUnreachableException("x"), ConnectionError("refused")), Started.NEVER),
        (caused(e2b.SandboxUnreachableException("x"), caused(OSError(), ConnectionRefusedError())), Started.NEVER),
        (caused(e2b.SandboxUnreachableException("x"), ConnectionResetError()), Started.UNKNOWN),
        (caused(e2b.SandboxException("x"), ReadError()), Started.UNKNOWN),
        (e2b.RateLimitException("x"), Started.NEVER),
        (e2b.InvalidArgumentException("x"), Started.REFUSED),
        (e2b.AuthenticationException("x"), Started.REFUSED),
        (e2b.TimeoutException("x"), Started.UNKNOWN),
        (e2b.SandboxNotRunningException("x"), Started.LOST),
        (e2b.SandboxNotFoundException("x"), Started.LOST),
        (ConnectionRefusedError(), Started.NEVER),
        (BrokenPipeError(), Started.UNKNOWN),
        (ActorDiedError(), Started.LOST),
        (ActorUnavailableError(), Started.UNKNOWN),
        (TimeoutError(), Started.UNKNOWN),
        (RuntimeError("anything else"), Started.UNKNOWN),
    ],
)
def test_what_a_failure_proves(error, proof):
    assert started(error) is proof


async def at_once(_):
    return None


def test_only_what_never_started_or_cannot_happen_twice_is_sent_again(monkeypatch):
    monkeypatch.setattr(retry.asyncio, "sleep", at_once)

    def tried(errors, repeatable):
        sent = []

        async def send():
            sent.append(1)
            if len(sent) <= len(errors):
                raise errors[len(sent) - 1]
            return "done"

        try:
            answer = asyncio.run(exchange(send, "it", repeatable=repeatable, tries=4))
        except Exception as error:
            answer = type(error)
        return answer, len(sent)

    never, unknown, lost = e2b.RateLimitException("x"), e2b.TimeoutException("x"), e2b.SandboxNotRunningException("x")
    refused = e2b.InvalidArgumentException("x")
    assert tried([never, never], False) == ("done", 3)
    assert tried([never] * 9, False) == (NeverStarted, 4)
    assert tried([unknown], False) == (OutcomeUnknown, 1)
    assert tried([never, unknown], False) == (OutcomeUnknown, 2)
    assert tried([unknown, never, unknown], True) == ("done", 4)
    assert tried([unknown] * 9, True) == (OutcomeUnknown, 4)
    assert tried([unknown, never, never, never], True) == (OutcomeUnknown, 4)
    assert tried([refused], True) == (NeverStarted, 1)
    assert tried([lost], True) == (InfrastructureError, 1)
    assert tried([InfrastructureError("x", Termination.TIMEOUT_INFRA)], True) == (InfrastructureError, 1)


def run_script(script, home):
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=home)


def test_the_journal_runs_a_command_once_and_answers_every_send_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "JOURNAL", str(tmp_path / "journal"))
    command = f"echo run >> {tmp_path}/count; echo out; echo err >&2; exit 5"
    script = retry.journalled(command, "id-1", wait_s=20, keep_bytes=1000)
    first, second = run_script(script, tmp_path), run_script(script, tmp_path)
    assert (tmp_path / "count").read_text() == "run\n"
    for sent in (first, second):
        assert retry.read_answer(sent.stdout, "id-1") == ("out\n", "5")
        assert sent.stderr == "err\n"


def test_sends_at_the_same_time_wait_for_the_one_that_won(tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "JOURNAL", str(tmp_path / "journal"))
    script = retry.journalled(f"echo run >> {tmp_path}/count; sleep 0.3; echo out", "a", wait_s=20, keep_bytes=1000)
    running = [subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = {retry.read_answer(p.communicate()[0], "a") for p in running}
    assert answers == {("out\n", "0")}
    assert (tmp_path / "count").read_text() == "run\n"


@pytest.mark.parametrize(
    "command, wanted",
    [
        ("kill -9 0", ("", {"137", "lost"})),
        ("kill -9 $PPID; sleep 0.1; echo x", (None, {"137"})),
        ("echo $'\\n'id-x 0 0 0", ("\nid-x 0 0 0\n", {"0"})),
        ("printf 'no line end'", ("no line end", {"0"})),
        ("exec 1>&-; echo gone", ("", {"1"})),
        ("head -c 5000 /dev/zero | tr '\\0' x", (None, {"0"})),
        ("sleep 1000 & echo $!", (None, {"0"})),
    ],
)
def test_the_journal_stands_whatever_the_command_does(command, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "JOURNAL", str(tmp_path / "journal"))
    script = retry.journalled(command, "id-x", wait_s=20, keep_bytes=1000)
    for _ in range(2):
        output, code = retry.read_answer(run_script(script, tmp_path).stdout, "id-x")
        assert code in wanted[1]
        if wanted[0] is not None and code != "lost":
            assert output == wanted[0]
        if "zero" in command:
            assert output == "x" * 500 + "\n[... 4000 bytes left out ...]\n" + "x" * 500
    run_script(retry.kill_journalled("id-x"), tmp_path)


def test_a_journal_that_cannot_be_written_runs_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(retry, "JOURNAL", str(tmp_path / "file" / "journal"))
    sent = run_script(retry.journalled(f"touch {tmp_path}/ran", "a", wait_s=5, keep_bytes=100), tmp_path)
    assert retry.read_answer(sent.stdout, "a") == ("", "never")
    assert not (tmp_path / "ran").exists()


class Wire:
    """A connection that breaks at any point, to a machine that keeps the journal's rule (`mkdir` wins once)."""

    def __init__(self, rng):
        self.rng, self.ran, self.made, self.lost = rng, Counter(), set(), False

    async def send(self, id, journal):
        point = self.rng.randrange(12)
        if self.lost or (point == 11 and self.rng.random() < 0.05):
            self.lost = True
            raise e2b.SandboxNotRunningException("gone")
        if point == 0:
            raise caused(e2b.SandboxUnreachableException("x"), ConnectionError("refused"))
        if point == 1:
            raise e2b.RateLimitException("429")
        if point == 2:
            raise caused(e2b.SandboxException("x"), ReadError())  # dropped before it started
        if point == 3:
            raise e2b.TimeoutException("no start event")
        if not journal or id not in self.made:
            self.made.add(id)
            self.ran[id] += 1
        if point == 4:
            raise caused(e2b.SandboxException("x"), ReadError())  # dropped after it started
        if point == 5:
            raise e2b.SandboxException("503")
        if point == 6:
            raise OutcomeUnknown("mid-stream")
        if point == 7:
            raise ActorUnavailableError("the actor that held the connection was killed")
        return "done"


def test_over_twenty_thousand_broken_exchanges_no_command_runs_twice(monkeypatch):
    monkeypatch.setattr(retry.asyncio, "sleep", at_once)
    rng = random.Random(20260721)
    endings = Counter()

    async def play():
        for id in range(20_000):
            journal = bool(id % 2)
            wire = Wire(rng)
            try:
                answer = await exchange(lambda: wire.send(id, journal), "it", repeatable=journal)  # noqa: B023
                assert answer == "done" and wire.ran[id] == 1
            except NeverStarted:
                assert wire.ran[id] == 0
                answer = "never"
            except OutcomeUnknown:
                answer = "unknown"
            except InfrastructureError as error:
                assert error.termination is Termination.SANDBOX_LOST
                answer = "lost"
            assert wire.ran[id] <= 1
            endings[answer, journal] += 1

    asyncio.run(play())
    # a send answers with 4/12: 1 - (8/12)^6 = 91 % of the journalled; 4/12 / (1 - 2/12) = 40 % of the others
    assert 8_700 < endings["done", True] < 9_300 and 3_700 < endings["done", False] < 4_300
    assert endings["unknown", False] > 5_000 and endings["unknown", True] < 1_000
    assert endings["lost", True] > 20


async def broken(rounds, seed, width):
    """Commands over the real SDK while the peer breaks exchanges at random: (endings, faults, counts per id)."""
    rng = random.Random(seed)
    faults, endings = Counter(), Counter()
    async with peer() as served:
        served.stall_s = 0.3

        def fault():
            found = rng.choice([*FAULTS, *[None] * len(FAULTS)])
            faults[found] += 1
            return found

        sandbox = E2B(request_timeout_s=0.25)
        try:
            await sandbox.exec("true", 20)
            served.fault = fault

            async def one(i):
                result = await sandbox.exec(f"echo {i} >> /tmp/count; echo ok {i}", 60, id=f"cmd-{i}")
                if result.exit_code == 0:
                    assert result.stdout == f"ok {i}\n"
                elif not result.started:
                    endings["never"] += 1
                    return f"never {i}"
                endings[result.exit_code] += 1
                return f"{'done' if result.exit_code == 0 else 'unknown'} {i}"

            said = []
            for begin in range(0, rounds, width):
                said += await asyncio.gather(*(one(i) for i in range(begin, min(begin + width, rounds))))
            served.fault = lambda: None
            counted = Counter((await sandbox.read_file("/tmp/count")).decode().split())
        finally:
            served.fault = lambda: None
            await sandbox.close()
    for line in said:
        ending, _, i = line.partition(" ")
        assert counted[i] <= 1
        assert ending != "done" or counted[i] == 1
        assert ending != "never" or counted[i] == 0
    assert max(counted.values()) == 1
    return endings, faults


def test_broken_exchanges_of_the_real_sdk_run_no_command_twice(monkeypatch):
    monkeypatch.setattr(retry, "_BACKOFF_S", 0.01)
    endings, faults = asyncio.run(broken(120, 7, 12))
    assert set(faults) == {*FAULTS, None}
    assert endings[0] > 100


@pytest.mark.slow
def test_thousands_of_broken_exchanges_of_the_real_sdk_run_no_command_twice(monkeypatch):
    monkeypatch.setattr(retry, "_BACKOFF_S", 0.01)
    endings, faults = asyncio.run(broken(2000, 11, 16))
    assert set(faults) == {*FAULTS, None}
    assert endings[0] > 1700


def test_a_refused_connection_proves_that_nothing_ran_and_is_sent_again():
    async def play():
        async with peer() as served:
            sandbox = E2B()
            await sandbox.exec("true", 20)
            await served.deafen()
            running = asyncio.create_task(sandbox.exec("echo x >> /tmp/count; echo ok", 60))
            await asyncio.sleep(0.5)
            await served.listen()
            assert (await running).stdout == "ok\n"
            assert await sandbox.read_file("/tmp/count") == b"x\n"
            await served.deafen()
            sandbox.tries = 2
            refused = await sandbox.exec("echo x >> /tmp/count", 60)
            await served.listen()
            assert (refused.started, refused.exit_code) == (False, None) and "never started" in refused.stderr
            assert sandbox.counts["retried_never"] >= 1
            assert await sandbox.read_file("/tmp/count") == b"x\n"
            await sandbox.close()

    asyncio.run(play())


CLIENT = textwrap.dedent("""
    import asyncio, sys
    from rufus_plugins.rollouts.sandboxes.e2b import E2B

    async def main():
        sandbox = await E2B().connect(sys.argv[1])
        print("connected", flush=True)
        result = await sandbox.exec("echo x >> /tmp/count; sleep 1.0; echo ok", 60, id="the-command")
        print(result.stdout, result.exit_code, flush=True)

    asyncio.run(main())
""")


def test_a_client_killed_in_mid_command_and_its_successor_run_it_once():
    async def play():
        async with peer() as served:
            sandbox = E2B()
            await sandbox.exec("true", 20)
            id = next(iter(served.sandboxes))

            async def client():
                return await asyncio.create_subprocess_exec(
                    sys.executable, "-c", CLIENT, id, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
                )

            first = await client()
            assert await first.stdout.readline() == b"connected\n"
            while not (await sandbox.exec("test -e /tmp/count", 20)).exit_code == 0:
                await asyncio.sleep(0.02)
            first.send_signal(signal.SIGKILL)
            await first.wait()
            second = await client()
            said = (await second.communicate())[0]
            assert said == b"connected\nok\n 0\n"
            assert await sandbox.read_file("/tmp/count") == b"x\n"
            await sandbox.close()

    asyncio.run(play())
