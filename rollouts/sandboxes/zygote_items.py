"""Several runs of one program in a row, each in its own process: what coding_tests does with a problem's tests.

To fork, confine and compile for each run costs more than most runs. So the zygote forks one *host* per request, which
confines itself, compiles the source once and forks again per item; the forked child has nothing left to do but run.
The host is ours and executes no line of the program. Its children may signal it, as anything in their namespace but
process 1: the item that did so then runs once more, under the zygote itself. Its memory is closed to them
(undumpable), other items' data is wiped after the fork, and what they printed lies in memory that they do not have.

Answers are written to memory that the host shares with the zygote, which sends all of them when the host has ended.
"""

from __future__ import annotations

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
_STATE = struct.Struct("!QIB")
"""Bytes of complete answers; how many; whether the last of them is the host's last."""
_QUIET_MS = 4
"""For so long only the end of a run is waited for: most end by then, with an output that fits the pipe. Ours."""
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
    def state(self) -> tuple[int, int, bool]:
        length, count, ended = _STATE.unpack_from(self.view)
        return length, count, bool(ended)

    @state.setter
    def state(self, value: tuple[int, int, bool]) -> None:
        _STATE.pack_into(self.view, 0, *value)

    def add(self, header: str, sinks: Any, *, ended: bool) -> None:
        """An answer; `header` is its JSON with places for the three lengths."""
        length, count, _ = self.state
        at = _STATE.size + length
        lengths = (sinks[0].length, sinks[1].length, sinks[2].length)
        encoded = (header % lengths).encode()
        _LENGTHS.pack_into(self.view, at, len(encoded), sum(lengths))
        at += _LENGTHS.size
        self.view[at : at + len(encoded)] = encoded
        at += len(encoded)
        for sink in sinks:
            if sink.length:
                self.view[at : at + sink.length] = sink.view[: sink.length]
                at += sink.length
        self.state = at - _STATE.size, count + 1, ended  # last: an answer that was cut off does not count

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
    _wait(zygote, pid, started + _ITEMS_S + request["limits"]["wall_s"] + _SPARE_S)
    zygote.kill_all(pid)
    if not zygote.namespaced:
        zygote.reap()  # the kernel kills what a host leaves behind
    clean = zygote.clean()
    _, answered, ended = relay.state
    if not ended and clean:
        # killed or stopped, by an item or from outside: the item it was at runs again, under process 1
        parts = request["parts"]
        begin = request["source"] + sum(map(sum, parts[:answered]))
        answer = zygote.run(request, begin, parts[answered], None)
        clean = zygote.clean()
        code = "null" if answer["exit_code"] is None else answer["exit_code"]
        answer = (answer["status"], code, answer["signal"], answer["wall_s"], answer["cpu_s"])
        relay.add(_ANSWER % (*answer, "false", str(not clean).lower()), zygote.sinks, ended=True)
        for sink in zygote.sinks:
            sink.wipe()
        ended = True
    zygote.body.wipe()
    if not ended:
        return False  # the caller sees a lost sandbox
    zygote.control.sendall(relay.answers())
    relay.wipe()
    return clean


def _wait(zygote: Any, pid: int, deadline: float) -> None:
    """Until the host ends, or is to be given up."""
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
                return
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
    caps = [request["limits"][name] for name in ("output_bytes", "output_bytes", "result_bytes")]
    poller = select.poll()
    poller.register(zygote.control, select.POLLRDHUP)
    for index, parts in enumerate(items):
        answer = _run(zygote, request, begin, parts, stdins[index], poller, caps)
        begin += sum(parts)
        last = bool(os.listdir(zygote.work)) and not zygote.clean()
        more = (
            index + 1 < len(items)
            and answer[0] == "exited"
            and answer[1] == 0
            and not last
            and time.monotonic() < started + _ITEMS_S
            and relay.room() > 2 * largest
        )
        relay.add(_ANSWER % (*answer, str(more).lower(), str(last).lower()), zygote.sinks, ended=not more)
        if not more:
            os._exit(0)
        for sink in zygote.sinks:
            sink.wipe()
    del absent


_ANSWER = (
    '{"status": "%s", "exit_code": %s, "signal": %d, "wall_s": %.6f, "cpu_s": %.6f, "more": %s, "last": %s, '
    '"lengths": [%%d, %%d, %%d]}'
)


def _run(
    zygote: Any, request: dict, begin: int, parts: Any, stdin: int | None, poller: Any, caps: list[int]
) -> tuple[str, int | str, int, float, float]:
    """Zygote.run for one item, short for those that end at once: (status, exit code, signal, seconds, CPU seconds).

    After a fork each page that is written costs a fault, in the host as in the child, and Python writes to whatever it
    looks at. Hence few calls and no objects that are not needed.
    """
    ends = (os.pipe(), os.pipe(), os.pipe())
    started = time.monotonic()
    pid = zygote.fork(request, "entry", begin, parts, ends, None, stdin)
    for _, write in ends:
        os.close(write)
    ended = os.pidfd_open(pid)
    poller.register(ended, select.POLLIN)
    events = poller.poll(_QUIET_MS)
    poller.unregister(ended)
    os.close(ended)
    if len(events) == 1 and events[0][0] == ended:
        _, raw, usage = os.wait4(pid, 0)
        if zygote.namespaced:
            zygote.kill_all()  # before the reading: what holds the other end would keep it waiting
        status = "exited"
        for (read, _), sink, cap in zip(ends, zygote.sinks, caps, strict=True):
            if not zygote.drain(read, sink, cap, 1 << 20):
                status = "output"
            os.close(read)
    else:
        readers = [read for read, _ in ends]
        status, raw, usage = zygote.watch(pid, readers, request["limits"], 1, started)
        for read in readers:
            os.close(read)
    code = os.waitstatus_to_exitcode(raw)
    took = time.monotonic() - started
    cpu_s = usage.ru_utime + usage.ru_stime
    return (status, code, 0, took, cpu_s) if code >= 0 else (status, "null", -code, took, cpu_s)
