"""MCP over the pipes of a command, as a transport for the SDK's client.

The SDK's own joins what it has read so far to every chunk, which makes a 32 MB line cost half a minute of the event
loop, and it has no limit. Here a line costs its own length and has one. The command runs below mcp_stdio.py, which ends
it with everything that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

_CHUNK = 1 << 18
_END_S = 1.0
"""For a server to end after its input is closed, and again after it is told to. Ours."""


@contextlib.asynccontextmanager
async def pipes(command: Sequence[str], stderr: Any, line_bytes: int) -> AsyncIterator[tuple[Any, Any]]:
    """Yields the streams that `mcp.Client` reads and writes. Both end when the process does."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    to_client, from_server = anyio.create_memory_object_stream(0)
    to_server, from_client = anyio.create_memory_object_stream(0)

    async def read() -> None:
        parts: list[bytes] = []
        size = 0
        async with to_client:
            while chunk := await process.stdout.read(_CHUNK):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    parts.append(line)
                    await to_client.send(_message(b"".join(parts)))
                    parts, size = [], 0
                parts.append(rest)
                size += len(rest)
                if size > line_bytes:
                    return

    def _message(line: bytes) -> Any:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            return error

    async def write() -> None:
        async with from_client:
            async for message in from_client:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()

    async def quietly(work: Any) -> None:
        try:
            await work
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            to_client.close()

    tasks = [asyncio.create_task(quietly(read())), asyncio.create_task(quietly(write()))]
    try:
        yield from_server, to_server
    finally:
        for stream in (from_server, to_server, to_client, from_client):
            stream.close()
        for task in tasks:
            task.cancel()
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Also when the caller is cancelled: the waits are short."""
    process.stdin.close()
    for act in (lambda: None, process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            act()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(process.wait())), _END_S)
            break
    process._transport.close()
