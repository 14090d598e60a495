"""What a program in the jail can and cannot do. Every test runs in both backends, where the machine has them."""

import asyncio
import json
import os
import textwrap
import time

import pytest

from rufus_plugins.rollouts.sandboxes.zygote import Limits, Zygotes, available

SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def zygotes(request):
    found, why = available(request.param)
    if not found:
        pytest.skip(why)
    os.environ["RUFUS_TEST_SECRET"] = SECRET
    pool = Zygotes(backend=request.param, workers=2)
    yield pool
    pool.close()
    del os.environ["RUFUS_TEST_SECRET"]


def run(zygotes, source, stdin="", **limits):
    return asyncio.run(zygotes.run(textwrap.dedent(source), stdin, Limits(**limits)))


def refused(zygotes, statement, setup="", **limits):
    """Runs `statement`; True if it raised, False if it went through."""
    outcome = run(
        zygotes,
        f"{setup}\ntry:\n    {statement}\nexcept BaseException as error:\n    print('refused', repr(error))\n"
        "else:\n    print('allowed')",
        **limits,
    )
    printed = outcome.stdout.decode()
    assert printed.startswith(("refused", "allowed")), (outcome, printed)
    return printed.startswith("refused")


def processes_with(word):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if word.encode() in file.read():
                        found.append(int(name))
            except OSError:
                continue
    return found


# -- a well-behaved program ----------------------------------------------------------------------------------------


def test_a_program_reads_its_input_and_prints(zygotes):
    outcome = run(zygotes, "a, b = map(int, input().split())\nprint(a + b)", "2 3\n")
    assert (outcome.status, outcome.exit_code, outcome.stdout, outcome.stderr) == ("exited", 0, b"5\n", b"")


def test_an_exception_ends_with_status_1_and_a_traceback(zygotes):
    outcome = run(zygotes, "1 / 0")
    assert outcome.exit_code == 1
    assert b"ZeroDivisionError" in outcome.stderr


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("exit()", 0),
        ("quit(4)", 4),
        ("raise SystemExit('no')", 1),
        ("import os; os._exit(7)", 7),
        ("import sys; sys.exit(256)", 0),
    ],
)
def test_exit_statuses_are_those_of_python(zygotes, source, code):
    assert run(zygotes, source).exit_code == code


def test_a_crash_reports_its_signal(zygotes):
    outcome = run(zygotes, "import os; os.abort()")
    assert (outcome.exit_code, outcome.signal) == (None, 6)


def test_standard_input_can_be_read_in_every_usual_way(zygotes):
    source = """
    import sys, os
    first = input()
    rest = sys.stdin.readline()
    left = sys.stdin.read()
    sys.stdin.seek(0)
    again = open(0, closefd=False).read()
    os.lseek(0, 0, 0)
    raw = os.read(0, 100)
    os.lseek(0, 0, 0)
    print([first, rest, left, again, raw, open('/dev/stdin').readline()])
    """
    outcome = run(zygotes, source, "a\nb\nc\n")
    assert outcome.stdout.decode() == "['a', 'b\\n', 'c\\n', 'a\\nb\\nc\\n', b'a\\nb\\nc\\n', 'a\\n']\n"


def test_input_and_output_are_utf8_and_carry_odd_bytes_through(zygotes):
    outcome = run(zygotes, "print(input())", "Grüße, 世界 \udcff".encode("utf-8", "surrogateescape"))
    assert outcome.stdout == "Grüße, 世界 ".encode() + b"\xff\n"


def test_buffered_output_of_another_stream_object_is_flushed_at_the_end(zygotes):
    assert run(zygotes, "import os\nout = os.fdopen(os.dup(1), 'w')\nout.write('late')").stdout == b"late"


def test_exit_functions_and_threads_finish_before_the_program_does(zygotes):
    source = """
    import atexit, threading, time
    atexit.register(print, "exit function")
    threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
    print("main")
    """
    assert run(zygotes, source).stdout == b"main\nthread\nexit function\n"


def test_deep_recursion_through_c_works_as_on_judges(zygotes):
    source = """
    import sys
    from functools import lru_cache
    sys.setrecursionlimit(10**6)
    @lru_cache(None)
    def f(n):
        return n and f(n - 1) + 1
    print(f(50000))
    """
    assert run(zygotes, source).stdout == b"50000\n"


def test_classes_of_the_program_live_in_its_main_module(zygotes):
    source = """
    import pickle, dataclasses, sys
    @dataclasses.dataclass
    class P:
        x: "int"
    print(__name__, pickle.loads(pickle.dumps(P(3))), sys.modules['__main__'].P is P, sys.argv)
    """
    assert run(zygotes, source).stdout == b"__main__ P(x=3) True ['main.py']\n"


def test_asyncio_and_small_files_work(zygotes):
    source = """
    import asyncio, tempfile
    async def main():
        await asyncio.sleep(0.001)
        return 5
    print(asyncio.run(main()))
    with tempfile.TemporaryDirectory() as folder:
        open(folder + '/x', 'w').write('hello')
        print(open(folder + '/x').read())
    open('here', 'w').write('x')
    """
    outcome = run(zygotes, source)
    assert outcome.stdout == b"5\nhello\n", outcome.stderr


def test_numpy_can_be_imported_before_the_fork(zygotes):
    pytest.importorskip("numpy")
    outcome = asyncio.run(zygotes.run("import numpy as np; print(np.arange(4).sum())", imports=["numpy", "no_such"]))
    assert outcome.stdout == b"6\n", outcome.stderr


def test_two_programs_share_nothing(zygotes):
    leave = """
    import builtins, json, os, sys
    builtins.print = None
    json.loads = None
    sys.modules['math'] = None
    os.makedirs('a/b', exist_ok=True)
    open('a/b/left', 'w').write('x')
    try: os.chmod('a/b', 0)
    except OSError: pass
    """
    look = "import json, math, os\nprint(json.loads('[1]'), os.listdir('.'), math.pi > 3)"
    for _ in range(4):
        run(zygotes, leave)
        assert run(zygotes, look).stdout == b"[1] [] True\n"


# -- what stays blocked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('127.0.0.1', 22), 1)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
        "socket.socket(socket.AF_UNIX).bind('\\0rufus-test')",
        "socket.socket(socket.AF_UNIX).connect('\\0rufus-test')",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "socket.socket(socket.AF_INET6)",
    ],
)
def test_no_socket_can_be_made(zygotes, attempt):
    assert refused(zygotes, attempt, "import socket")


def test_a_file_of_the_host_cannot_be_read(zygotes, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    assert refused(zygotes, f"open({str(secret)!r}).read()")
    assert refused(zygotes, "open('/etc/passwd').read()")
    assert refused(zygotes, f"open({os.path.abspath('pyproject.toml')!r}).read()")
    for folder in (os.path.expanduser("~/.ssh"), "/etc", str(tmp_path)):
        if os.path.isdir(folder) and os.listdir(folder):
            outcome = run(zygotes, f"import os\ntry: print(os.listdir({folder!r}))\nexcept OSError: print([])")
            assert not set(json.loads(outcome.stdout.decode().replace("'", '"'))) & {"secret", "passwd", "id_rsa"}


def test_nothing_outside_the_work_directory_can_be_written(zygotes, tmp_path):
    tmp_path.chmod(0o777)
    victim = tmp_path / "victim"
    victim.write_text("before")
    victim.chmod(0o666)
    for attempt in (
        f"open({str(victim)!r}, 'w').write('after')",
        f"os.remove({str(victim)!r})",
        f"os.truncate({str(victim)!r}, 0)",
        f"os.rename({str(victim)!r}, 'x')",
        f"os.link({str(victim)!r}, 'x')",
        f"os.chmod({str(victim)!r}, 0)",
        f"os.utime({str(victim)!r}, (1, 1))",
        f"os.setxattr({str(victim)!r}, 'user.x', b'1')",
        f"os.symlink({str(victim)!r}, 'l') or open('l', 'w')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({os.__file__!r}, 'a')",
        "open('/dev/new', 'w')",
        "open('/new', 'w')",
        "os.mkdir('/usr/new')",
        "os.mknod('dev', 0o60600, os.makedev(254, 0))",
    ):
        assert refused(zygotes, attempt, "import os"), attempt
    assert victim.read_text() == "before"
    assert victim.stat().st_mode & 0o777 == 0o666
    assert victim.stat().st_mtime > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


def test_the_environment_of_the_caller_is_nowhere(zygotes):
    source = """
    import glob, os
    print(dict(os.environ))
    for pattern in ('environ', 'mem', 'cmdline', 'maps', 'root/etc/passwd', 'cwd/pyproject.toml'):
        for path in glob.glob('/proc/[0-9]*/' + pattern):
            try:
                print(path, open(path, 'rb').read(1 << 16))
            except OSError:
                pass
    """
    outcome = run(zygotes, source)
    assert SECRET.encode() not in outcome.stdout
    assert b"pytest" not in outcome.stdout
    for path in (f"/proc/{os.getpid()}/environ", f"/proc/{os.getppid()}/environ"):
        assert refused(zygotes, f"open({path!r}).read()")


def test_the_zygote_cannot_be_read_traced_or_signalled(zygotes):
    source = """
    import ctypes, os, signal
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    reached = []
    for what in ('mem', 'environ', 'maps', 'fd/3'):
        try:
            open(f'/proc/{parent}/{what}', 'rb').read(1)
            reached.append(what)
        except OSError:
            pass
    if libc.ptrace(16, parent, 0, 0) == 0:
        reached.append('ptrace')
    buffer = ctypes.create_string_buffer(8)
    class Part(ctypes.Structure):
        _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
    ours, theirs = Part(ctypes.addressof(buffer), 8), Part(id(None), 8)
    if libc.process_vm_readv(parent, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) > 0:
        reached.append('process_vm_readv')
    for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        try:
            os.kill(parent, number)
        except OSError:
            pass
    print(reached)
    """
    before = zygotes.lost
    for _ in range(3):
        outcome = run(zygotes, source)
        assert outcome.stdout == b"[]\n", outcome
    assert zygotes.lost == before


def test_no_other_process_of_the_machine_can_be_signalled(zygotes):
    attempt = f"os.kill({os.getpid()}, 0)"
    assert refused(zygotes, attempt, "import os")
    outcome = run(zygotes, "import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass\nprint('here')")
    assert outcome.status == "exited"
    assert run(zygotes, "print(1)").stdout == b"1\n"


def test_limits_cannot_be_raised_and_no_rights_be_won(zygotes):
    libc = "import ctypes, os, resource\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    libc += "def ok(result):\n    if result < 0: raise OSError(ctypes.get_errno())"
    for attempt in (
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))",
        "os.setuid(0)",
        "os.setgid(0)",
        "ok(libc.unshare(0x10000000))",
        "ok(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
        "ok(libc.chroot(b'.'))",
        "ok(libc.memfd_create(b'x', 0))",
        "ok(libc.shmget(0, 1 << 20, 0o1600))",
        "ok(libc.syscall(425, 8, ctypes.create_string_buffer(256)))",  # io_uring_setup
        "ok(libc.syscall(298 if os.uname().machine == 'x86_64' else 241, None, 0, -1, -1, 0))",  # perf_event_open
        "ok(libc.syscall(321 if os.uname().machine == 'x86_64' else 280, 0, None, 0))",  # bpf
        "ok(libc.syscall(447, 0))",  # memfd_secret: newer than the filter's list
    ):
        assert refused(zygotes, attempt, libc), attempt
    outcome = run(zygotes, "import os; print(os.getuid() != 0 and os.geteuid() != 0)")
    assert outcome.stdout == b"True\n"


def test_no_descriptor_of_the_zygote_is_inherited(zygotes):
    source = """
    import os, stat
    for fd in range(1024):
        try:
            print(fd, stat.S_ISSOCK(os.fstat(fd).st_mode))
        except OSError:
            pass
    """
    # 3 is the channel of the answer, a pipe
    assert run(zygotes, source).stdout.split() == b"0 False 1 False 2 False 3 False".split()


# -- limits --------------------------------------------------------------------------------------------------------


def test_a_spinning_program_costs_its_deadline(zygotes):
    outcome = run(zygotes, "while True: pass", wall_s=0.3)
    assert outcome.timed_out
    assert 0.3 <= outcome.wall_s < 5


def test_processor_time_is_limited_as_well(zygotes):
    outcome = run(zygotes, "while True: pass", wall_s=30, cpu_s=1)
    assert outcome.timed_out
    assert outcome.signal == 24
    assert outcome.wall_s < 25


def test_ignoring_every_signal_does_not_help(zygotes):
    source = """
    import signal
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True: pass
    """
    assert run(zygotes, source, wall_s=0.3).timed_out
    outcome = run(zygotes, source, wall_s=20, cpu_s=1)
    assert outcome.wall_s < 18


def test_two_gigabytes_are_not_given(zygotes):
    outcome = run(zygotes, "x = bytearray(2 << 30)\nprint(len(x))")
    assert outcome.memory_exceeded
    assert outcome.stdout == b""


def test_memory_of_a_slow_eater_is_limited(zygotes):
    outcome = run(zygotes, "x = []\nwhile True: x.append(bytearray(1 << 20))", memory_mb=128)
    assert outcome.memory_exceeded


def test_shared_memory_counts(zygotes):
    outcome = run(zygotes, "import mmap\nx = [mmap.mmap(-1, 64 << 20) for _ in range(64)]\nprint('had them')")
    assert outcome.stdout == b""


def test_memory_of_a_whole_family_is_limited(zygotes):
    source = """
    import os, time
    for _ in range(8):
        if not os.fork():
            x = bytearray(b'x') * (100 << 20)
            time.sleep(20)
    time.sleep(20)
    """
    outcome = run(zygotes, source, memory_mb=128, wall_s=15)
    assert outcome.status == "memory" or b"PermissionError" in outcome.stderr
    assert outcome.wall_s < 10


def test_a_fork_bomb_is_stopped_and_swept(zygotes):
    began = time.monotonic()
    outcome = run(zygotes, "import os\nwhile True: os.fork()", wall_s=3)
    assert outcome.stdout == b""
    assert time.monotonic() - began < 15
    assert run(zygotes, "print('next')").stdout == b"next\n"


def test_a_thread_bomb_is_stopped(zygotes):
    source = """
    import threading, time
    count = 0
    try:
        while count < 5000:
            threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
            count += 1
    except RuntimeError:
        pass
    print(count < 1000)
    """
    assert run(zygotes, source, wall_s=8).stdout == b"True\n"


def test_a_daemonised_grandchild_is_swept(zygotes):
    marker = f"rufus_daemon_{os.getpid()}"
    source = f"""
    import os, subprocess, sys
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {marker!r}])
                os.close(0)
                import time; time.sleep(60)
            os._exit(0)
    except OSError:
        pass
    print('done')
    """
    began = time.monotonic()
    outcome = run(zygotes, source)
    assert b"done" in outcome.stdout
    assert time.monotonic() - began < 10
    assert processes_with(marker) == []


def test_a_print_flood_is_cut_while_it_runs(zygotes):
    outcome = run(zygotes, "while True: print('x' * 10000)", output_kb=256)
    assert outcome.status == "output"
    assert len(outcome.stdout) <= 256 << 10
    assert outcome.wall_s < 5


def test_a_flood_on_standard_error_or_on_the_answer_is_cut_too(zygotes):
    flood = "import os\nwhile True: os.write({}, b'x' * 65536)"
    assert run(zygotes, flood.format(2)).status == "output"
    assert run(zygotes, flood.format(3)).status == "output"


def test_the_disk_cannot_be_filled(zygotes):
    source = """
    i = 0
    while True:
        with open(f'f{i}', 'wb') as file: file.write(b'x' * (4 << 20))
        i += 1
    """
    outcome = run(zygotes, source, wall_s=8)
    assert outcome.status == "disk" or b"No space left" in outcome.stderr
    assert run(zygotes, "import os; print(os.listdir('.'))").stdout == b"[]\n"


def test_one_file_cannot_pass_its_limit(zygotes):
    outcome = run(zygotes, "with open('big', 'wb') as f:\n    while True: f.write(b'x' * (1 << 20))", file_mb=8)
    assert outcome.exit_code != 0
    assert outcome.status == "exited"


def test_a_swarm_of_empty_files_does_not_reach_the_next_program(zygotes):
    outcome = run(zygotes, "i = 0\nwhile True:\n    open(str(i), 'w').close()\n    i += 1", wall_s=5)
    assert outcome.status in ("disk", "timeout")
    assert run(zygotes, "import os; print(os.listdir('.'))").stdout == b"[]\n"


def test_a_very_deep_directory_does_not_break_the_sweeping(zygotes):
    run(zygotes, "import os\nfor _ in range(900):\n    os.mkdir('d')\n    os.chdir('d')")
    assert run(zygotes, "import os; print(os.listdir('.'))").stdout == b"[]\n"


def test_children_are_possible_where_they_can_be_counted(zygotes):
    source = (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(6)'], capture_output=True).stdout)"
    )
    outcome = run(zygotes, source)
    if zygotes.backend == "bubblewrap":
        assert outcome.stdout == b"b'6\\n'\n", outcome.stderr
    else:
        assert b"PermissionError" in outcome.stderr


def test_a_flood_of_frames_is_read_up_to_a_bound():
    from rufus_plugins.rollouts.sandboxes.zygote import _frames

    assert _frames(b"\0\0\0\2ab\0\0\0\1c\0\0\0\5cut") == [b"ab", b"c"]
    assert len(_frames(b"\0\0\0\0" * 1_000_000)) == 65_536
