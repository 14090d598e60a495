"""Several runs of one program in a row, each in its own process: what coding_tests does with a problem's tests.

To fork, confine and compile for each run costs more than most runs. So the zygote forks one *host* per request, which
confines itself, compiles the source once and forks again per item; the forked child has nothing left to do but run.
The host is ours and executes no line of the program. Its children may signal it, as anything in their namespace but
process 1: then the item that did so has failed, and with it this request alone. Its memory is closed to them
(undumpable), other items' data is wiped after the fork, and what they printed lies in memory that they do not have.

Answers are written to memory that the host shares with the zygote, which sends all of them when the host has ended.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import struct
import time
import traceback
from typing import Any

from rufus_plugins.rollouts.sandboxes import programs, seccomp

_ITEMS_S = 0.2
"""After this time a request of several items goes back to its caller, who may have seen enough. Ours."""
_SPARE_S = 2.0
"""What the host may take beyond its items, before the zygote ends it. Ours."""
_STATE = struct.Struct("!QB")
"""Bytes of complete answers; whether the host came to its end."""
_LENGTHS = struct.Struct("!II")
_HEADER_BYTES = 4096
PR_SET_CHILD_SUBREAPER = 36
FIRST_STDIN_FD = 128


class Relay:
    """Memory that the zygote shares with one host at a time, and never with a program."""

    def __init__(self, capacity: int):
        self.memory = mmap.mmap(-1, capacity, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.memory)
        self.forked(False)

    def forked(self, yes: bool) -> None:
        """Whether processes forked from now on have it."""
        self.memory.madvise(mmap.MADV_DOFORK if yes else mmap.MADV_DONTFORK)

    @property
    def state(self) -> tuple[int, bool]:
        length, ended = _STATE.unpack(self.view[: _STATE.size])
        return length, bool(ended)

    @state.setter
    def state(self, value: tuple[int, bool]) -> None:
        self.view[: _STATE.size] = _STATE.pack(*value)

    def add(self, header: dict[str, Any], bodies: Any, *, ended: bool) -> None:
        length = self.state[0]
        at = _STATE.size + length
        encoded = json.dumps(header | {"lengths": [len(body) for body in bodies]}).encode()
        for part in (_LENGTHS.pack(len(encoded), sum(map(len, bodies))), encoded, *bodies):
            self.view[at : at + len(part)] = part
            at += len(part)
        self.state = at - _STATE.size, ended  # last: an answer that was cut off does not count

    def room(self) -> int:
        return len(self.view) - _STATE.size - self.state[0]

    def answers(self) -> memoryview:
        return self.view[_STATE.size : _STATE.size + self.state[0]]

    def wipe(self) -> None:
        used = _STATE.size + self.state[0]
        if used > 1 << 16:
            self.memory.madvise(mmap.MADV_REMOVE)
        else:
            self.view[:used] = bytes(used)


def run(zygote: Any, request: dict) -> bool:
    """One item after another up to the first that does not end well, or until the time for one request is up; the
    caller sends the rest again. False when this jail should be replaced."""
    relay, started = zygote.relay, time.monotonic()
    relay.forked(True)
    pid = os.fork()
    if not pid:
        try:
            _host(zygote, request, started)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    relay.forked(False)
    timed_out = _wait(zygote, pid, started + _ITEMS_S + request["limits"]["wall_s"] + _SPARE_S)
    raw_status, usage = zygote.kill_all(pid)
    if not zygote.namespaced:
        zygote.reap()  # the kernel kills what a host leaves behind
    zygote.body.wipe()
    ended, clean = relay.state[1], zygote.clean()
    if not ended:  # an item killed the host, or stopped it, or its source breaks the compiler
        code = os.waitstatus_to_exitcode(raw_status)
        answer = {
            "status": "timeout" if timed_out else "exited",
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else 0,
            "wall_s": time.monotonic() - started,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "more": False,
            "last": not clean,
        }
        relay.add(answer, (b"", b"", b""), ended=True)
    zygote.control.sendall(relay.answers())
    relay.wipe()
    return clean


def _wait(zygote: Any, pid: int, deadline: float) -> bool:
    """Until the host ends; True if it had to be given up."""
    ended = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(zygote.control, select.POLLRDHUP)
    try:
        while (left := deadline - time.monotonic()) > 0:
            for fd, _ in poller.poll(int(1000 * left) + 1):
                if fd != ended:
                    zygote.kill_all(pid)
                    os._exit(0)
                return False
        return True
    finally:
        os.close(ended)


def _host(zygote: Any, request: dict, started: float) -> None:
    relay = zygote.relay
    relay.forked(False)
    owner, zygote.pid = zygote.pid, os.getpid()
    if zygote.namespaced:
        zygote.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    else:
        zygote.die_with_parent(owner)
    absent = zygote.sinks  # to free them would unmap whatever lies at their addresses now
    zygote.hide_sinks()
    begin, items = request["source"], request["parts"]
    stdins, at = [], begin
    for parts in items:  # now: the filter allows no memory files
        stdins.append(zygote.stdin_at(at, parts[0], at_least=FIRST_STDIN_FD) if parts[0] else None)
        at += sum(parts)
    zygote.hosts = len(items)
    zygote.limit(request["limits"] | {"files": FIRST_STDIN_FD + len(items)}, processes=3)
    if zygote.filter:
        seccomp.load(zygote.filter)
    programs.prepare(bytes(zygote.body.view[:begin]))
    largest = sum(request["limits"][name] for name in ("output_bytes", "output_bytes", "result_bytes")) + _HEADER_BYTES
    for index, parts in enumerate(items):
        answer = zygote.run(request, begin, parts, stdins[index])
        begin += sum(parts)
        well = answer["status"] == "exited" and answer["exit_code"] == 0
        answer["last"] = not zygote.clean()
        answer["more"] = (
            index + 1 < len(items)
            and well
            and not answer["last"]
            and time.monotonic() < started + _ITEMS_S
            and relay.room() - sum(sink.length for sink in zygote.sinks) > 2 * largest
        )
        relay.add(answer, [sink.view[: sink.length] for sink in zygote.sinks], ended=not answer["more"])
        if not answer["more"]:
            os._exit(0)
        for sink in zygote.sinks:
            sink.wipe()
    del absent
