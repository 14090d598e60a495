"""What happens when the sandbox, its owner or the caller goes away in mid-program, and who waits for whom."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from rufus_plugins.errors import ConfigError, InfrastructureError, SandboxUnavailable
from rufus_plugins.rollouts.sandboxes import launch, zygote
from rufus_plugins.rollouts.sandboxes.zygote import Limits, Zygotes, available, shared
from rufus_plugins.types import Termination


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request):
    found, why = available(request.param)
    if not found:
        pytest.skip(why)
    return request.param


@pytest.fixture
def zygotes(backend):
    pool = Zygotes(backend=backend, workers=2)
    yield pool
    pool.close()


def tree(pid):
    """`pid` and everything below it."""
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in file.read().split():
                try:
                    found += tree(int(child))
                except OSError:
                    continue
    return found


def kill_zygote(pool):
    """The zygote itself, not bwrap above it."""
    pid = pool.pids[0]
    os.kill(tree(pid)[1] if pool.backend == "bubblewrap" else pid, signal.SIGKILL)


def alive(pids):
    found = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in ("Z", "X"):
                    found.append(pid)
        except OSError:
            continue
    return found


def gone(pids, within_s=10.0):
    deadline = time.monotonic() + within_s
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive(pids) == []


async def until_running(pool, count=1):
    for _ in range(500):
        # the program itself is the last process of the jail's tree
        if len(pool.pids) >= count and all(len(tree(pid)) >= _PROCESSES[pool.backend] for pid in pool.pids):
            await asyncio.sleep(0.1)
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no program started")


_PROCESSES = {"bubblewrap": 3, "landlock": 2}
"""bwrap, zygote, program; zygote, program."""


def test_a_killed_zygote_is_noticed_at_once_and_typed(zygotes):
    async def main():
        request = asyncio.ensure_future(
            zygotes.run("import time; time.sleep(20)", limits=Limits(wall_s=20), retry=False)
        )
        await until_running(zygotes)
        pids = tree(zygotes.pids[0])
        began = time.monotonic()
        kill_zygote(zygotes)
        with pytest.raises(InfrastructureError) as caught:
            await request
        assert caught.value.termination is Termination.SANDBOX_LOST
        assert time.monotonic() - began < 5
        assert gone(pids)
        assert (await zygotes.run("print(1)")).stdout == b"1\n"
        assert zygotes.lost == 1

    asyncio.run(main())


def test_a_killed_wrapper_costs_at_most_its_request_and_leaves_nothing(zygotes):
    async def main():
        request = asyncio.ensure_future(
            zygotes.run("import time; time.sleep(1); print('through')", limits=Limits(wall_s=60), retry=False)
        )
        await until_running(zygotes)
        pids = tree(zygotes.pids[0])
        os.kill(zygotes.pids[0], signal.SIGKILL)
        try:  # bwrap only waits: without it the zygote may go on to the end of the request
            assert (await request).stdout == b"through\n"
        except InfrastructureError as error:
            assert error.termination is Termination.SANDBOX_LOST
        assert (await zygotes.run("print(1)", retry=False)).stdout == b"1\n"
        assert gone(pids)

    asyncio.run(main())


def test_a_program_that_may_run_again_does_so_once_and_is_counted(zygotes):
    async def main():
        request = asyncio.ensure_future(zygotes.run("import time; time.sleep(1.5); print('through')"))
        await until_running(zygotes)
        kill_zygote(zygotes)
        outcome = await request
        assert (outcome.stdout, outcome.retries) == (b"through\n", 1)

        request = asyncio.ensure_future(zygotes.run("import time; time.sleep(30)", limits=Limits(wall_s=60)))
        for _ in range(2):
            await until_running(zygotes)
            kill_zygote(zygotes)
            await asyncio.sleep(0.3)
        with pytest.raises(InfrastructureError):
            await request

    asyncio.run(main())


def test_a_zygote_that_died_while_idle_is_replaced_unnoticed(zygotes):
    async def main():
        await zygotes.run("pass")
        os.kill(zygotes.pids[0], signal.SIGKILL)
        await asyncio.sleep(0.2)
        outcome = await zygotes.run("print(1)", retry=False)
        assert outcome.stdout == b"1\n"

    asyncio.run(main())


def test_a_stopped_zygote_ends_in_a_typed_timeout(zygotes, monkeypatch):
    monkeypatch.setattr(zygote, "_GRACE_S", 0.5)

    async def main():
        await zygotes.run("pass")
        pids = tree(zygotes.pids[0])
        os.kill(pids[-1], signal.SIGSTOP)
        with pytest.raises(InfrastructureError) as caught:
            await zygotes.run("print(1)", limits=Limits(wall_s=0.5), retry=False)
        assert caught.value.termination is Termination.TIMEOUT_INFRA
        assert gone(pids)
        assert (await zygotes.run("print(1)")).stdout == b"1\n"

    asyncio.run(main())


def test_a_cancelled_request_leaves_nothing_running(zygotes):
    async def main():
        request = asyncio.ensure_future(zygotes.run("import time; time.sleep(20)", limits=Limits(wall_s=20)))
        await until_running(zygotes)
        pids = tree(zygotes.pids[0])
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert gone(pids)
        assert (await zygotes.run("print(1)")).stdout == b"1\n"

    asyncio.run(main())


@pytest.mark.parametrize("way", ["kill", "term", "exit"])
def test_nothing_outlives_the_owner(backend, way):
    owner = f"""
    import asyncio, os, sys, threading
    from rufus_plugins.rollouts.sandboxes.zygote import Limits, Zygotes
    pool = Zygotes(backend={backend!r}, workers=2)
    source = "import time\\ntry:\\n import os; os.fork()\\nexcept OSError: pass\\nwhile True: time.sleep(1)"
    async def main():
        work = [asyncio.ensure_future(pool.run(source, limits=Limits(wall_s=100))) for _ in range(2)]
        while len(pool.pids) < 2:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.7)
        print(*pool.pids, flush=True)
        if {way == "exit"}:
            sys.stdin.readline()
            os._exit(0)
        await asyncio.gather(*work)
    asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(owner)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        jails = [int(pid) for pid in process.stdout.readline().split()]
        assert len(jails) == 2
        pids = [pid for jail in jails for pid in tree(jail)]
        assert len(pids) >= 2 * _PROCESSES[backend]
        if way == "exit":
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            process.send_signal(signal.SIGKILL if way == "kill" else signal.SIGTERM)
        process.wait(timeout=20)
        assert gone(pids)
    finally:
        process.kill()
        process.wait()


def test_a_jail_does_not_end_with_the_thread_that_first_asked_for_it(zygotes):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(asyncio.run(zygotes.run("print(1)"))))
    thread.start()
    thread.join()
    pids = zygotes.pids
    time.sleep(0.3)
    outcomes.append(asyncio.run(zygotes.run("print(2)", retry=False)))
    assert [outcome.stdout for outcome in outcomes] == [b"1\n", b"2\n"]
    assert zygotes.pids == pids


def test_loops_in_several_threads_share_one_pool(zygotes):
    results = []

    async def several(base):
        outcomes = await asyncio.gather(*[zygotes.run(f"print({base} + {i})") for i in range(5)])
        return [int(outcome.stdout) for outcome in outcomes]

    threads = [
        threading.Thread(target=lambda base=base: results.append((base, asyncio.run(several(base)))))
        for base in (0, 100, 200, 300)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(base, [base + i for i in range(5)]) for base in (0, 100, 200, 300)]
    assert len(zygotes.pids) <= 2


def test_a_deadline_counts_from_admission_not_from_queueing(zygotes):
    async def main():
        work = [zygotes.run("import time; time.sleep(0.25); print('ok')", limits=Limits(wall_s=4)) for _ in range(64)]
        began = time.monotonic()
        outcomes = await asyncio.gather(*work)
        assert {outcome.stdout for outcome in outcomes} == {b"ok\n"}
        # 64 sleeps of a quarter second, two at a time: most have waited longer than their own deadline
        assert time.monotonic() - began > 7

    asyncio.run(main())


def test_a_hanging_program_delays_only_those_that_need_its_place(zygotes):
    async def main():
        hanging = asyncio.ensure_future(zygotes.run("import time; time.sleep(60)", limits=Limits(wall_s=3)))
        await until_running(zygotes)
        began = time.monotonic()
        assert (await zygotes.run("print(1)")).stdout == b"1\n"
        assert time.monotonic() - began < 2.5
        assert (await hanging).timed_out

    asyncio.run(main())


def test_a_forked_owner_starts_its_own_jails(zygotes):
    asyncio.run(zygotes.run("pass"))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            outcome = asyncio.run(zygotes.run("print('child')"))
            os.write(write, outcome.stdout + str(len(zygotes.pids)).encode())
            zygotes.close()
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 100) == b"child\n1"
    os.close(read)
    assert asyncio.run(zygotes.run("print('parent')", retry=False)).stdout == b"parent\n"


# -- calls ------------------------------------------------------------------------------------------------------------


def test_a_batch_costs_one_process_and_keeps_its_order(zygotes):
    results = asyncio.run(zygotes.call_batch("math:factorial", [3, 4, 5]))
    assert [result.value for result in results] == [6, 24, 120]
    values = asyncio.run(zygotes.call_batch("os:getppid", []))
    assert values == []


def test_an_item_that_hangs_costs_its_own_deadline(zygotes):
    began = time.monotonic()
    results = asyncio.run(zygotes.call_batch("time:sleep", [0, 30, 0.01], Limits(wall_s=0.5)))
    assert [result.ok for result in results] == [True, False, True]
    assert results[1].error == "timeout"
    assert time.monotonic() - began < 10


def test_the_deadline_is_per_item(zygotes):
    results = asyncio.run(zygotes.call_batch("time:sleep", [0.7] * 5, Limits(wall_s=2.5)))
    assert all(result.ok for result in results)


def test_an_item_that_raises_or_crashes_is_a_result(zygotes):
    results = asyncio.run(zygotes.call_batch("math:sqrt", [4, -1, "x", 9]))
    assert [result.value if result.ok else result.error for result in results] == [2.0, "ValueError", "TypeError", 3.0]
    results = asyncio.run(zygotes.call_batch("os:_exit", [3]))
    assert results[0].error == "crashed"
    results = asyncio.run(zygotes.call_batch("builtins:bytearray", [4 << 30]))
    assert results[0].error in ("MemoryError", "memory")


def test_a_function_that_is_not_there_is_our_fault(zygotes):
    with pytest.raises(InfrastructureError, match="no_such_module"):
        asyncio.run(zygotes.call_batch("no_such_module:f", [1]))


def test_an_entry_point_that_does_not_import_says_so(backend):
    pool = Zygotes(["no_such_module:entry"], backend=backend)
    with pytest.raises(InfrastructureError, match="no_such_module"):
        asyncio.run(pool.run("pass"))
    pool.close()


# -- which backend ----------------------------------------------------------------------------------------------------


def test_without_isolation_nothing_runs(monkeypatch):
    monkeypatch.setattr(zygote, "_backends", {})

    def start(*args, **kwargs):
        raise OSError("not on this machine")

    monkeypatch.setattr(launch, "start", start)
    found, why = available()
    assert found is None
    assert "bubblewrap: " in why and "landlock: " in why
    with pytest.raises(SandboxUnavailable, match="not run"):
        asyncio.run(Zygotes().run("print(1)"))


def test_a_wrong_backend_says_what_exists():
    with pytest.raises(ConfigError, match="bubblewrap, landlock"):
        available("docker")


def test_pools_are_shared_by_their_preloads():
    assert shared(["math"]) is shared(["math"])
    assert shared(["math"]) is not shared(["json"])


def test_without_proc_the_jail_still_holds_and_allows_no_children(monkeypatch):
    if not available("bubblewrap")[0]:
        pytest.skip("no bubblewrap here")
    monkeypatch.setattr(launch, "mount_proc", False)
    pool = Zygotes(backend="bubblewrap", workers=1)
    source = "import os\nprint(os.path.exists('/proc/self'))\ntry: os.fork()\nexcept OSError: print('no child')"
    outcome = asyncio.run(pool.run(source))
    pool.close()
    assert outcome.stdout == b"False\nno child\n", outcome


# -- several items in one request ------------------------------------------------------------------------------------


def each(pool, sources, stdins, **limits):
    items = [(stdin, source.encode()) for source, stdin in zip(sources, stdins, strict=True)]
    return asyncio.run(pool.request_each(zygote.RUN_PROGRAM, items, limits=Limits(**limits)))


def test_items_run_in_order_each_in_a_process_of_its_own(zygotes):
    source = "import os\nprint(input(), os.listdir('.'))\nopen('left', 'w').write('x')"
    outcomes, stdins = [], [f"{i}".encode() for i in range(6)]
    while len(outcomes) < 6:
        outcomes += each(zygotes, [source] * (6 - len(outcomes)), stdins[len(outcomes) :])
    assert [outcome.stdout.decode() for outcome in outcomes] == [f"{i} []\n" for i in range(6)]


def test_items_after_the_first_that_fails_do_not_run(zygotes):
    outcomes = each(zygotes, ["import sys; sys.exit(3)", "print('more')"], [b"", b""])
    assert [outcome.exit_code for outcome in outcomes] == [3]
    outcomes = each(zygotes, ["import time; time.sleep(0.5)", "print('more')"], [b"", b""])
    assert len(outcomes) == 1, "after a fifth of a second the caller decides"


def test_an_item_finds_nothing_of_the_others(zygotes):
    # the whole memory of the process is searched for the bytes of the other items' input
    source = """
import ctypes, os
word = bytes(b ^ 1 for b in input().encode())
found = 0
try:
    maps = open('/proc/self/maps').read().splitlines()
except OSError:
    maps = []
for line in maps:
    span, rights, *rest = line.split()
    low, high = (int(x, 16) for x in span.split('-'))
    if rights[0] == 'r' and 'w' in rights and high - low < 1 << 28:
        found += ctypes.string_at(low, high - low).count(b'<' + word)
print(found, len(maps) > 10)
"""
    secret = b"xylophone-815"
    flipped = bytes(b ^ 1 for b in secret)
    for length in (0, 1 << 20):
        planted = b"<" + secret + b"." * length
        outcomes = each(zygotes, [source, "pass", "pass"], [flipped, planted, planted])
        assert outcomes[0].stdout.split()[0] == b"0", outcomes[0]
        assert outcomes[0].stdout.split()[1] == str(zygotes.backend == "bubblewrap").encode(), "maps were read"
        # and after the others have run
        assert each(zygotes, [source], [flipped])[0].stdout.split()[0] == b"0"


def test_the_source_that_items_share_is_the_program_of_each(zygotes):
    items = [(f"{i}\n".encode(), b"") for i in range(3)]
    found = asyncio.run(zygotes.request_each(zygote.RUN_PROGRAM, items, source=b"print(int(input()) ** 2, __name__)"))
    assert [o.stdout for o in found] == [b"0 __main__\n", b"1 __main__\n", b"4 __main__\n"]
    broken = asyncio.run(zygotes.request_each(zygote.RUN_PROGRAM, items, source=b"print('early')\nreturn"))
    assert len(broken) == 1 and broken[0].exit_code == 1 and b"SyntaxError: 'return' outside" in broken[0].stderr
    deep = b"x = " + b"(" * 90 + b"1" + b")" * 90 + b"\nprint(x)"  # within the compiler's bounds
    assert len(asyncio.run(zygotes.request_each(zygote.RUN_PROGRAM, items, source=deep))) == 3
    endless = asyncio.run(zygotes.request_each(zygote.RUN_PROGRAM, items, source=b"-" * 200_000 + b"1"))
    assert len(endless) == 1 and endless[0].exit_code != 0


def test_an_item_cannot_read_what_runs_it_and_wins_nothing_by_killing_it(zygotes):
    read = """
import os
reached = []
for what in ('mem', 'environ', 'maps', 'fd/128', 'fd/3'):
    try:
        open(f'/proc/{os.getppid()}/{what}', 'rb').read(1)
        reached.append(what)
    except OSError:
        pass
print(reached, [fd for fd in range(3, 400) if os.path.exists(f'/proc/self/fd/{fd}') and fd != 3])
"""
    outcomes = each(zygotes, [read] * 3, [b"secret"] * 3)
    assert [outcome.stdout for outcome in outcomes] == [b"[] []\n"] * 3, outcomes
    lost = zygotes.lost
    for number in (9, 19):  # the item then runs under process 1, which it cannot harm
        harm = f"import os\nprint('before', flush=True)\ntry: os.kill(os.getppid(), {number})\nexcept OSError: pass"
        outcomes = each(zygotes, ["print(1)", harm, "print(3)"], [b"", b"", b""], wall_s=2)
        assert [(outcome.stdout, outcome.exit_code) for outcome in outcomes][:2] == [(b"1\n", 0), (b"before\n", 0)]
        outcomes = each(zygotes, ["print(1)", f"{harm}\nwhile True: pass"], [b"", b""], wall_s=0.5)
        assert outcomes[1].timed_out and outcomes[1].stdout == b"before\n"
    left = run_left(zygotes)
    assert left == [] and zygotes.lost == lost


def run_left(pool):
    """Processes of the jail that a new program sees besides itself and process 1."""
    source = "import os\nprint(*[p for p in os.listdir('/proc') if p.isdigit()] if os.path.isdir('/proc/self') else [])"
    return [p for p in asyncio.run(pool.run(source)).stdout.split() if int(p) > 1][1:]


def test_an_item_that_leaves_a_child_behind_does_not_reach_the_next(zygotes):
    leave = """
import os, time
try:
    if not os.fork():
        os.setsid()
        if not os.fork():
            while True:
                open('planted', 'w').write('x')
                time.sleep(0.001)
        os._exit(0)
except OSError:
    pass
"""
    look = "import os, time\ntime.sleep(0.02)\nprint(os.path.exists('planted'))"
    outcomes = each(zygotes, [leave, look], [b"", b""])
    assert [outcome.stdout for outcome in outcomes] == [b"", b"False\n"]
