"""Process 1 of a local sandbox: starts commands, keeps their output, reads and writes files. A script, stdlib only.

One loop, many commands at a time. A command is over when its own process ends; what it left in the background lives on
and may go on writing (its output is then read and dropped, so that it never meets a broken pipe). When the socket to
the owner closes, process 1 ends and the kernel ends the rest. It cannot be signalled, traced or read from inside.

Frames both ways: two u32 (header, body), JSON header, body. Requests carry `id` and `op`:
exec {command in body, timeout_s, env, cwd, user, keep_bytes}, stop {target}, read {path, most}, write {path, append} +
body, freeze, thaw. Answers carry `id`, or `started` for an exec that began.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import json
import os
import selectors
import signal
import socket
import stat
import struct
import sys
import time

_LENGTHS = struct.Struct("!II")
_WATCH_S = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGXFSZ)


class Kept:
    """The first and the last bytes of a stream, and how many there were."""

    def __init__(self, most: int):
        self.head_room, self.tail_room = most - most // 2, most // 2
        self.head, self.tail, self.in_tail, self.total = bytearray(), collections.deque(), 0, 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.head_room - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self.tail.append(data)
            self.in_tail += len(data)
            while self.in_tail - len(self.tail[0]) >= self.tail_room:
                self.in_tail -= len(self.tail.popleft())

    def parts(self) -> tuple[bytes, bytes, int]:
        """(head, tail, bytes left out between them)"""
        tail = b"".join(self.tail)
        tail = tail[max(0, len(tail) - self.tail_room) :]
        return bytes(self.head), tail, self.total - len(self.head) - len(tail)


class Command:
    def __init__(self, request: dict, pid: int, outputs: tuple[int, int]):
        self.id, self.pid = request["id"], pid
        self.begun = time.monotonic()
        self.deadline = self.begun + request["timeout_s"]
        self.kept = {fd: Kept(request["keep_bytes"]) for fd in outputs}
        self.outputs = outputs
        self.timed_out = self.stopped = self.out_of_memory = False


class Server:
    def __init__(self, config: dict):
        self.config = config
        self.control = socket.socket(fileno=config["fd"])
        self.control.set_inheritable(False)
        self.commands: dict[int, Command] = {}
        self.readers: dict[int, Command | None] = {}
        """Output descriptor -> its command, None once the command is over."""
        self.selector = selectors.DefaultSelector()
        self.inbox = bytearray()
        self.frozen = False

    # -- the loop ---------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: nobody inside reads or traces this process
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.control, selectors.EVENT_READ)
        self.selector.register(wake_read, selectors.EVENT_READ)
        self.send({"hello": True})
        look_at = time.monotonic() + _WATCH_S
        while True:
            now = time.monotonic()
            deadlines = [command.deadline for command in self.commands.values() if not command.timed_out]
            wait = max(0.0, min([*deadlines, look_at]) - now)
            for key, _ in self.selector.select(wait):
                if key.fd == wake_read:
                    while self.take(wake_read):
                        pass
                elif key.fd == self.control.fileno():
                    self.receive()
                else:
                    self.drain(key.fd, 1)
            self.reap()
            now = time.monotonic()
            for command in list(self.commands.values()):
                if now >= command.deadline and not command.timed_out:
                    command.timed_out = True
                    self.kill_session(command.pid)
            if now >= look_at:
                self.watch_memory()
                look_at = time.monotonic() + _WATCH_S * (1 if self.commands else 4)

    @staticmethod
    def take(fd: int) -> bytes:
        try:
            return os.read(fd, 4096)
        except BlockingIOError:
            return b""

    def receive(self) -> None:
        data = self.control.recv(1 << 20)
        if not data:
            os._exit(0)
        self.inbox += data
        while len(self.inbox) >= _LENGTHS.size:
            header, body = _LENGTHS.unpack_from(self.inbox)
            end = _LENGTHS.size + header + body
            if len(self.inbox) < end:
                return
            request = json.loads(self.inbox[_LENGTHS.size : _LENGTHS.size + header])
            content = bytes(self.inbox[_LENGTHS.size + header : end])
            del self.inbox[:end]
            try:
                getattr(self, "op_" + request["op"])(request, content)
            except OSError as error:
                self.send({"id": request["id"], "error": error.errno or errno.EIO, "message": str(error)})

    def send(self, header: dict, body: bytes = b"") -> None:
        encoded = json.dumps(header).encode()
        try:
            self.control.sendall(_LENGTHS.pack(len(encoded), len(body)) + encoded + body)
        except OSError:
            os._exit(0)

    # -- commands ---------------------------------------------------------------------------------------------------

    def op_exec(self, request: dict, body: bytes) -> None:
        out, err, told = os.pipe(), os.pipe(), os.pipe()
        try:
            pid = self.fork()
        except OSError:
            for fd in (*out, *err, *told):
                os.close(fd)
            raise
        if not pid:
            self.become(request, body, out[1], err[1], told[1])
        for _, write in (out, err, told):
            os.close(write)
        problem = os.read(told[0], 4096)
        os.close(told[0])
        if problem:
            os.close(out[0])
            os.close(err[0])
            self.send({"id": request["id"], "never": problem.decode(errors="replace")})
            return
        command = Command(request, pid, (out[0], err[0]))
        self.commands[pid] = command
        for fd in command.outputs:
            os.set_blocking(fd, False)
            self.readers[fd] = command
            self.selector.register(fd, selectors.EVENT_READ)
        self.send({"started": request["id"]})

    def fork(self) -> int:
        try:
            return os.fork()
        except BlockingIOError:  # a fork bomb holds every place: nothing could ever run again
            for _ in range(20):
                self.signal_all(signal.SIGSTOP)
            self.signal_all(signal.SIGKILL)
            time.sleep(0.1)
            self.reap()
            return os.fork()

    def become(self, request: dict, command: bytes, out: int, err: int, told: int) -> None:
        """On the forked child. What goes wrong before the command runs is told, and the command never started."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            env = {**self.config["env"], **request["env"]}
            user = request["user"]
            if user:
                env["HOME"], env["USER"] = switch_user(user)
            home = env["HOME"] if os.access(env["HOME"], os.X_OK) else "/"
            try:
                os.chdir(request["cwd"] or home)
            except OSError as error:
                raise OSError(f"cannot enter the folder {request['cwd']!r}: {error.strerror}") from None
            shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
            os.execve(shell, [shell.rpartition("/")[2].encode(), b"-c", command], env)
        except BaseException as error:
            os.write(told, (str(error) or repr(error)).encode()[:4000])
        finally:
            os._exit(126)

    def drain(self, fd: int, rounds: int) -> None:
        for _ in range(rounds):
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.selector.unregister(fd)
                del self.readers[fd]
                os.close(fd)
                return
            command = self.readers[fd]
            if command is not None:
                command.kept[fd].add(data)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            command = self.commands.pop(pid, None)
            if command is None:
                continue
            for fd in command.outputs:
                if fd in self.readers:
                    self.drain(fd, 64)  # what a pipe can hold, and what a background process adds meanwhile
                    if fd in self.readers:
                        self.readers[fd] = None
            code = os.waitstatus_to_exitcode(status)
            pieces, header = [], []
            for fd in command.outputs:
                head, tail, left_out = command.kept[fd].parts()
                pieces += [head, tail]
                header.append([len(head), len(tail), left_out])
            self.send(
                {
                    "id": command.id,
                    "exit_code": code if code >= 0 else 128 - code,
                    "timed_out": command.timed_out,
                    "stopped": command.stopped,
                    "out_of_memory": command.out_of_memory,
                    "duration_s": time.monotonic() - command.begun,
                    "streams": header,
                },
                b"".join(pieces),
            )

    def op_stop(self, request: dict, body: bytes) -> None:
        for command in self.commands.values():
            if command.id == request["target"]:
                command.stopped = True
                self.kill_session(command.pid)
        self.send({"id": request["id"]})

    def kill_session(self, leader: int) -> None:
        """The command and what it started, background jobs of the same command included; earlier ones live on."""
        for pid, fields in processes():
            if int(fields[3]) == leader:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def watch_memory(self) -> None:
        """Kills the largest process when all together pass the limit, as the kernel does for a container."""
        limit, detached = self.config["memory_bytes"], detached_segments()
        bound = total = sum(detached.values())
        if total > limit:  # nobody uses them, so nobody's end would free them
            for segment in detached:
                ctypes.CDLL(None).shmctl(segment, 0, None)
            return
        found = [(pid, int(fields[3])) for pid, fields in processes() if pid != 1]
        for pid, _ in found:
            try:
                with open(f"/proc/{pid}/statm") as file:
                    bound += int(file.read().split()[1]) * _PAGE
            except (OSError, IndexError):
                continue
        if bound <= limit:
            return
        largest, size = 0, 0
        for pid, leader in found:
            own = memory_of(pid)
            total += own
            if own > size:
                largest, size, session = pid, own, leader
        if total > limit and largest:
            if session in self.commands:
                self.commands[session].out_of_memory = True
            try:
                os.kill(largest, signal.SIGKILL)
            except ProcessLookupError:
                return

    def op_freeze(self, request: dict, body: bytes) -> None:
        self.signal_all(signal.SIGSTOP)
        self.send({"id": request["id"]})

    def op_thaw(self, request: dict, body: bytes) -> None:
        self.signal_all(signal.SIGCONT)
        self.send({"id": request["id"]})

    @staticmethod
    def signal_all(number: int) -> None:
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return

    # -- files ------------------------------------------------------------------------------------------------------

    def op_read(self, request: dict, body: bytes) -> None:
        fd = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, f"{request['path']} is no regular file")
            data = file.read(request["most"] + 1)
        if len(data) > request["most"]:
            raise OSError(errno.EFBIG, f"{request['path']} holds more than {request['most']} bytes")
        self.send({"id": request["id"]}, data)

    def op_write(self, request: dict, body: bytes) -> None:
        path = request["path"]
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
        kind = os.O_APPEND if request["append"] else os.O_TRUNC
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | kind, 0o644), "wb") as file:
            file.write(body)
        self.send({"id": request["id"]})


def processes():
    """(pid, fields of stat from the state on: state, parent, group, session ...) of everything in the sandbox."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", errors="replace") as file:
                    yield int(name), file.read().rpartition(")")[2].split()
            except OSError:
                continue


def memory_of(pid: int) -> int:
    """Bytes that the process has for itself, and its part of what it shares without a file."""
    anonymous = shared = 0
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    anonymous = int(line.split()[1]) << 10
                elif line.startswith("RssShmem:"):
                    shared = int(line.split()[1]) << 10
        if shared:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                shared = next((int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Shmem:")), shared)
    except (OSError, ValueError, IndexError):
        pass
    return anonymous + shared


def detached_segments() -> dict[int, int]:
    """System V segments that no process is attached to -> resident bytes."""
    found = {}
    try:
        with open("/proc/sysvipc/shm") as file:
            names = file.readline().split()
            for line in file:
                row = dict(zip(names, map(int, line.split()), strict=False))
                if not row["nattch"]:
                    found[row["shmid"]] = row["rss"]
    except (OSError, ValueError, KeyError):
        pass
    return found


def switch_user(user: str) -> tuple[str, str]:
    """Becomes `user` (a name or a number, perhaps with :group). (home, name)"""
    name, _, group = str(user).partition(":")
    uid, gid, home = None, None, "/"
    with open("/etc/passwd", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split(":")
            if len(fields) >= 7 and name in (fields[0], fields[2]):
                name, uid, gid, home = fields[0], int(fields[2]), int(fields[3]), fields[5]
                break
    if uid is None and name.isdigit():
        uid = gid = int(name)
    if uid is None:
        raise OSError(f"there is no user {name!r} in the sandbox")
    groups = [gid]
    with open("/etc/group", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split(":")
            if len(fields) < 4:
                continue
            if group in (fields[0], fields[2]) and group:
                gid = int(fields[2])
            if name in fields[3].split(","):
                groups.append(int(fields[2]))
    if uid or gid:
        if os.access("/proc/self/setgroups", os.R_OK) and open("/proc/self/setgroups").read().strip() != "deny":
            os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    return home, name


if __name__ == "__main__":
    # the modules that a command may need after the sandbox has changed what is under /usr are loaded now
    Server(json.loads(sys.argv[1])).serve()
