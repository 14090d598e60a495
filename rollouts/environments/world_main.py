"""The jailed process of one world: loads its code once and forks a process for every episode.

Started by launch.py instead of zygote_main.py, with the same boundary: no network, no file of the machine, another
user. An episode is a fork of the loaded world (memory is shared until it is written) with a database file of its own
and a socket to the host. It can start no process, signal none, and write in its own folder only; leaving, looping or
filling its disk costs that episode.

Control socket, host to here: two u32 (length of a JSON header, length of a body), header, body. `load` (body: source,
then database) is answered by a header with the OpenAPI document as body; `open` carries the episode's socket and
`close` names an episode to end; both are answered on that socket, by a frame and by its end. Episode socket, both
ways: u32, then that many bytes of JSON, or of a database after `{"size": n}`.

Where forks of a loaded world would share what must not be shared (an open connection, a thread), and where there is no
process namespace (the landlock backend), each episode loads the code itself: `late`.
"""

from __future__ import annotations

import array
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
import traceback

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])["path"]

from rufus_plugins.rollouts.environments import world_app, world_rehearsal  # noqa: E402
from rufus_plugins.rollouts.sandboxes import landlock, seccomp  # noqa: E402
from rufus_plugins.rollouts.sandboxes.zygote_main import Zygote  # noqa: E402

_LENGTHS = struct.Struct("!II")
_FRAME = struct.Struct("!I")
_PR_SET_PDEATHSIG = 1
_WATCH_S = 0.5
"""How often the disk of the episodes is looked at. Ours."""
_FILES = 64
"""Files in an episode's folder. Ours."""
SOCKET_FD = 3
RESTS = 77
"""Exit status of an episode's process whose folder stays (world_rest.py)."""


class World(Zygote):
    restricts_children = True

    def serve(self) -> None:
        self.application: world_app.Application | None = None
        self.source = ""
        self.initial = b""
        self.limits: dict = {}
        self.episodes: dict[str, int] = {}
        """Episode -> its latest process."""
        self.closing: set[str] = set()
        self.processes: dict[int, tuple[str, int]] = {}
        """pidfd -> episode and process; one that rests may still be on its way out when the next one starts."""
        self.fds: list[int] = []
        hello = self.prepare()
        world_app.database.path = os.path.join(self.work, "warm.db")
        importlib.import_module("rufus_plugins.rollouts.environments.world_warm").use()
        self.clean()
        self.send({"hello": hello}, ())
        self.guard()
        quiet = os.open("/dev/null", os.O_RDWR)
        for fd in (1, 2):  # what the world prints goes nowhere, and never fills a pipe
            os.dup2(quiet, fd)
        self.poller = select.poll()
        self.poller.register(self.control, select.POLLIN)
        looked = time.monotonic()
        while True:
            events = self.poller.poll(1000 * _WATCH_S if self.episodes else None)
            for fd, _ in events:
                if fd == self.control.fileno():
                    self.handle()
                else:
                    self.reap(fd)
            if time.monotonic() - looked > _WATCH_S:
                self.look_at_disks()
                looked = time.monotonic()

    def guard(self) -> None:
        """Goes on in a child; the first process stays clean of the world's code. When the host closes the socket (it
        died), or the child ends, it ends, and the jail with it, whatever the code is doing."""
        pid = os.fork()
        if not pid:
            self.pid = os.getpid()
            self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            return
        watch = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(watch, select.POLLIN)
        poller.register(self.control, select.POLLRDHUP)
        poller.poll()
        os._exit(0)

    def handle(self) -> None:
        header_length, body_length = _LENGTHS.unpack(self.receive(_LENGTHS.size))
        request = json.loads(self.receive(header_length))
        body = self.receive(body_length)
        if request["op"] == "load":
            self.load(request, body)
        elif request["op"] == "open":
            self.open(request, self.fds.pop(0))
        elif request["id"] in self.episodes:
            self.closing.add(request["id"])
            os.kill(self.episodes[request["id"]], signal.SIGKILL)
        else:
            shutil.rmtree(os.path.join(self.work, request["id"]), ignore_errors=True)

    def receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk, ancillary, _, _ = self.control.recvmsg(min(count - len(data), 1 << 20), socket.CMSG_SPACE(16))
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                    self.fds += fds
            if not chunk:
                os._exit(0)
            data += chunk
        return bytes(data)

    # -- the world ------------------------------------------------------------------------------

    def load(self, request: dict, body: bytes) -> None:
        """Imports the code on a copy of the database, as its own server would; episodes start from what that leaves."""
        source, self.initial = body[: request["source"]], body[request["source"] :]
        self.source, self.limits = source.decode("utf-8", "surrogatepass"), request["limits"]
        answer, document = {"late": bool(request["late"])}, b""
        if not request["late"]:
            try:
                world_app.database.path = os.path.join(self.work, "loading.db")
                with open(world_app.database.path, "wb") as file:
                    file.write(self.initial)
                self.application = world_app.Application(self.source)
                document = self.application.specification()
                self.application.settle()
                answer["open"] = world_app.still_open()
                answer["rests"] = self.application.rests
                self.initial = world_app.database.read()
                self.clean()
                if answer["rests"] and not answer["open"] and request["rehearses"]:
                    answer["rehearsed"] = self.rehearse(world_rehearsal.requests(document))
            except BaseException as error:
                answer = {"error": said(error)}
            gc.collect()
            gc.freeze()
        self.send(answer, [document])

    def rehearse(self, calls: list[dict]) -> int | None:
        """How many calls were rehearsed; None where one changed the world, which should not be after the trial."""
        calls = calls[: world_rehearsal.tried(lambda tell: self.trial(calls, tell), self.look_at_disks)]
        self.episodes.clear()
        self.clean()
        path = os.path.join(self.work, "rehearsal.db")
        with open(path, "wb") as file:
            file.write(self.initial)
        told = list(world_rehearsal.rehearse(self.application, calls * 2, path))
        same = all(told) and not world_app.still_open()
        return len(calls) if self.clean() and same else None

    def trial(self, calls: list[dict], tell: int) -> int:
        pid = os.fork()
        if pid:
            self.episodes["trial"] = pid
            return pid
        try:
            folder = os.path.join(self.work, "trial")
            os.mkdir(folder, 0o700)
            os.chdir(folder)
            fd = fcntl.fcntl(tell, fcntl.F_DUPFD, 1024)
            os.closerange(3, 1024)
            self.confine_episode(folder)
            path = os.path.join(folder, "world.db")
            with open(path, "wb") as file:
                file.write(self.initial)
            for same in world_rehearsal.rehearse(self.application, calls, path):
                if not same:
                    break
                os.write(fd, b".")
        finally:
            os._exit(0)

    # -- its episodes ---------------------------------------------------------------------------

    def open(self, request: dict, fd: int) -> None:
        try:
            pid = os.fork()
        except OSError:
            os.close(fd)  # the host reads the end
            return
        if not pid:
            try:
                self.episode(request, fd)
            finally:
                os._exit(1)
        os.close(fd)
        watch = os.pidfd_open(pid)
        self.episodes[request["id"]] = pid
        self.processes[watch] = (request["id"], pid)
        self.poller.register(watch, select.POLLIN)

    def reap(self, watch: int) -> None:
        name, pid = self.processes.pop(watch)
        self.poller.unregister(watch)
        os.close(watch)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if self.episodes.get(name) == pid:
            del self.episodes[name]
            if code != RESTS or name in self.closing:
                self.closing.discard(name)
                shutil.rmtree(os.path.join(self.work, name), ignore_errors=True)

    def look_at_disks(self) -> None:
        """An episode may fill its own disk and no more: what is in memory is everyone's."""
        for name, pid in list(self.episodes.items()):
            used, count, todo = 0, 0, [os.path.join(self.work, name)]
            while todo and count <= _FILES:
                try:
                    with os.scandir(todo.pop()) as listing:
                        for entry in listing:
                            count += 1
                            if entry.is_dir(follow_symlinks=False):
                                todo.append(entry.path)
                            used += entry.stat(follow_symlinks=False).st_blocks * 512
                except OSError:
                    continue
            if used > self.limits["disk_bytes"] or count > _FILES:
                os.kill(pid, signal.SIGKILL)

    def episode(self, request: dict, fd: int) -> None:
        """In the child: confined, then calls until the host closes the socket."""
        fd = fcntl.fcntl(fd, fcntl.F_DUPFD, 1024)
        os.closerange(3, 1024)
        os.dup2(fd, SOCKET_FD, inheritable=False)
        os.close(fd)
        link = Link(SOCKET_FD)
        folder = os.path.join(self.work, request["id"])
        try:
            if not request["resumes"]:
                os.mkdir(folder, 0o700)
            os.chdir(folder)
            self.confine_episode(folder)
            world_app.database.path = os.path.join(folder, "world.db")
            if not request["resumes"]:
                with open(world_app.database.path, "wb") as file:
                    file.write(self.initial)
            self.initial = b""
            gc.enable()
            ready: dict = {"ready": True}
            document = b""
            if self.application is None:
                self.application = world_app.Application(self.source)
                document = self.application.specification() if request["wants_document"] else b""
            self.application.open()
            link.send(ready | {"size": len(document)})
            link.write(document)
        except BaseException as error:
            link.send({"error": said(error)})
            os._exit(1)
        while True:
            request = link.receive()
            if request is None:
                os._exit(0)
            if request["op"] == "rest":
                rests = self.application.may_rest()
                link.send({"rests": rests})
                if rests:
                    os._exit(RESTS)
                continue
            if request["op"] == "finish":
                try:
                    self.application.close()
                except BaseException:
                    pass  # what its shut-down handlers do not manage is not in the database
                data = world_app.database.read()
                link.send({"size": len(data)})
                link.write(data)
                continue
            for call in request["calls"]:
                link.send(self.application.call(call, request["timeout_s"], request["keep"]))

    def confine_episode(self, folder: str) -> None:
        self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self.pid:
            os._exit(1)
        os.setsid()
        limits = self.limits
        for name, amount in (
            (resource.RLIMIT_CPU, limits["cpu_s"]),
            (resource.RLIMIT_FSIZE, limits["disk_bytes"]),
            (resource.RLIMIT_NOFILE, 128),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_AS, self.base_bytes + limits["memory_bytes"]),
            (resource.RLIMIT_NPROC, self.config["tasks_of_user"] + limits["processes"]),
        ):
            hard = resource.getrlimit(name)[1]
            amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
            resource.setrlimit(name, (amount, amount))
        if landlock.version():
            devices = [f"/dev/{name}" for name in ("null", "zero", "random", "urandom")]
            seen = [entry.path for entry in os.scandir("/") if not entry.is_symlink()] if self.namespaced else []
            seen = [path for path in seen if not self.work.startswith(path)]
            landlock.restrict(seen or self.config["read"], [folder], devices)
        seccomp.load(seccomp.program_filter(forks=False, own_pid=os.getpid()))


class Link:
    """The episode's socket, blocking."""

    def __init__(self, fd: int):
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(True)

    def send(self, value: dict) -> None:
        data = json.dumps(value).encode("utf-8", "replace")
        self.socket.sendall(_FRAME.pack(len(data)) + data)

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> dict | None:
        size = self._exactly(_FRAME.size)
        data = self._exactly(_FRAME.unpack(size)[0]) if size else None
        return json.loads(data) if data else None

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            chunk = self.socket.recv(min(count - len(data), 1 << 20))
            if not chunk:
                return None
            data += chunk
        return bytes(data)


def said(error: BaseException) -> str:
    """The failure with the lines of the world's own code that led to it."""
    lines = traceback.format_exception(error)
    return "".join(lines)[-4000:]


def main() -> None:
    config = json.loads(sys.argv[1])
    sys.argv = ["world.py"]
    world_app.prepare()
    World(config).serve()


if __name__ == "__main__":
    main()
