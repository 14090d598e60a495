"""Runs untrusted programs, one after another, in warmed jails: 3-8 ms each, every one in a fresh process.

A *zygote* is a Python process inside a jail (launch.py) that forks once per request. A `Zygotes` pool holds a few of
them; any number of coroutines in any loop or thread of the process may use it. What holds for every request:

- It has its own wall time, CPU time, memory, processes, file size, disk and output limits (`Limits`). Breaking one
  costs that request alone; output is cut while it runs. Time counts from the fork, never from the waiting before it.
- Nothing of it is left afterwards: no process, no file, no memory that the next one could read.
- No network, no file outside the work directory but the interpreter and installed packages (read only), no other
  process of the machine, no environment of the caller.
- A zygote that dies (also by SIGKILL in mid-program) is noticed at once and replaced. The request ends in
  `InfrastructureError(SANDBOX_LOST)`, or runs once more if the caller said that it may (`retry=True`, counted).
- When the owning process dies, by whatever signal, the kernel takes the jails with it.

Use: `zygotes = shared(preload=["rufus_plugins.rewards.my_harness:check"])`, then `await zygotes.run(source, stdin)`
for a program, or `await zygotes.call_batch("module:function", items)` for a function of ours on untrusted data.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import math
import os
import struct
import tempfile
import threading
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import InfrastructureError, SandboxUnavailable
from rufus_plugins.rollouts.sandboxes import launch
from rufus_plugins.types import Termination

_LENGTHS = struct.Struct("!II")
_GRACE_S = 20.0
"""How long after a request's own deadline a zygote may stay silent before it counts as stuck. Ours."""
_BOOT_S = 60.0
"""A boot takes 0.1-0.2 s; heavy preloads and a loaded machine need more. Ours."""
RUN_PROGRAM = "rufus_plugins.rollouts.sandboxes.programs:run_program"
SERVE_BATCH = "rufus_plugins.rollouts.sandboxes.programs:serve_batch"


@dataclass(frozen=True)
class Limits:
    """What one request may use. All values ours, in the range of public judges."""

    wall_s: float = 10.0
    """From the fork; per item in a batch."""
    cpu_s: float | None = None
    """Per process; None = a second more than `wall_s`."""
    memory_mb: int = 1024
    """Address space of a process beyond the interpreter's own; all processes together: twice that."""
    processes: int = 32
    """Processes and threads at a time. 0 children are possible where the jail cannot count them (see `forks`)."""
    file_mb: int = 32
    disk_mb: int = 64
    files: int = 64
    output_kb: int = 4096
    """Per stream; at most 16384."""
    result_kb: int = 8192

    def header(self) -> dict[str, float]:
        return {
            "wall_s": self.wall_s,
            "cpu_s": math.ceil(self.cpu_s if self.cpu_s is not None else self.wall_s + 1),
            "memory_bytes": self.memory_mb << 20,
            "processes": self.processes,
            "file_bytes": self.file_mb << 20,
            "disk_bytes": min(self.disk_mb << 20, launch.SCRATCH_BYTES),
            "files": min(self.files, 128),
            "output_bytes": min(self.output_kb << 10, launch.OUTPUT_BYTES),
            "result_bytes": min(self.result_kb << 10, launch.OUTPUT_BYTES),
        }


@dataclass(frozen=True)
class Outcome:
    """How a request ended. Everything in it but `status`, `signal` and the times is the program's own claim."""

    status: str
    """exited | timeout | output | disk | memory: which limit ended it, if one did."""
    exit_code: int | None
    """None when a signal ended it."""
    signal: int
    stdout: bytes
    stderr: bytes
    frames: Sequence[bytes]
    """Complete frames that the entry point answered."""
    wall_s: float
    cpu_s: float
    retries: int = 0
    """How often a lost sandbox made us run it again."""

    @property
    def timed_out(self) -> bool:
        return self.status == "timeout" or self.signal == 24  # SIGXCPU

    @property
    def memory_exceeded(self) -> bool:
        """Known for the whole tree; for one process it is the MemoryError it reports, or the kernel's kill."""
        if self.status == "memory" or (self.status == "exited" and self.signal == 9):
            return True
        return any(b'"exception": "MemoryError"' in frame for frame in self.frames if len(frame) < 1000)


@dataclass(frozen=True)
class CallResult:
    """What a function of ours answered for one item: `ok` and a value, or why there is none."""

    ok: bool
    value: Any = None
    error: str = ""
    """timeout | memory | crashed, or the name of the exception."""
    message: str = ""


class Zygotes:
    """A pool of zygotes. Cheap to create: a zygote starts when the first request needs it.

    `preload`: modules (`package.module`) and entry points (`package.module:function`) that are imported once per
    zygote, before anything untrusted runs. `backend`: auto | bubblewrap | landlock. `workers`: requests that run at a
    time; more wait, without their time running. `paths`: further directories to show read-only and to import from.
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        *,
        workers: int | None = None,
        backend: str = "auto",
        paths: Sequence[str] = (),
    ):
        self.preload = tuple(dict.fromkeys([RUN_PROGRAM, SERVE_BATCH, *preload]))
        self.workers = workers or len(os.sched_getaffinity(0))
        self.backend = backend
        self.paths = tuple(os.path.realpath(path) for path in paths)
        self.lost = 0
        """Zygotes that died in mid-request."""
        self.started = 0
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._slots: asyncio.Semaphore | None = None
        self._owner = os.getpid()

    async def run(
        self,
        source: str,
        stdin: str | bytes = b"",
        limits: Limits = Limits(),
        *,
        imports: Sequence[str] = (),
        retry: bool = True,
    ) -> Outcome:
        """Runs Python source as a program. `imports`: installed modules worth importing before the fork (numpy)."""
        stdin = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
        body = source.encode("utf-8", "surrogatepass")
        return await self.request(RUN_PROGRAM, body, stdin=stdin, limits=limits, imports=imports, retry=retry)

    async def call(self, function: str, item: Any, limits: Limits = Limits()) -> CallResult:
        """`call_batch` for one item."""
        return (await self.call_batch(function, [item], limits))[0]

    async def call_batch(self, function: str, items: Sequence[Any], limits: Limits = Limits()) -> list[CallResult]:
        """Calls `module:function` in the jail for each item (plain JSON data in and out), in one forked process.

        An item that breaks a limit costs its own time only: the rest go on in a fresh process. The function is ours;
        the items may be hostile data. Never hand it source to execute: use `run`, or an entry point of your own.
        """
        results: list[CallResult] = []
        lost = 0
        while len(results) < len(items):
            rest = items[len(results) :]
            body = json.dumps({"function": function, "items": rest}).encode()
            try:
                outcome = await self.request(SERVE_BATCH, body, frames=len(rest), limits=limits)
            except InfrastructureError as error:
                if error.termination is not Termination.SANDBOX_LOST or lost >= 1:
                    raise
                lost += 1
                continue
            for frame in outcome.frames[: len(rest)]:
                data = json.loads(frame)
                if "exception" in data:
                    break
                if "error" in data:
                    results.append(CallResult(False, error=data["error"], message=data["message"]))
                else:
                    results.append(CallResult(True, data["value"]))
            if len(results) < len(items) and outcome.status == "exited" and outcome.exit_code == 70:
                raise InfrastructureError(
                    f"{function} cannot be called in the sandbox: {outcome.stderr.decode(errors='replace')[-2000:]}",
                    Termination.REWARD_FAILED,
                )
            if len(results) < len(items):
                error = "timeout" if outcome.timed_out else "memory" if outcome.memory_exceeded else "crashed"
                results.append(CallResult(False, error=error, message=outcome.stderr.decode(errors="replace")[-2000:]))
        return results

    async def request(
        self,
        entry: str,
        body: bytes,
        *,
        stdin: bytes = b"",
        peer: str | None = None,
        peer_body: bytes = b"",
        frames: int = 1,
        limits: Limits = Limits(),
        imports: Sequence[str] = (),
        retry: bool = False,
    ) -> Outcome:
        """One fork of the preloaded `entry(body) -> exit code`; the request is over when it ends.

        With `peer`, a second process runs `peer(peer_body)`, joined to the first by a socket at descriptor 4 on both
        sides; it sees neither the body, nor the answers, nor the memory of the first, and ends with it.
        Raises InfrastructureError when the zygote is lost, SandboxUnavailable where nothing isolates.
        """
        header = {"entry": entry, "peer": peer, "frames": frames, "limits": limits.header(), "imports": list(imports)}
        return (await _on_thread(self._request(header, [(stdin, body, peer_body)], frames, retry)))[0]

    async def request_each(
        self,
        entry: str,
        items: Sequence[tuple[bytes, bytes]],
        *,
        source: bytes = b"",
        limits: Limits = Limits(),
        imports: Sequence[str] = (),
        retry: bool = False,
    ) -> list[Outcome]:
        """`request` for several (stdin, body), each in its own process, with one round trip.

        `source`: Python that all of them run; it is compiled once, and entry points find it (programs.shared_source).
        Outcomes are those of the first items only: up to and with the first that does not exit with status 0, or as
        many as fit into a fifth of a second (at least one). No item sees another one's data.
        """
        header = {"entry": entry, "peer": None, "frames": 1, "limits": limits.header(), "imports": list(imports)}
        parts = [(stdin, body, b"") for stdin, body in items]
        return await _on_thread(self._request(header, parts, 1, retry, source))

    async def _request(
        self,
        header: dict,
        items: Sequence[tuple[bytes, bytes, bytes]],
        frames: int,
        retry: bool,
        source: bytes = b"",
    ) -> list[Outcome]:
        header["source"] = len(source)
        header["parts"] = [[len(part) for part in item] for item in items]
        body = b"".join([source, *(part for item in items for part in item)])
        if len(body) > launch.BODY_BYTES:
            raise InfrastructureError(
                f"a request of {len(body) >> 20} MiB is more than the sandbox takes ({launch.BODY_BYTES >> 20} MiB)",
                Termination.REWARD_FAILED,
            )
        if self._owner != os.getpid():  # forked: the jails belong to the parent
            # kept for ever: to free them would unregister the parent's sockets from the epoll that both share
            _of_the_parent.append((self._idle, self._busy, self._slots))
            self._owner, self._slots, self._idle, self._busy = os.getpid(), None, [], set()
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.workers)
        encoded = json.dumps(header).encode()
        # of several items the last may run twice (zygote_items.py)
        patience_s = header["limits"]["wall_s"] * max(1, frames, min(2, len(items))) + _GRACE_S
        async with self._slots:
            for attempt in range(2):
                connection = await self._take()
                try:
                    connection.writer.writelines([_LENGTHS.pack(len(encoded), len(body)), encoded, body])
                    outcomes: list[Outcome] = []
                    more = True
                    while more:
                        answer, bodies = await asyncio.wait_for(connection.read(), patience_s)
                        more, last = answer.pop("more"), answer.pop("last")
                        del answer["lengths"]
                        stdout, stderr, result = bodies
                        outcomes.append(
                            Outcome(**answer, stdout=stdout, stderr=stderr, frames=_frames(result), retries=attempt)
                        )
                except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
                    if isinstance(error, TimeoutError):
                        self._drop(connection)
                        raise InfrastructureError(
                            f"the sandbox did not answer within {patience_s:.0f} s", Termination.TIMEOUT_INFRA
                        ) from None
                    self._drop(connection)
                    self.lost += 1
                    if retry and attempt == 0:
                        continue
                    raise InfrastructureError(
                        f"the sandbox process died during a request ({connection.last_words()})",
                        Termination.SANDBOX_LOST,
                    ) from None
                except BaseException:  # cancelled: what runs in there is nobody's any more
                    self._drop(connection)
                    raise
                if last:
                    self._drop(connection)
                else:
                    self._busy.discard(connection)
                    self._idle.append(connection)
                return outcomes
        raise AssertionError("unreachable")

    async def _take(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive():
                self._busy.add(connection)
                return connection
            self._drop(connection)
        backend = self.backend if self.backend != "auto" else await _default_backend()
        problem: Exception | None = None
        for _ in range(3):
            try:
                connection = await _Connection.open(backend, self.started, self.preload, self.paths)
            except (OSError, asyncio.IncompleteReadError) as error:
                problem = error
                continue
            finally:
                self.started += 1
            self._busy.add(connection)
            return connection
        raise InfrastructureError(
            f"no sandbox process starts any more ({backend}): {problem}", Termination.SANDBOX_LOST
        ) from problem

    def _drop(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.kill()

    def close(self) -> None:
        """Kills the jails; requests under way end in SANDBOX_LOST. The pool can be used again."""
        if self._owner == os.getpid():
            _run_on_thread(self._close()).result(timeout=30)

    async def _close(self) -> None:
        for connection in [*self._idle, *self._busy]:
            self._drop(connection)
        self._idle.clear()

    @property
    def pids(self) -> list[int]:
        """Process ids of the running jails, as the host sees them (bubblewrap's, or the zygote's own)."""
        return [connection.jail.process.pid for connection in [*self._idle, *self._busy]]


_MOST_FRAMES = 1 << 16
"""Of one answer: a program that floods with empty ones costs itself alone. Ours."""


def _frames(data: bytes) -> list[bytes]:
    frames, at = [], 0
    while at + 4 <= len(data) and len(frames) < _MOST_FRAMES:
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            break
        frames.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return frames


@dataclass(eq=False)
class _Connection:
    jail: launch.Jail
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hello: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    async def open(cls, backend: str, index: int, preload: Sequence[str], paths: Sequence[str]) -> _Connection:
        jail = launch.start(backend, index, preload, paths)
        reader, writer = await asyncio.open_unix_connection(sock=jail.socket)
        connection = cls(jail, reader, writer)
        try:
            answer, _ = await asyncio.wait_for(connection.read(), _BOOT_S)
            connection.hello = answer["hello"]
            if backend == "bubblewrap":
                jail.find_inner()
        except (OSError, asyncio.IncompleteReadError) as error:
            connection.kill()
            words = "no answer" if isinstance(error, TimeoutError) else connection.last_words()
            raise OSError(f"{backend}: {words}") from error
        except BaseException:
            connection.kill()
            raise
        return connection

    def kill(self) -> None:
        self.writer.transport.abort()  # leaves the event loop before the descriptor can be given out again
        self.jail.kill()

    async def read(self) -> tuple[dict[str, Any], list[bytes]]:
        header_length, body_length = _LENGTHS.unpack(await self.reader.readexactly(_LENGTHS.size))
        header = json.loads(await self.reader.readexactly(header_length))
        body = await self.reader.readexactly(body_length) if body_length else b""
        bodies, at = [], 0
        for length in header["lengths"]:
            bodies.append(body[at : at + length])
            at += length
        return header, bodies

    def alive(self) -> bool:
        return not self.reader.at_eof() and self.jail.process.poll() is None

    def last_words(self) -> str:
        stream = self.jail.process.stderr
        try:
            os.set_blocking(stream.fileno(), False)
            text = (stream.read() or b"").decode(errors="replace").strip()
        except (OSError, ValueError):
            text = ""
        return text[-1500:] or f"exit status {self.jail.process.poll()}"


# -- one thread with one event loop per process: the kernel ties a jail's life to the thread that started it -----------

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_loop_pid = 0
_pools: dict[tuple, Zygotes] = {}
_of_the_parent: list = []
_backends: dict[str, tuple[str | None, str]] = {}


def _thread_loop() -> asyncio.AbstractEventLoop:
    global _loop, _loop_pid
    with _lock:
        if _loop is None or _loop_pid != os.getpid():
            _of_the_parent.append(_loop)
            _loop, _loop_pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="rufus-zygotes", daemon=True).start()
            atexit.register(_at_exit, _loop_pid)
        return _loop


def _run_on_thread(work: Awaitable):
    return asyncio.run_coroutine_threadsafe(work, _thread_loop())


async def _on_thread(work: Awaitable):
    return await asyncio.wrap_future(_run_on_thread(work))


def jail_loop() -> asyncio.AbstractEventLoop:
    """The loop of that thread."""
    return _thread_loop()


def on_jail_thread(work: Awaitable):
    """`work` on the loop of the thread that jails belong to, for whoever starts further ones: a concurrent future."""
    return _run_on_thread(work)


def _at_exit(pid: int) -> None:
    if pid == os.getpid():
        for pool in [*_pools.values()]:
            pool.close()


def shared(
    preload: Sequence[str] = (), *, workers: int | None = None, backend: str = "auto", paths: Sequence[str] = ()
) -> Zygotes:
    """The process's pool with these preloads: rewards that ask for the same share it."""
    key = (os.getpid(), tuple(preload), workers, backend, tuple(paths))
    with _lock:
        if key not in _pools:
            _pools[key] = Zygotes(preload, workers=workers, backend=backend, paths=paths)
        return _pools[key]


# -- which backend ----------------------------------------------------------------------------------------------------

_SELF_TEST = """
import json, os, socket
found = []
for name, attempt in (
    ("the network", lambda: socket.socket()),
    ("a file of the host", lambda: open(CANARY).read()),
    ("the host's directories", lambda: open(os.path.dirname(CANARY) + "/planted", "w")),
    ("other processes' environment", lambda: open("/proc/%d/environ" % OWNER).read()),
):
    try:
        attempt()
    except OSError:
        continue
    found.append(name)
if os.getuid() == 0:
    found.append("user 0")
print(json.dumps(found))
"""


def available(backend: str = "auto") -> tuple[str | None, str]:
    """(backend, why) after really starting a jail and trying to get out of it; (None, why) where nothing holds.

    Takes about 0.3 s the first time. Call it outside an event loop, or use `Zygotes`, which asks by itself.
    """
    return _run_on_thread(_probe(backend)).result(timeout=4 * _BOOT_S)


async def _probe(backend: str) -> tuple[str | None, str]:
    if backend in _backends:
        return _backends[backend]
    if backend != "auto":
        if backend not in launch.BACKENDS:
            raise SandboxUnavailable(f"no sandbox backend {backend!r}; there are auto, {', '.join(launch.BACKENDS)}")
        found, why = await _try(backend)
        if not found and backend == "bubblewrap" and "mount proc" in why:  # forbidden in many containers
            launch.mount_proc = False
            found, why = await _try(backend)
        _backends[backend] = found, why
        return _backends[backend]
    reasons = []
    for name in launch.BACKENDS:
        found, why = await _probe(name)
        if found:
            _backends["auto"] = found, "; ".join([why, *reasons])
            return _backends["auto"]
        reasons.append(why)
    return None, "; ".join(reasons)


async def _try(backend: str) -> tuple[str | None, str]:
    from rufus_plugins.rollouts.sandboxes.seccomp import zygote_filter

    pool = Zygotes(workers=1, backend=backend)
    try:
        zygote_filter(metadata=True)
        with tempfile.TemporaryDirectory(prefix="rufus-canary-") as folder:
            os.chmod(folder, 0o777)
            canary = os.path.join(folder, "canary")
            with open(canary, "w") as file:
                file.write("here")
            os.chmod(canary, 0o644)
            source = f"CANARY, OWNER = {canary!r}, {os.getpid()}\n{_SELF_TEST}"
            header = {"entry": RUN_PROGRAM, "peer": None, "frames": 1, "limits": Limits().header(), "imports": []}
            outcome = (await pool._request(header, [(b"", source.encode(), b"")], 1, False))[0]
        if outcome.exit_code != 0:
            return None, f"{backend}: the self-test failed: {outcome.stderr.decode(errors='replace')[-500:]}"
        reached = json.loads(outcome.stdout)
        if reached:
            return None, f"{backend}: does not hold here: a program reached {', '.join(reached)}"
        hello = pool._idle[0].hello
        children = "child processes limited" if hello["forks"] else "no child processes"
        return backend, f"{backend}: works, user {hello['uid']}, {children}"
    except (OSError, InfrastructureError) as error:
        return None, f"{backend}: {error}"
    finally:
        await pool._close()


async def default_backend() -> str:
    """Which backend isolates here. Raises SandboxUnavailable where none does."""
    return await _default_backend()


async def _default_backend() -> str:
    found, why = await _probe("auto")
    if not found:
        raise SandboxUnavailable(
            f"untrusted code is not run: nothing on this machine isolates it ({why}). "
            "Install bubblewrap and allow user namespaces, or use a kernel with Landlock (5.13 or later)."
        )
    return found
