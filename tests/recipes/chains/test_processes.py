"""Nothing that a run starts outlives it: not a daemon, not after Ctrl-C, not when a command hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DAEMON = """
import os, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""
DRIVER = """
import os, signal, sys
from pathlib import Path
from rufus_plugins.recipes.chains import processes
# a suite started in the background hands SIGINT down as ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
processes.GRACE_S = 0.2
processes.end_descendants.__defaults__ = (0.2,)
processes.become_reaper()
code, marker, log, stall = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
try:
    seconds = processes.run("x", [sys.executable, "-c", code, marker], log, os.environ, lambda: 0, stall, poll_s=0.05)
    print("ended")
except processes.CommandFailed as error:
    print("failed:", str(error).splitlines()[0])
except KeyboardInterrupt:
    processes.end_descendants()
    print("interrupted")
print("left:", processes.descendants())
"""


def start(code, tmp_path, stall="60"):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    arguments = [code, str(tmp_path / "pid"), str(tmp_path / "log"), stall]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment,
    )  # fmt: skip


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, "the daemon did not start"
        time.sleep(0.02)
    return int(path.read_text())


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_daemon_that_a_finished_command_left_in_a_session_of_its_own_is_ended(tmp_path):
    driver = start(DAEMON, tmp_path)
    output, _ = driver.communicate(timeout=60)
    assert "ended" in output and "left: []" in output
    assert gone(wait_for(tmp_path / "pid"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_the_command_and_its_daemons_even_if_they_ignore_sigterm(tmp_path, number):
    driver = start(DAEMON + "time.sleep(600)\n", tmp_path)
    pid = wait_for(tmp_path / "pid")
    time.sleep(0.2)
    driver.send_signal(number)
    output, _ = driver.communicate(timeout=60)
    assert "interrupted" in output and "left: []" in output
    assert gone(pid)


def test_a_command_without_progress_is_stopped_and_its_log_is_shown(tmp_path):
    driver = start("import time; print('waiting for the moon', flush=True); time.sleep(600)", tmp_path, stall="0.5")
    output, _ = driver.communicate(timeout=60)
    assert "made no progress for 0 s and was stopped" in output or "made no progress for 1 s" in output
    assert "waiting for the moon" in (tmp_path / "log").read_text()
    assert "left: []" in output


def test_a_failing_command_says_how_it_ended(tmp_path):
    output, _ = start("raise SystemExit(7)", tmp_path).communicate(timeout=60)
    assert "failed: x ended with exit code 7" in output
    output, _ = start("import os; os.kill(os.getpid(), 9)", tmp_path).communicate(timeout=60)
    assert "failed: x was killed by signal 9" in output


def test_nothing_outlives_a_kill_9_of_the_process_that_started_it(tmp_path):
    driver = start(DAEMON + "\ntime.sleep(600)", tmp_path)
    pid = wait_for(tmp_path / "pid")
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait(timeout=10)
    deadline = time.monotonic() + 30
    while not gone(pid):
        assert time.monotonic() < deadline, "the daemon outlived the run"
        time.sleep(0.05)
