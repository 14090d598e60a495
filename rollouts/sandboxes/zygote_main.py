"""The warmed Python process inside the jail: forks once per request, watches, kills, reports.

Started by launch.py with one JSON argument. It is the only process of ours in there (process 1 where there is a
process namespace), never runs a program itself and never parses what a program wrote: it moves bytes.

Frames on the control socket, both ways: two u32 (length of a JSON header, length of a body), header, body. The body
of a request is for the forked child alone: the zygote wipes it after the fork, and keeps answers in memory that is
absent from its children (MADV_DONTFORK), so that one program finds nothing of another.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import mmap
import os
import resource
import select
import shutil
import signal
import site
import socket
import struct
import sys
import threading
import time
import traceback

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])["path"]

from rufus_plugins.rollouts.sandboxes import landlock, programs, seccomp, zygote_items  # noqa: E402

_LENGTHS = struct.Struct("!II")
_FRAME = struct.Struct("!I")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_WATCH_S = 0.05
"""How often disk and memory of a running program are looked at; short programs end before the first look. Ours."""
_QUIET_S = 0.004
"""For so long only the end of a program is waited for: most end by then, with an output that fits the pipe. Ours."""
_SCRATCH_ENTRIES = 1000
"""A work directory with more entries is not worth cleaning: the jail is replaced. Ours."""
RESULT_FD, LINK_FD = 3, 4
"""In a child: where its answer goes; where its peer is, if it has one."""


class Buffer:
    """Private anonymous memory; `hidden` from children."""

    def __init__(self, capacity: int, *, hidden: bool):
        self.memory = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hidden:
            self.memory.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(self.memory)
        self.length = 0

    def wipe(self) -> None:
        if self.length > 1 << 16:
            self.memory.madvise(mmap.MADV_DONTNEED)
        elif self.length:
            self.view[: self.length] = bytes(self.length)
        self.length = 0


class Zygote:
    restricts_children = False
    """Whether children give up further file rights by Landlock (environments/world_main.py)."""

    def __init__(self, config: dict):
        self.config = config
        # children close everything below 64
        self.control = socket.socket(fileno=fcntl.fcntl(config["fd"], fcntl.F_DUPFD_CLOEXEC, 3))
        os.close(config["fd"])
        self.pid = os.getpid()
        self.work = config["work"]
        self.namespaced = config["namespaced"]
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.body = Buffer(config["body_bytes"], hidden=False)
        self.hide_sinks()
        self.relay = zygote_items.Relay(4 * config["output_bytes"])
        self.entries: dict = {}
        self.hosts = 0
        """In a host of several runs: how many (zygote_items.py). What it forks is confined already."""

    def hide_sinks(self) -> None:
        """Fresh memory for what programs write, absent from them."""
        self.sinks = [Buffer(self.config["output_bytes"], hidden=True) for _ in range(3)]

    # -- set-up ---------------------------------------------------------------------------------

    def prepare(self) -> dict:
        """Preloads, gives everything up, and says what holds."""
        config = self.config
        for name in config["preload"]:
            self.preload(name)
        self.clean()  # an import may leave folders here (matplotlib does) that the program's user could not remove
        programs.open_standard_streams()
        threading.stack_size(8 << 20)  # RLIMIT_STACK is large for deep recursion; threads keep the usual size
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
        except OSError:
            pass
        base_bytes = self.virtual_size() - len(self.relay.view)
        held = {"pid": os.getpid(), "landlock": 0}
        self.sees_processes = self.namespaced and os.path.isdir("/proc/self")
        if not self.namespaced:
            os.makedirs(self.work, mode=0o700, exist_ok=True)
            if config["uid"] is not None:
                os.chown(self.work, config["uid"], config["uid"])
            held["landlock"] = landlock.restrict(
                config["read"], [self.work], ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"]
            )
        if config["uid"] is not None:
            self.drop_to(config["uid"], keep_search=config["keep_search"])
        # a change of user clears the death signal
        self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if not self.namespaced:
            self.libc.prctl(zygote_items.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            if os.getppid() != config["owner"]:
                os._exit(0)
        self.libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # no /proc/1/mem, no /proc/1/environ
        os.chdir(self.work)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 ignores what it does not handle
        # Without a count of processes that holds, or a view of what they use, there is no fork.
        self.forks = self.namespaced and self.sees_processes and os.getuid() != 0
        seccomp.load(seccomp.zygote_filter(metadata=not self.namespaced, landlock=self.restricts_children))
        self.filter = seccomp.program_filter(forks=self.forks, own_pid=None) if self.namespaced else None
        self.base_bytes = base_bytes
        held |= {"forks": self.forks, "uid": os.getuid(), "processes_seen": self.sees_processes}
        gc.collect()
        gc.disable()
        gc.freeze()
        return held

    def preload(self, name: str) -> None:
        module, _, attribute = name.partition(":")
        loaded = importlib.import_module(module)
        if attribute:
            self.entries[name] = getattr(loaded, attribute)

    def drop_to(self, uid: int, *, keep_search: bool) -> None:
        """From root to `uid` without capabilities.

        `keep_search`: the interpreter lies below a directory that only root may enter, and there is no mount
        namespace to lift it out: CAP_DAC_READ_SEARCH stays, and Landlock alone says what can be read.
        """
        if keep_search:
            self.libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        search = 1 << 2 if keep_search else 0
        header = struct.pack("=Ii", 0x20080522, 0)
        if self.libc.capset(header, struct.pack("=6I", search, search, 0, 0, 0, 0)):
            raise OSError(ctypes.get_errno(), "capset: " + os.strerror(ctypes.get_errno()))

    def virtual_size(self) -> int:
        try:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[0]) * resource.getpagesize()
        except OSError:
            return 512 << 20

    # -- the loop -------------------------------------------------------------------------------

    def serve(self) -> None:
        self.send({"hello": self.prepare()}, ())
        while True:
            header_length, body_length = _LENGTHS.unpack(self.receive(_LENGTHS.size))
            request = json.loads(self.receive(header_length))
            self.body.length = body_length
            self.receive_into(self.body.view[:body_length])
            for name in request["imports"]:
                if name not in sys.modules:
                    try:
                        importlib.import_module(name)
                        gc.freeze()
                    except Exception:  # the program will see the same when it tries
                        pass
            if not self.run_items(request):
                return

    def run_items(self, request: dict) -> bool:
        """Runs what was asked for and answers. False when this jail should be replaced."""
        if len(request["parts"]) > 1:
            return zygote_items.run(self, request)
        parts = request["parts"][0]
        answer = self.run(request, request["source"], parts, None)
        self.body.wipe()
        answer["last"], answer["more"] = not self.clean(), False
        self.send(answer, [sink.view[: sink.length] for sink in self.sinks])
        for sink in self.sinks:
            sink.wipe()
        return not answer["last"]

    def receive(self, count: int) -> bytes:
        data = bytearray(count)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, view: memoryview) -> None:
        while len(view):
            got = self.control.recv_into(view)
            if not got:
                self.kill_all()
                os._exit(0)
            view = view[got:]

    def send(self, header: dict, bodies) -> None:
        header["lengths"] = [len(body) for body in bodies]
        encoded = json.dumps(header).encode()
        parts = [_LENGTHS.pack(len(encoded), sum(header["lengths"])) + encoded, *bodies]
        sent = self.control.sendmsg(parts)
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
                continue
            self.control.sendall(memoryview(part)[sent:])
            sent = 0

    # -- one request ----------------------------------------------------------------------------

    def run(self, request: dict, begin: int, parts, stdin: int | None) -> dict:
        """One item. `stdin`: its standard input, if there is a file of it already."""
        ends = [os.pipe() for _ in range(3)]
        link = [end.detach() for end in socket.socketpair()] if request["peer"] else None
        started = time.monotonic()
        peer_pid = self.fork(request, "peer", begin, parts, ends, link[1], None) if link else None
        pid = self.fork(request, "entry", begin, parts, ends, link[0] if link else None, stdin)
        readers = [read for read, _ in ends]
        for fd in [write for _, write in ends] + (link or []):
            os.close(fd)
        try:
            status, raw_status, usage = self.watch(pid, readers, request["limits"], request["frames"], started)
        finally:
            for read in readers:
                os.close(read)
        if peer_pid and not self.namespaced:
            os.kill(peer_pid, signal.SIGKILL)
            os.waitpid(peer_pid, 0)
        code = os.waitstatus_to_exitcode(raw_status)
        return {
            "status": status,
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else 0,
            "wall_s": time.monotonic() - started,
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }

    def fork(self, request: dict, role: str, begin: int, parts, ends, link: int | None, stdin: int | None) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            # what stays is moved out of the way first, so that no target below is still a source
            os.dup2(ends[0][1], 1)
            os.dup2(ends[1][1], 2)
            result = fcntl.fcntl(ends[2][1], fcntl.F_DUPFD, 64) if role == "entry" else None
            link = fcntl.fcntl(link, fcntl.F_DUPFD, 64) if link is not None else None
            os.closerange(3, 64)
            if result is not None:
                os.dup2(result, RESULT_FD, inheritable=False)
            if link is not None:
                os.dup2(link, LINK_FD, inheritable=False)
            if stdin is not None:
                os.dup2(stdin, 0)
            os.closerange(64, zygote_items.FIRST_STDIN_FD + self.hosts)
            body = self.confine(request, role, begin, parts)
            code = self.entries[request[role]](body)
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            except Exception:
                pass
            os._exit(code if isinstance(code, int) else 0)

    def confine(self, request: dict, role: str, at: int, lengths) -> bytes:
        """On the forked child: standard input, limits and filter of one program. Returns its part of the body."""
        stdin, entry, peer = lengths
        begin = at + stdin + (entry if role == "peer" else 0)
        body = bytes(self.body.view[begin : begin + (peer if role == "peer" else entry)])
        if not self.hosts:
            if stdin and role == "entry":
                file = self.stdin_at(at, stdin, at_least=0)
                os.dup2(file, 0)
                os.close(file)
            if request["source"]:
                programs.prepare(bytes(self.body.view[: request["source"]]))
        self.body.wipe()  # what belongs to the peer and to other items
        os.setsid()
        if not self.namespaced:
            self.die_with_parent(self.pid)
        if self.hosts:
            files = request["limits"]["files"]
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        else:
            self.limit(request["limits"], processes=2)
        if not self.namespaced:
            seccomp.load(seccomp.program_filter(forks=False, own_pid=os.getpid()))
        elif not self.hosts:
            seccomp.load(self.filter)
        return body

    def stdin_at(self, at: int, length: int, at_least: int) -> int:
        """A file that holds that part of the body, as a descriptor from `at_least` on."""
        file = os.memfd_create("stdin")
        end = at + length
        while at < end:
            at += os.write(file, self.body.view[at:end])
        os.lseek(file, 0, os.SEEK_SET)
        if file < at_least:
            low, file = file, fcntl.fcntl(file, fcntl.F_DUPFD, at_least)
            os.close(low)
        return file

    def die_with_parent(self, parent: int) -> None:
        self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    def limit(self, limits: dict, processes: int) -> None:
        """`processes`: those of ours that count as the program's."""
        for name, amount in (
            (resource.RLIMIT_CPU, limits["cpu_s"]),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, limits["files"]),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_AS, self.base_bytes + limits["memory_bytes"]),
            (resource.RLIMIT_NPROC, self.config["tasks_of_user"] + limits["processes"] + processes),
        ):
            hard = resource.getrlimit(name)[1]
            wanted = amount + 1 if name == resource.RLIMIT_CPU else amount
            hard = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
            resource.setrlimit(name, (min(amount, hard), hard))

    def watch(self, pid: int, readers, limits: dict, frames: int, started: float):
        """Until `pid` ends or breaks a limit; then nothing of it is left. (status, wait status, rusage)"""
        ended = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        poller.register(self.control, select.POLLRDHUP)
        sinks = {}
        caps = (limits["output_bytes"], limits["output_bytes"], limits["result_bytes"])
        for read, sink, cap in zip(readers, self.sinks, caps, strict=True):
            os.set_blocking(read, False)
            poller.register(read, select.POLLIN)
            sinks[read] = (sink, min(cap, len(sink.view)))
        deadline = started + limits["wall_s"]
        frames_left, frame_end = frames, 0
        next_look = started + _WATCH_S
        status = ""
        try:
            if not frames > 1 and self.ended_soon(ended):
                status = "exited"
            while not status:
                now = time.monotonic()
                if now >= deadline:
                    status = "timeout"
                    break
                if now >= next_look:
                    status = self.look(limits)
                    next_look = now + _WATCH_S
                    continue
                for fd, event in poller.poll(max(1, int(1000 * (min(deadline, next_look) - now)) + 1)):
                    if fd == ended:
                        status = "exited"
                    elif fd == self.control.fileno():
                        self.kill_all(pid)
                        os._exit(0)
                    elif not event & select.POLLIN:
                        poller.unregister(fd)
                    elif not self.drain(fd, *sinks[fd], rounds=16):
                        status = "output"
                        break
                    elif fd == readers[2] and frames_left > 1:
                        sink = self.sinks[2]
                        while frames_left > 1 and sink.length >= frame_end + 4:
                            size = _FRAME.unpack(sink.view[frame_end : frame_end + 4])[0]
                            if sink.length < frame_end + 4 + size:
                                break
                            frame_end += 4 + size
                            frames_left -= 1
                            deadline = time.monotonic() + limits["wall_s"]
            if status == "exited":
                for fd in readers:
                    if not self.drain(fd, *sinks[fd], rounds=1 << 20):
                        status = "output"
        finally:
            os.close(ended)
            raw_status, usage = self.kill_all(pid)
        return status, raw_status, usage

    def ended_soon(self, ended: int) -> bool:
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        poller.register(self.control, select.POLLRDHUP)
        return [fd for fd, _ in poller.poll(1000 * _QUIET_S)] == [ended]

    def drain(self, fd: int, sink: Buffer, cap: int, rounds: int) -> bool:
        """Reads what is there; False when the cap is passed."""
        for _ in range(rounds):
            room = sink.view[sink.length : min(sink.length + 65536, cap)]
            try:
                got = os.readv(fd, [room]) if len(room) else len(os.read(fd, 1))
            except BlockingIOError:
                return True
            if not got:
                return True
            if not len(room):
                return False
            sink.length += got
            if got < len(room):
                return True
        return True

    def look(self, limits: dict) -> str:
        """Disk and memory of everything that runs now: "" or the limit that is broken."""
        used, entries = 0, 0
        todo = [self.work]
        while todo:
            try:
                with os.scandir(todo.pop()) as listing:
                    for entry in listing:
                        entries += 1
                        try:
                            if entry.is_dir(follow_symlinks=False):
                                todo.append(entry.path)
                            used += entry.stat(follow_symlinks=False).st_blocks * 512
                        except OSError:
                            continue
                        if entries > _SCRATCH_ENTRIES or used > limits["disk_bytes"]:
                            return "disk"
            except OSError:
                continue
        if self.forks:
            page, total, own = resource.getpagesize(), 0, str(os.getpid())
            for name in os.listdir("/proc"):
                if name.isdigit() and name != "1" and name != own:
                    try:
                        with open(f"/proc/{name}/statm") as file:
                            _, resident, shared, *_ = file.read().split()
                    except (OSError, ValueError):
                        continue
                    total += (int(resident) - int(shared)) * page
            # pages that a fork shares count once per process here, hence the factor (ours)
            if total > 2 * limits["memory_bytes"]:
                return "memory"
        return ""

    def kill_all(self, pid: int | None = None):
        """Kills and reaps every process but this one. With `pid`: its wait status and rusage."""
        if not self.namespaced:  # no program can fork there: what was forked is all there is
            if pid is None:
                return None
            os.kill(pid, signal.SIGKILL)
            return os.wait4(pid, 0)[1:]
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.reap(pid)

    def reap(self, pid: int | None = None):
        """Waits for all children; the wait status and rusage of `pid` if it is one."""
        found = None
        while True:
            try:
                ended, raw_status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                return found
            if ended == pid:
                found = (raw_status, usage)

    def clean(self) -> bool:
        """Empties the work directory; False when this jail should be replaced."""
        count = 0
        try:
            with os.scandir(self.work) as listing:
                left = []
                for entry in listing:
                    count += 1
                    if count > _SCRATCH_ENTRIES:
                        return False
                    left.append((entry.path, entry.is_dir(follow_symlinks=False)))
            for path, is_directory in left:
                if is_directory:
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
            return True
        except (OSError, RecursionError):
            return False


def main() -> None:
    config = json.loads(sys.argv[1])
    sys.argv = [""]
    site.setquit()  # `exit()` and `quit()`, which -S leaves out
    Zygote(config).serve()


if __name__ == "__main__":
    main()
