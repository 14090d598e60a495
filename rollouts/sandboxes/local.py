"""The local sandbox: a bubblewrap session on this machine that lives as long as its episode. The default backend.

It has its own root file system (an overlay over this machine's /usr and an empty skeleton, or a snapshot baked by
`rufus prepare coding_agent`), its own processes, users, IPC and host name, and no network unless `network` is set. Root
inside is nobody outside. `/tests` and `/logs/{verifier,agent,artifacts}` exist, as Harbor's tasks expect.

What is written lies in memory of the sandbox's own mount namespace: when the sandbox, or its owner, ends by whatever
signal, the kernel takes files, mounts and processes with it. Where user namespaces or overlays are forbidden,
`SandboxUnavailable` says so: there is no weaker fallback for a whole session (one-shot programs: zygote.py).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError, SandboxUnavailable
from rufus_plugins.rollouts.sandboxes import launch
from rufus_plugins.types import ExecResult, Termination

_LENGTHS = struct.Struct("!II")
_GRACE_S = 30.0
"""How long after a command's own deadline the sandbox may stay silent before it counts as stuck. Ours."""
_READ_BYTES = 64 << 20
_CHUNK = 16 << 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ids = itertools.count(1)
_NO_BWRAP = "The local sandbox needs bwrap: install bubblewrap, or use the sandbox e2b."


@dataclass
class Local:
    """A root file system, processes and a disk of its own on this machine, by bubblewrap; the default."""

    snapshot: str | None = None
    """Folder that `snapshot()` or `rufus prepare coding_agent` wrote; None: this machine's /usr and nothing else."""
    network: bool = False
    """Share the machine's network, its own loopback services included. Off: the sandbox has a loopback of its own."""
    disk_mb: int = 2048
    """Most that the sandbox may write; it counts as memory of the machine. Ours."""
    memory_mb: int = 4096
    """All processes together; the largest one is killed beyond it. Looked at four times a second. Ours."""
    processes: int = 512
    """Processes and threads at a time. Ours."""
    output_kb: int = 512
    """Kept of each stream of a command, half from its start and half from its end. Ours."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    """Where commands start; "": the snapshot's, else the user's home."""
    user: str = ""
    """Who runs commands; "": the snapshot's, else root. Others than root need an owner that is root."""
    boot_timeout_s: float = 60.0
    """A boot takes about 0.1 s; a loaded machine needs more. Ours."""

    def __post_init__(self) -> None:
        for name in ("disk_mb", "memory_mb", "processes", "output_kb"):
            if getattr(self, name) < 1:
                raise ConfigError(f"sandbox local: {name}={getattr(self, name)}; it is at least 1")
        self.baked: dict[str, Any] = read_snapshot(self.snapshot) if self.snapshot else {}
        self.lost = ""
        """Why the sandbox is gone, if it is."""
        self._process: subprocess.Popen | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task | None = None
        self._starting: asyncio.Lock = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future] = {}
        self._inside: int | None = None
        self._monitor: int | None = None
        self._last_words = ""
        self._ending: asyncio.Task | None = None
        self._closed = False
        self._fork_of = 0

    def preflight(self) -> None:
        """Raises `SandboxUnavailable` without bubblewrap. The rest shows at the first start."""
        if not shutil.which("bwrap"):
            raise SandboxUnavailable(_NO_BWRAP)

    # -- the protocol -----------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        timeout_s: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Runs `bash -c command`. It ends when its own process does; background processes live on.

        At the deadline the command and its children are killed: exit code None, what it had written is kept.
        `started` is False if it provably never ran (no such folder or user). Raises InfrastructureError(SANDBOX_LOST).
        """
        if "\0" in command:
            return ExecResult(None, "", "a command cannot hold a NUL character", False, 0.0)
        await self.start()
        request = {
            "op": "exec",
            "timeout_s": timeout_s,
            "env": dict(env or {}),
            "cwd": cwd or self.workdir or self.baked.get("workdir") or "",
            "user": self._user(user),
            "keep_bytes": self.output_kb << 10,
        }
        encoded = command.encode("utf-8", "surrogatepass")
        if len(encoded) > 100_000:  # the kernel takes 128 KiB in one argument
            path = f"/var/tmp/.rufus-command-{next(_ids)}"
            await self.write_file(path, encoded)
            encoded = f'{{ rm -f {path}; eval "$(cat)"; }} < {path}'.encode()
        try:
            answer, body = await self._ask(request, encoded, timeout_s + _GRACE_S)
        except asyncio.CancelledError:
            await self._stop(request["id"])
            raise
        if "never" in answer:
            return ExecResult(None, "", answer["never"], False, 0.0)
        if "error" in answer:
            return ExecResult(None, "", answer["message"], False, 0.0)
        streams, at, left = [], 0, 0
        for head, tail, left_out in answer["streams"]:
            streams.append(joined(body[at : at + head], body[at + head : at + head + tail], left_out))
            at += head + tail
            left += left_out
        if answer["out_of_memory"]:
            streams[1] += f"\n[killed: the sandbox's {self.memory_mb} MB of memory were used up]"
        ended = not answer["timed_out"] and not answer["stopped"]
        return ExecResult(answer["exit_code"] if ended else None, *streams, True, answer["duration_s"])

    async def read_file(self, path: str) -> bytes:
        """Raises OSError as `open` would, also for what is no regular file or holds more than 64 MiB."""
        await self.start()
        answer, body = await self._ask({"op": "read", "path": path, "most": _READ_BYTES}, b"", _GRACE_S)
        if "error" in answer:
            raise OSError(answer["error"], answer["message"])
        return body

    async def write_file(self, path: str, content: bytes) -> None:
        """Makes the folders too. Raises InfrastructureError if it cannot be written (a full disk)."""
        await self.start()
        for at in range(0, max(1, len(content)), _CHUNK):
            request = {"op": "write", "path": path, "append": at > 0}
            answer, _ = await self._ask(request, content[at : at + _CHUNK], 2 * _GRACE_S)
            if "error" in answer:
                raise InfrastructureError(
                    f"{path} cannot be written in the sandbox: {answer['message']}", Termination.ENVIRONMENT_LOST
                )

    async def close(self) -> None:
        """Ends every process in it. May be called again."""
        self._closed = True
        await self._end("it was closed")

    # -- copies -----------------------------------------------------------------------------------------------------

    async def snapshot_to(self, folder: str | os.PathLike[str], **notes: Any) -> str:
        """Writes the file system (no processes) to a new folder, for `Local(snapshot=folder)`. Returns its path.

        `notes` go into snapshot.json; `workdir`, `user` and `env` there are the defaults of sandboxes made from it.
        """
        await self.start()
        path = Path(folder).resolve()
        if path.exists():
            raise ConfigError(f"{path} exists already; a snapshot is written to a new folder")
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}-{next(_ids)}")
        partial.mkdir(parents=True)
        try:
            await self.pause()
            try:
                config = {"copy": self._process.pid, "target": str(partial)}
                await _run_boot(config, "the snapshot")
            finally:
                await self.resume()
            about = {
                "layers": self._layers(),
                "ids": ids(),
                "workdir": self.workdir or self.baked.get("workdir", ""),
                "user": self.user or self.baked.get("user", ""),
                "env": {**self.baked.get("env", {}), **self.env},
                **notes,
            }
            (partial / "snapshot.json").write_text(json.dumps(about, indent=1, sort_keys=True))
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return str(path)

    async def fork(self, count: int = 1) -> Sequence[Local]:
        """`count` further sandboxes with this one's files; its processes are not copied. It is stopped meanwhile."""
        await self.start()
        copies = [replace(self) for _ in range(count)]
        await self.pause()
        try:
            for copy in copies:
                copy._fork_of = self._process.pid
            await asyncio.gather(*(copy.start() for copy in copies))
        except BaseException:
            await asyncio.gather(*(copy.close() for copy in copies), return_exceptions=True)
            raise
        finally:
            await self.resume()
        return copies

    async def pause(self) -> None:
        """Stops every process until `resume`."""
        await self.start()
        await self._ask({"op": "freeze"}, b"", _GRACE_S)

    async def resume(self) -> None:
        await self._ask({"op": "thaw"}, b"", _GRACE_S)

    # -- the process ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Boots it; every other method does so by itself. Raises SandboxUnavailable, InfrastructureError."""
        async with self._starting:
            if self.lost or self._closed:
                raise InfrastructureError(f"the local sandbox is gone: {self.lost}", Termination.SANDBOX_LOST)
            if self._process is not None:
                return
            self._user(None)
            ours, theirs = socket.socketpair()
            try:
                process = await asyncio.to_thread(self._popen, theirs)
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._process = process
            try:
                async with asyncio.timeout(self.boot_timeout_s):
                    reader, self._writer = await asyncio.open_connection(sock=ours)
                    await _read_frame(reader)
            except (asyncio.IncompleteReadError, OSError, TimeoutError) as error:
                await self._end("it did not start")
                words = self._last_words
                if isinstance(error, TimeoutError):
                    message = f"the local sandbox did not start within {self.boot_timeout_s:g} s: {words}"
                    raise InfrastructureError(message, Termination.TIMEOUT_INFRA) from None
                raise SandboxUnavailable(
                    "The local sandbox does not start: it needs bubblewrap, user namespaces and overlay mounts in them "
                    f"(Linux 5.11). It said: {words or 'nothing'}. Allow them, run as root, or use the sandbox e2b."
                ) from None
            except BaseException:
                await self._end("its start was cancelled")
                raise
            self._inside = _child_of(process.pid)
            # bubblewrap's monitor may be killed while process 1, with the socket, lives on
            self._monitor = os.pidfd_open(process.pid)
            asyncio.get_running_loop().add_reader(self._monitor, self._monitor_ended)
            self._reading = asyncio.create_task(self._read(reader))

    def _popen(self, theirs: socket.socket) -> subprocess.Popen:
        bwrap = shutil.which("bwrap")
        if not bwrap:
            raise SandboxUnavailable(_NO_BWRAP)
        for layer in self._layers():
            if not os.path.isdir(layer):
                raise ConfigError(f"the snapshot {self.snapshot} needs the folder {layer}, which is not there")
        base = os.path.realpath(sys.base_prefix)
        config = {
            "fork_of": self._fork_of,
            "layers": self._layers(),
            "disk_bytes": self.disk_mb << 20,
            "processes": self.processes,
            "network": self.network,
            "hostname": "sandbox",
            "bwrap": bwrap,
            "python": base,
            "interpreter": os.path.relpath(launch.interpreter(), base),
            "server": {
                "fd": theirs.fileno(),
                "memory_bytes": self.memory_mb << 20,
                "env": {
                    "PATH": PATH,
                    "HOME": "/root",
                    "USER": "root",
                    "LANG": "C.UTF-8",
                    "SHELL": "/bin/bash",
                    **self.baked.get("env", {}),
                    **self.env,
                },
            },
        }
        return subprocess.Popen(
            [launch.interpreter(), "-I", "-S", _boot_script(), json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": PATH, "LANG": "C.UTF-8"},
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def _layers(self) -> list[str]:
        return [str(Path(self.snapshot).resolve()), *self.baked["layers"]] if self.snapshot else []

    def _user(self, user: str | None) -> str:
        user = user or self.user or self.baked.get("user") or ""
        if user in ("root", "0", "root:root"):
            return ""
        if user and os.geteuid():
            raise ConfigError(
                f"the local sandbox was asked to run as {user!r}; without root on this machine it has no user but root"
            )
        return user

    async def _ask(self, request: dict, body: bytes, patience_s: float) -> tuple[dict, bytes]:
        if self.lost or self._writer is None:
            raise InfrastructureError(f"the local sandbox is gone: {self.lost}", Termination.SANDBOX_LOST)
        request["id"] = next(_ids)
        answer: asyncio.Future = asyncio.get_running_loop().create_future()
        self._waiting[request["id"]] = answer
        encoded = json.dumps(request).encode()
        try:
            async with asyncio.timeout(patience_s) as clock:
                self._writer.writelines([_LENGTHS.pack(len(encoded), len(body)), encoded, body])
                await self._writer.drain()
                return await answer
        except ConnectionError as error:
            await self._end(f"its socket broke: {error}")
            raise InfrastructureError(f"the local sandbox died: {error}", Termination.SANDBOX_LOST) from None
        except TimeoutError:
            if not clock.expired():
                raise
            await self._end("it stopped answering")
            raise InfrastructureError(
                f"the local sandbox did not answer within {patience_s:g} s", Termination.TIMEOUT_INFRA
            ) from None
        finally:
            self._waiting.pop(request["id"], None)

    async def _stop(self, target: int) -> None:
        """Kills a command whose caller was cancelled."""
        if not self.lost:
            try:
                await asyncio.shield(self._ask({"op": "stop", "target": target}, b"", _GRACE_S))
            except InfrastructureError:
                return

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = "its process ended"
        try:
            while True:
                header, body = await _read_frame(reader)
                answer = self._waiting.get(header.get("id", 0))
                if answer is not None and not answer.done():
                    answer.set_result((header, body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            why = "it was closed"
        await self._end(why)

    def _monitor_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._monitor)
        self._ending = asyncio.create_task(self._end("its process ended"))

    async def _end(self, why: str) -> None:
        """Nothing of it is left afterwards."""
        self.lost = self.lost or why
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(
                    InfrastructureError(f"the local sandbox is gone: {self.lost}", Termination.SANDBOX_LOST)
                )
        process, self._process = self._process, None
        writer, self._writer = self._writer, None
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            asyncio.get_running_loop().remove_reader(monitor)
            os.close(monitor)
        if writer is not None:
            writer.close()  # process 1 ends with its socket, and everything in there with process 1
        if process is not None:
            inside, self._inside = self._inside, None
            self._last_words = await asyncio.to_thread(_bury, process, inside)
        reading, self._reading = self._reading, None
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()

    @property
    def pids(self) -> list[int]:
        """Monitor and process 1, as the machine sees them."""
        pid = self._process.pid if self._process else None
        return [found for found in (pid, pid and _child_pid(pid)) if found]

    def __del__(self) -> None:
        writer = getattr(self, "_writer", None)
        if writer is not None and writer.transport is not None:
            sock = writer.transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return


def joined(head: bytes, tail: bytes, left_out: int) -> str:
    """Text of a stream's two ends; what no UTF-8 is becomes U+FFFD."""
    if not left_out:
        return (head + tail).decode("utf-8", "replace")
    return f"{head.decode('utf-8', 'replace')}\n[... {left_out} bytes left out ...]\n{tail.decode('utf-8', 'replace')}"


def ids() -> str:
    """Whose files snapshots of this process hold: those of root and of others do not fit together."""
    return "mapped" if os.geteuid() == 0 else f"user {os.geteuid()}"


def read_snapshot(folder: str) -> dict[str, Any]:
    try:
        about = json.loads((Path(folder) / "snapshot.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no snapshot of a local sandbox: it has no snapshot.json") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"the snapshot {folder} cannot be read: {error}") from error
    if about.get("ids") != ids():
        raise ConfigError(
            f"the snapshot {folder} was made by {about.get('ids')!r} and this process is {ids()!r}: its files would "
            "belong to nobody. Bake it again as this user."
        )
    return about


def _boot_script() -> str:
    return str(Path(__file__).with_name("local_boot.py").resolve())


async def _run_boot(config: dict, what: str) -> None:
    process = await asyncio.create_subprocess_exec(
        launch.interpreter(),
        *("-I", "-S", _boot_script(), json.dumps(config)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
    )
    try:
        _, words = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise InfrastructureError(
            f"{what} of the local sandbox failed: {words.decode(errors='replace')[-600:]}", Termination.SANDBOX_LOST
        )


async def _read_frame(reader: asyncio.StreamReader) -> tuple[dict, bytes]:
    header, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    return json.loads(await reader.readexactly(header)), await reader.readexactly(body)


def _child_pid(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _child_of(pid: int) -> int | None:
    """pidfd of process 1: it is killed too, in case it is stopped and does not see its socket close."""
    child = _child_pid(pid)
    try:
        return os.pidfd_open(child) if child else None
    except OSError:
        return None


def _bury(process: subprocess.Popen, inside: int | None) -> str:
    """Waits until nothing is left; what it said on standard error."""
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        pass
    if inside is not None:
        try:
            signal.pidfd_send_signal(inside, signal.SIGKILL)
        except OSError:
            pass
        os.close(inside)
    process.kill()
    process.wait()
    with process.stderr as stream:
        return stream.read().decode(errors="replace").strip()[-600:]
