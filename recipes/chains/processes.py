"""Runs commands so that nothing outlives this process: not verl, not Ray's daemons, not a sandbox.

Ray's processes make sessions of their own, so a process group is not enough. This process becomes the subreaper of its
descendants (prctl(2)): an orphan's new parent is this process, and the tree below it is always complete.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rufus_plugins.errors import InfrastructureError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GUARDIAN = "rufus_plugins.recipes.chains.guardian"
"""Between this process and its command, so that nothing outlives a kill -9 of this process either."""
GRACE_S = 2.0
"""Between asking a process tree to end and killing it. Ours."""


class CommandFailed(InfrastructureError):
    """A command ended with an error, or showed no progress before its deadline."""

    def __init__(self, name: str, problem: str, log: Path):
        super().__init__(f"{name} {problem}. The end of {log}:\n\n{tail(log)}")


def become_reaper() -> None:
    """Also turns SIGTERM and SIGHUP into KeyboardInterrupt, so that one way out cleans up after all of them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def run(
    name: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    progress: Callable[[], object],
    stall_s: float,
    poll_s: float = 0.5,
) -> float:
    """Runs to the end and returns the seconds it took; its output goes to `log` (appended).

    `progress()` is called at every poll; when what it returns has not changed for `stall_s`, the command is stuck.
    Raises `CommandFailed`. Leaves no descendant alive, however it ends.
    """
    started = changed = time.monotonic()
    seen: object = None
    try:
        with log.open("ab") as output:
            output.write(f"\n$ {' '.join(command)}\n".encode())
            output.flush()
            child = subprocess.Popen(
                [sys.executable, "-m", GUARDIAN, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=die_with(os.getpid(), signal.SIGTERM),
            )
            while (code := child.poll()) is None:
                now = progress()
                if now != seen:
                    seen, changed = now, time.monotonic()
                elif time.monotonic() - changed > stall_s:
                    raise CommandFailed(name, f"made no progress for {stall_s:.0f} s and was stopped", log)
                time.sleep(poll_s)
            progress()
    finally:
        end_descendants()
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise CommandFailed(name, how, log)
    return time.monotonic() - started


def end_descendants(grace_s: float = GRACE_S) -> None:
    """Ends every process below this one: asks, waits, kills, until none is left. A second Ctrl-C does not stop it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        alive = descendants()
        for pid in alive:
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while (alive := descendants()) and time.monotonic() < deadline:
            _reap()
            time.sleep(0.05)
        while alive := descendants():
            for pid in alive:
                _signal(pid, signal.SIGKILL)
            _reap()
            time.sleep(0.02)
        _reap()
    finally:
        signal.signal(signal.SIGINT, before)


def descendants() -> list[int]:
    """Living processes below this one, zombies left out."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
        children.setdefault(int(parent), []).append(int(entry))
        if state in "ZX":
            zombies.add(int(entry))
    found, open_ = [], [os.getpid()]
    while open_:
        for pid in children.get(open_.pop(), ()):
            open_.append(pid)
            if pid not in zombies:
                found.append(pid)
    return found


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log, without reading it whole."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 20_000))
            text = stream.read().decode("utf-8", "replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:])


def die_with(parent: int, number: int) -> Callable[[], None]:
    """For `preexec_fn`: the child gets the signal when the process `parent`, which starts it, ends."""

    def prepare() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)

    return prepare


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
