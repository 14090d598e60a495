"""The local sandbox: its own files, processes and users; hostile output; what ends with what."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rufus_plugins.errors import ConfigError, InfrastructureError, SandboxUnavailable
from rufus_plugins.plugins import registry
from rufus_plugins.rollouts.sandboxes.local import Local
from rufus_plugins.types import Termination


def available():
    async def look():
        sandbox = Local()
        try:
            await sandbox.start()
        finally:
            await sandbox.close()

    try:
        asyncio.run(look())
    except SandboxUnavailable as error:
        return str(error)
    return ""


UNAVAILABLE = available()
pytestmark = pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE or "-")


def played(function, **fields):
    """`function(sandbox)` with a sandbox that is closed afterwards."""

    async def play():
        sandbox = Local(**fields)
        try:
            return await function(sandbox)
        finally:
            await sandbox.close()

    return asyncio.run(play())


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


def below(pid):
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in file.read().split():
                try:
                    found += below(int(child))
                except OSError:
                    continue
    return found


def gone(pids, within_s=15.0):
    deadline = time.monotonic() + within_s
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pids)


def test_output_exit_code_and_duration_come_back():
    result = played(lambda s: s.exec("echo out; echo err >&2; exit 3", 20))
    assert (result.stdout, result.stderr, result.exit_code, result.started) == ("out\n", "err\n", 3, True)
    assert 0 < result.duration_s < 20


def test_files_are_kept_between_commands_and_seen_by_read_and_write():
    async def play(s):
        await s.write_file("/deep/er/file", b"\0\xff data")
        assert (await s.exec("wc -c < /deep/er/file; echo more > /root/x", 20)).stdout == "7\n"
        assert await s.read_file("/root/x") == b"more\n"
        with pytest.raises(FileNotFoundError):
            await s.read_file("/nowhere")
        with pytest.raises(OSError, match="no regular file"):
            await s.read_file("/dev/zero")
        await s.exec("mkfifo /tmp/pipe", 20)
        with pytest.raises(OSError, match="no regular file"):
            await s.read_file("/tmp/pipe")

    played(play)


def test_the_machine_is_not_seen_and_not_touched(tmp_path):
    (tmp_path / "secret").write_text("s3cret")
    os.environ["RUFUS_TEST_SECRET"] = "s3cret-in-environment"
    script = f"""
    cat {tmp_path}/secret; ls /work /home/* 2>/dev/null; env; cat /proc/1/environ; cat /proc/*/environ | tr '\\0' '\\n'
    touch /usr/bin/rufus-was-here; cat /etc/shadow; ls /proc | grep -c '^[0-9]'
    """
    try:
        result = played(lambda s: s.exec(script, 30))
    finally:
        del os.environ["RUFUS_TEST_SECRET"]
    assert "s3cret" not in result.stdout
    assert not os.path.exists("/usr/bin/rufus-was-here")
    assert int(result.stdout.split()[-1]) < 10


@pytest.mark.parametrize(
    "attack",
    [
        "mount -t tmpfs none /mnt",
        "unshare -Ur true",
        "unshare -m true",
        "mknod /tmp/disk b 8 0",
        "chroot / mount -t proc proc /proc",
        "echo 1 > /proc/sys/kernel/ns_last_pid",
        "echo h > /proc/sysrq-trigger",
        "cat /proc/1/mem",
        "cat /proc/1/fd/5",
        "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 2)\"",
        'python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"',
        "nsenter -t 1 -m true",
        "gdb -p 1 -batch && false || strace -p 1 -o /dev/null & sleep 0.2; kill %1 && false",
    ],
)
def test_an_attack_fails(attack):
    async def play(s):
        result = await s.exec(attack, 20)
        assert result.exit_code != 0, result
        assert (await s.exec("kill -9 1; kill -9 -1; true", 20)).started
        assert (await s.exec("echo still here", 20)).stdout == "still here\n"

    played(play)


def test_the_sandbox_has_a_loopback_of_its_own():
    async def play(s):
        await s.exec("cd /tmp && echo page > index.html && (python3 -m http.server 8099 >/dev/null 2>&1 &)", 20)
        fetch = (
            'for i in $(seq 100); do python3 -c "import urllib.request as u; '
            "print(u.urlopen('http://127.0.0.1:8099').read())\" 2>/dev/null && break; sleep 0.1; done"
        )
        assert (await s.exec(fetch, 60)).stdout == "b'page\\n'\n"

    played(play)


def test_background_processes_outlive_their_command_and_may_go_on_writing():
    async def play(s):
        begun = time.monotonic()
        first = await s.exec(
            "(for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done; echo done > /tmp/end) & echo hi", 20
        )
        assert first.exit_code == 0 and first.stdout.startswith("hi") and time.monotonic() - begun < 15
        for _ in range(200):
            if (await s.exec("test -e /tmp/end", 20)).exit_code == 0:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the background process did not come to its end")

    played(play)


def test_a_deadline_kills_the_command_with_its_children_but_nothing_older():
    async def play(s):
        await s.exec("sleep 1000 & disown", 20)
        result = await s.exec("echo before; sleep 2000 | sleep 2000", 0.5)
        assert result.exit_code is None and result.started and result.stdout == "before\n"
        left = (await s.exec("pgrep -x -a sleep", 20)).stdout
        assert "sleep 1000" in left and "2000" not in left

    played(play)


def test_a_flood_keeps_its_two_ends_and_says_how_much_is_missing():
    script = "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last"
    result = played(lambda s: s.exec(script, 120), output_kb=64)
    assert result.exit_code == 0
    assert result.stdout.startswith("first\nxxx") and result.stdout.endswith("xxx\nlast\n")
    total = len("first\n") + 100_000_000 + len("\nlast\n")
    assert f"[... {total - 64 * 1024} bytes left out ...]" in result.stdout
    assert len(result.stdout) < 66_000


def test_output_that_is_no_text_arrives_as_text():
    result = played(lambda s: s.exec(r"printf 'a\000b\xff\xfe\xe2\x82 \033[31m'", 20))
    assert result.stdout == "a\0b\ufffd\ufffd\ufffd \x1b[31m"


@pytest.mark.parametrize(
    "command, code",
    [
        ("exit 9", 9),
        ("exec echo replaced", 0),
        ("kill -9 $$", 137),
        ("kill -TERM 0", 143),
        ("exec 1>&- 2>&-; true", 0),
        ("ulimit -n 3; true", 0),
        ("setsid sleep 1000 >/dev/null 2>&1 & exit 4", 4),
        ("kill -STOP $PPID; true", 0),
        ("this is no command", 127),
        ("if", 2),
    ],
)
def test_a_command_that_ends_its_shell_ends_nothing_else(command, code):
    async def play(s):
        assert (await s.exec(command, 20)).exit_code == code
        assert (await s.exec("echo fine", 20)).stdout == "fine\n"

    played(play)


def test_a_fork_bomb_meets_the_limit_and_the_sandbox_lives_on():
    async def play(s):
        await s.exec("bomb() { bomb | bomb & }; bomb; sleep 1", 3)
        for _ in range(50):
            await s.exec("kill -9 -1", 5)
            if (await s.exec("echo fine", 20)).stdout == "fine\n":
                return
        raise AssertionError("no command runs any more")

    played(play, processes=64)


def test_memory_beyond_the_limit_is_taken_back_and_told():
    async def play(s):
        result = await s.exec('python3 -c "x = bytearray(600 << 20); import time; time.sleep(60)"', 30)
        assert result.exit_code == 137 and "memory" in result.stderr
        assert (await s.exec("echo fine", 20)).stdout == "fine\n"

    played(play, memory_mb=200)


SHARED = """
import mmap, os, time
m = mmap.mmap(-1, 300 << 20)
for at in range(0, len(m), 4096): m[at] = 1
time.sleep(60)
"""
SEGMENTS = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(3):
    at = libc.shmat(libc.shmget(0, 100 << 20, 0o1600), None, 0)
    ctypes.memset(at, 1, 100 << 20)
    libc.shmdt(ctypes.c_void_p(at))
time.sleep(2)
print(sum(int(line.split()[-2]) for line in open("/proc/sysvipc/shm").readlines()[1:]) >> 20)
"""


def test_memory_that_no_process_has_for_itself_counts_too():
    async def play(s):
        for name, text in (("shared.py", SHARED), ("segments.py", SEGMENTS)):
            await s.write_file(f"/tmp/{name}", text.encode())
        shared = await s.exec("python3 /tmp/shared.py", 30)
        assert shared.exit_code == 137 and "memory" in shared.stderr
        segments = await s.exec("python3 /tmp/segments.py", 30)  # killed while attached, or taken away behind it
        assert segments.exit_code == 137 or int(segments.stdout) <= 200
        hidden = await s.exec("python3 -c 'import os; os.memfd_create(\"x\")'", 30)
        assert hidden.exit_code == 1 and "not implemented" in hidden.stderr

    played(play, memory_mb=200)


def test_memory_that_processes_share_counts_once():
    script = "import mmap, os, time\nm = mmap.mmap(-1, 100 << 20)\nfor i in range(3): os.fork()\n"
    script += "for at in range(0, len(m), 4096): m[at] = 1\ntime.sleep(1.5)\nprint('lived', flush=True)"

    async def play(s):
        await s.write_file("/tmp/x.py", script.encode())
        assert (await s.exec("python3 /tmp/x.py; wait", 30)).stdout.startswith("lived")

    played(play, memory_mb=300)


def test_what_is_written_to_dev_counts_as_disk():
    async def play(s):
        assert (await s.exec("head -c 100000000 /dev/zero > /dev/shm/fill", 60)).exit_code == 1
        assert (await s.exec("rm /dev/shm/fill; head -c 100000000 /dev/zero > /dev/fill", 60)).exit_code == 1
        use = "import multiprocessing as m; print(m.Pool(2).map(abs, [-1, 2]))"
        assert (await s.exec(f"python3 -c '{use}' 2>/dev/null", 60)).stdout == "[1, 2]\n"
        assert (await s.exec("echo x > /dev/null; head -c 3 /dev/urandom | wc -c", 20)).stdout == "3\n"

    played(play, disk_mb=20)


def test_a_full_disk_is_the_commands_own_problem():
    async def play(s):
        result = await s.exec("head -c 100000000 /dev/zero > /tmp/fill", 60)
        assert result.exit_code == 1 and "No space left" in result.stderr
        with pytest.raises(InfrastructureError, match="No space left"):
            await s.write_file("/tmp/more", b"x" * 100_000)
        assert (await s.exec("rm /tmp/fill; echo fine > /tmp/f; cat /tmp/f", 20)).stdout == "fine\n"

    played(play, disk_mb=20)


def test_long_commands_and_nul_characters():
    async def play(s):
        long = "x=" + "y" * 300_000 + "; echo ${#x}"
        assert (await s.exec(long, 30)).stdout == "300000\n"
        refused = await s.exec("echo a\0b", 20)
        assert not refused.started and refused.exit_code is None and "NUL" in refused.stderr

    played(play)


def test_a_folder_that_is_not_there_proves_that_nothing_ran():
    result = played(lambda s: s.exec("echo x", 20, cwd="/nowhere"))
    assert (result.started, result.exit_code) == (False, None) and "/nowhere" in result.stderr


def test_many_commands_at_a_time_do_not_mix():
    async def play(s):
        results = await asyncio.gather(*(s.exec(f"sleep 0.0{i % 7}; echo {i}; exit {i}", 60) for i in range(40)))
        assert [(r.stdout, r.exit_code) for r in results] == [(f"{i}\n", i) for i in range(40)]

    played(play)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a sandbox several users")
def test_a_task_may_have_users_who_are_nobody_outside():
    async def play(s):
        await s.exec("useradd -m ann && echo hi > /home/ann/f && chown ann /home/ann/f", 30)
        who = await s.exec("id -un; echo $HOME; cat /home/ann/f; echo x > /etc/nope", 20, user="ann")
        assert who.stdout == "ann\n/home/ann\nhi\n" and who.exit_code == 1
        owners = {os.stat(f"/proc/{pid}").st_uid for pid in below(s.pids[1])}
        assert 0 not in owners

    played(play)


def test_a_snapshot_has_the_files_and_not_the_processes(tmp_path):
    async def play(s):
        await s.exec("echo v1 > /root/f; mkdir /opt/d; rm -rf /var/log; mkfifo /tmp/p; sleep 1000 &", 20)
        path = await s.snapshot_to(tmp_path / "snap")
        await s.exec("echo v2 > /root/f", 20)
        first, second = Local(snapshot=path), Local(snapshot=path)
        try:
            look = "cat /root/f; ls -d /opt/d; ls -d /var/log 2>&1; pgrep sleep; echo changed > /root/f"
            seen = (await first.exec(look, 20)).stdout
            assert seen == "v1\n/opt/d\nls: cannot access '/var/log': No such file or directory\n"
            assert (await second.exec("cat /root/f", 20)).stdout == "v1\n"
            deeper = await first.snapshot_to(tmp_path / "deeper")
            third = Local(snapshot=deeper)
            assert (await third.exec("cat /root/f; ls -d /opt/d", 20)).stdout == "changed\n/opt/d\n"
            await third.close()
        finally:
            await first.close()
            await second.close()
        assert sorted(os.listdir(tmp_path)) == ["deeper", "snap"]
        with pytest.raises(ConfigError, match="exists already"):
            await s.snapshot_to(tmp_path / "snap")

    played(play)


def test_forks_go_their_own_ways():
    async def play(s):
        await s.exec("echo base > /root/f; rm -f /etc/hostname", 20)
        copies = await s.fork(3)
        try:
            for i, copy in enumerate(copies):
                assert (await copy.exec(f"cat /root/f; echo {i} >> /root/f; ls /etc/hostname", 20)).stdout == "base\n"
            for i, copy in enumerate(copies):
                assert (await copy.exec("cat /root/f", 20)).stdout == f"base\n{i}\n"
            assert (await s.exec("cat /root/f", 20)).stdout == "base\n"
        finally:
            for copy in copies:
                await copy.close()

    played(play)


def test_a_paused_sandbox_stands_still():
    async def play(s):
        await s.exec("(while :; do echo x >> /tmp/beat; sleep 0.02; done) > /dev/null 2>&1 &", 20)
        await asyncio.sleep(0.3)
        await s.pause()
        first = await s.read_file("/tmp/beat")
        await asyncio.sleep(0.3)
        assert first and await s.read_file("/tmp/beat") == first
        await s.resume()
        await asyncio.sleep(0.5)
        assert len(await s.read_file("/tmp/beat")) > len(first)

    played(play)


@pytest.mark.parametrize("which", [0, 1], ids=["monitor", "process 1"])
def test_a_sandbox_killed_in_mid_command_is_lost_and_leaves_nothing(which):
    async def play(s):
        await s.exec("sleep 1000 &", 20)
        running = asyncio.create_task(s.exec("sleep 1000", 2000))
        await asyncio.sleep(0.3)
        everything = below(s.pids[0])
        assert len(everything) >= 4
        os.kill(s.pids[which], signal.SIGKILL)
        with pytest.raises(InfrastructureError) as lost:
            await running
        assert lost.value.termination is Termination.SANDBOX_LOST
        with pytest.raises(InfrastructureError) as still:
            await s.exec("true", 20)
        assert still.value.termination is Termination.SANDBOX_LOST
        assert gone(everything)

    played(play)


def test_closing_and_cancelling_leave_no_process():
    async def play():
        s = Local()
        await s.exec("setsid sleep 1000 > /dev/null 2>&1 &", 20)
        running = asyncio.create_task(s.exec("sleep 777", 2000))
        await asyncio.sleep(0.3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert "777" not in (await s.exec("pgrep -a sleep", 20)).stdout
        everything = below(s.pids[0])
        await s.close()
        await s.close()
        assert gone(everything)
        with pytest.raises(InfrastructureError):
            await s.exec("true", 20)

    asyncio.run(play())


OWNER = textwrap.dedent("""
    import asyncio, json, os, sys
    from rufus_plugins.rollouts.sandboxes.local import Local

    async def main():
        boxes = [Local() for _ in range(2)]
        begin = "sleep 1000 & setsid sleep 1000 > /dev/null 2>&1 & head -c 5000000 /dev/zero > /tmp/f"
        await asyncio.gather(*(b.exec(begin, 60) for b in boxes))
        print(json.dumps([b.pids for b in boxes]), flush=True)
        await asyncio.gather(*(b.exec("sleep 1000", 2000) for b in boxes))

    asyncio.run(main())
""")


def test_an_owner_killed_by_sigkill_takes_its_sandboxes_with_it(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment)
    try:
        boxes = json.loads(owner.stdout.readline())
        time.sleep(0.3)
        everything = [pid for monitor, _ in boxes for pid in below(monitor)]
        assert len(everything) >= 10
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert gone(everything)
    assert os.listdir(tmp_path) == []
    with open("/proc/mounts") as file:
        assert not [line for line in file if "lower_usr" in line or line.startswith("overlay /sys")]


def test_no_bubblewrap_or_no_namespaces_is_said_and_nothing_runs(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SandboxUnavailable, match="install bubblewrap"):
        played(lambda s: s.exec("true", 20))
    monkeypatch.setattr("shutil.which", lambda name: "/bin/false")
    with pytest.raises(SandboxUnavailable, match="user namespaces"):
        played(lambda s: s.exec("true", 20))


def test_wrong_fields_and_snapshots_are_told(tmp_path):
    with pytest.raises(ConfigError, match="no snapshot.json"):
        Local(snapshot=str(tmp_path))
    (tmp_path / "snapshot.json").write_text(json.dumps({"ids": "user 12345", "layers": []}))
    with pytest.raises(ConfigError, match="Bake it again"):
        Local(snapshot=str(tmp_path))
    with pytest.raises(ConfigError, match="disk_mb"):
        registry().build("sandbox", "local", {"disk_mb": 0})
