"""The process of a world and the line to each of its episodes, from the host's side (world_main.py is the other)."""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.rollouts.environments.world_data import World
from rufus_plugins.rollouts.environments.world_tools import Endpoint
from rufus_plugins.rollouts.sandboxes import launch
from rufus_plugins.types import Termination

_LENGTHS = struct.Struct("!II")
_FRAME = struct.Struct("!I")
_BOOT_S = 120.0
"""Importing FastAPI and SQLAlchemy takes 1-5 s; a crowded machine needs more. Ours."""
_SEND_S = 30.0
_FRAME_BYTES = 64 << 20
_SCRATCH_BYTES = 8 << 30
"""Room for the databases of all episodes of a world, in memory; what is not written takes none. Ours."""
_PRELOAD = (
    "fastapi",
    "fastapi.responses",
    "fastapi.openapi.utils",
    "sqlalchemy",
    "sqlalchemy.orm",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.sql",
    "pydantic",
    "anyio._backends._asyncio",
    "uvicorn",
)


@dataclass(frozen=True)
class WorldLimits:
    """What one episode may use."""

    memory_mb: int = 512
    """Address space beyond the loaded world's own. Ours."""
    cpu_s: int = 600
    """Of the whole episode. Ours."""
    disk_mb: int = 64
    """Ours."""
    processes: int = 4096
    """Processes and threads of all episodes of a world. Ours."""

    def header(self) -> dict[str, int]:
        return {
            "memory_bytes": self.memory_mb << 20,
            "cpu_s": self.cpu_s,
            "disk_bytes": self.disk_mb << 20,
            "processes": self.processes,
        }


@dataclass(frozen=True)
class Reply:
    """What the world's server answered."""

    status: int
    """HTTP; 0 where time was over before it answered."""
    body: str


@dataclass(eq=False)
class Jail:
    """The process of one world."""

    world: World
    process: launch.Jail
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    late: bool = False
    rests: bool = False
    """Whether its episodes' processes may end between two calls (world_rest.py)."""
    tools: Sequence[Endpoint] | None = None
    episodes: set[str] = field(default_factory=set)
    dead: str = ""
    used: int = 0
    watching: asyncio.Task | None = None
    monitor: int | None = None
    """pidfd of bubblewrap, which may be killed while the processes in the jail live on."""

    async def send(self, header: dict[str, Any], body: Sequence[bytes] = (), fd: int | None = None) -> None:
        encoded = json.dumps(header).encode()
        first = _LENGTHS.pack(len(encoded), sum(map(len, body)))
        control, loop = self.process.socket, asyncio.get_running_loop()
        if self.dead:
            raise ConnectionError(self.dead)
        async with self.lock, asyncio.timeout(_SEND_S):
            if fd is None:
                await loop.sock_sendall(control, first)
            else:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                while True:
                    try:
                        if control.sendmsg([first], rights) != len(first):
                            raise ConnectionError("a short write")
                        break
                    except BlockingIOError:
                        await asyncio.sleep(0.002)
            for part in (encoded, *body):
                await loop.sock_sendall(control, part)

    async def receive(self) -> tuple[dict[str, Any], bytes]:
        header, body = _LENGTHS.unpack(await self._exactly(_LENGTHS.size))
        if header + body > _FRAME_BYTES:
            raise ConnectionError("too much")
        answer = json.loads(await self._exactly(header))
        return answer, await self._exactly(body)

    async def _exactly(self, count: int) -> bytes:
        data, loop = bytearray(), asyncio.get_running_loop()
        while len(data) < count:
            chunk = await loop.sock_recv(self.process.socket, min(count - len(data), 1 << 20))
            if not chunk:
                raise ConnectionError("the process ended")
            data += chunk
        return bytes(data)

    def kill(self, why: str) -> None:
        if not self.dead:
            self.dead = why
            loop = asyncio.get_running_loop()
            if self.watching is not None:
                self.watching.cancel()
            if self.monitor is not None:
                loop.remove_reader(self.monitor)
                os.close(self.monitor)
            loop.remove_reader(self.process.socket)
            loop.remove_writer(self.process.socket)
            self.process.kill()


@dataclass(eq=False)
class Episode:
    id: str
    jail: Jail
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    lost: str = ""
    resting: bool = False
    """Its process has ended; its folder waits for the next call."""
    used: float = 0.0
    """When it was last called, by the loop's clock."""

    async def frame(self) -> dict[str, Any]:
        size = _FRAME.unpack(await self.reader.readexactly(_FRAME.size))[0]
        if size > _FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes")
        answer = json.loads(await self.reader.readexactly(size))
        if not isinstance(answer, dict):
            raise ValueError(f"a frame with {type(answer).__name__}")
        return answer

    async def blob(self, size: Any) -> bytes:
        if not isinstance(size, int) or not 0 <= size <= _FRAME_BYTES:
            raise ValueError(f"{size!r} bytes")
        return await self.reader.readexactly(size)

    def ask(self, request: dict[str, Any]) -> None:
        data = json.dumps(request).encode()
        self.writer.write(_FRAME.pack(len(data)) + data)


async def boot(world: World, backend: str, index: int) -> Jail:
    """A process that waits for the world's code. Call it on the thread that jails belong to: the kernel ties their
    lives to it. Raises `InfrastructureError`."""
    script = Path(__file__).with_name("world_main.py")
    process = launch.start(backend, index, _PRELOAD, script=script, scratch_bytes=_SCRATCH_BYTES)
    process.socket.setblocking(False)
    jail = Jail(world, process)
    try:
        async with asyncio.timeout(_BOOT_S):
            await jail.receive()
        if backend == "bubblewrap":
            process.find_inner()
    except (TimeoutError, OSError, ConnectionError) as error:
        words = _words(process)
        jail.kill("it did not start")
        raise InfrastructureError(
            f"no sandbox starts for the world {world.scenario!r} ({backend}): {words or error}",
            Termination.ENVIRONMENT_LOST,
        ) from None
    except BaseException:
        jail.kill("it did not start")
        raise
    return jail


def _words(process: launch.Jail) -> str:
    try:
        os.set_blocking(process.process.stderr.fileno(), False)
        return (process.process.stderr.read() or b"").decode(errors="replace").strip()[-1500:]
    except (OSError, ValueError):
        return ""
