"""Runs an MCP server's command on its client's pipes and ends it with everything that it started.

    python -I -S mcp_stdio.py FILE      (JSON: command, env, cwd, owner)

When the server ends, the owner dies (by whatever signal) or SIGTERM comes, every descendant is killed: this process
adopts those that their parents left.

As `mcp_stdio.py --inside FILE` it is the first process of a sandbox (mcp_servers.py starts bubblewrap): it writes the
server's files, gives up user, network and memory beyond its limits, and becomes the command.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def supervise(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    os.unlink(path)
    libc = ctypes.CDLL(None, use_errno=True)
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != told["owner"]:
        return 1
    server = subprocess.Popen(told["command"], env=told["env"], cwd=told["cwd"], start_new_session=True)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):  # the pipes are the server's: they end when it does
        os.dup2(null, fd)
    try:
        while server.poll() is None:
            if any(number != signal.SIGCHLD for number in os.read(wake, 256)):
                break
    finally:
        kill_descendants()
    return server.returncode or 0


def kill_descendants() -> None:
    """Until there is none: who is killed may have started another one before."""
    for _ in range(1000):
        parents: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        state, parent = file.read().rpartition(b")")[2].split()[:2]
                except (OSError, ValueError):
                    continue
                if state != b"Z":
                    parents.setdefault(int(parent), []).append(int(name))
        todo, found = [os.getpid()], []
        while todo:
            children = parents.get(todo.pop(), [])
            todo += children
            found += children
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if not found:
            return
        time.sleep(0.005)


def inside(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    sys.path[:] = told["path"]
    from rufus_plugins.rollouts.sandboxes import seccomp

    for name, text in told["files"].items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    if told["uid"] is not None:
        os.chmod(".", 0o1777)
        os.setgroups([])
        os.setresgid(told["uid"], told["uid"], told["uid"])
        os.setresuid(told["uid"], told["uid"], told["uid"])
    for limit, amount in (
        (resource.RLIMIT_AS, told["memory_bytes"]),
        (resource.RLIMIT_NPROC, told["tasks_of_user"] + 64),
        (resource.RLIMIT_FSIZE, 64 << 20),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(limit, (amount, amount))
    seccomp.load(seccomp.zygote_filter(metadata=False))
    os.execvpe(told["command"][0], told["command"], told["env"])


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        inside(sys.argv[2])
    sys.exit(supervise(sys.argv[1]))
