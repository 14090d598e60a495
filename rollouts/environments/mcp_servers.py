"""One session with an MCP server: in this process, over a command's pipes, or over streamable HTTP.

    {"object": "package.module:name"}                       a server object, or a function that makes one per episode
    {"command": ["node", "server.js"], "env": {}, "cwd": "."}  trusted: it runs as this process's user
    {"url": "https://host/mcp", "headers": {}}

A record's own server (`mcp_server` with `command` and `files`) runs in the sandbox, without network.

What a server answers, or fails to answer, is a result that the model reads; a server that is gone is
`environment_lost`. No call is sent twice: the SDK ends a session at the first connection that fails, and whether the
server began is not known then. A session that could not be opened had no effect yet and is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rollouts.environments.mcp_commands import as_file, sandbox, trusted
from rufus_plugins.rollouts.environments.mcp_content import text_of
from rufus_plugins.rollouts.retry import NeverStarted, OutcomeUnknown, Started, exchange, started
from rufus_plugins.rollouts.tools import ToolResult, load
from rufus_plugins.types import CallStatus, Termination

_LINE_BYTES = 32 << 20
"""Of one message. Ours."""
_CLOSE_S = 10.0
_GRACE_S = 5.0
_PAGES = 100
UNKNOWN = "it may or may not have taken effect: look before you call it again"
KINDS = ("object", "command", "url")


def check_spec(name: str, spec: Any) -> dict[str, Any]:
    """A server of the configuration. Raises `ConfigError`."""
    where = f"rufus.environment.servers.{name}"
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where} is {spec!r}; it is a mapping with one of {', '.join(KINDS)}")
    kinds = [kind for kind in KINDS if spec.get(kind)]
    allowed = {"object": set(), "command": {"env", "cwd"}, "url": {"headers"}}
    if len(kinds) != 1:
        raise ConfigError(f"{where} needs exactly one of {', '.join(KINDS)}; it has {', '.join(spec) or 'nothing'}")
    wrong = [key for key in spec if key != kinds[0] and key not in allowed[kinds[0]]]
    if wrong:
        known = ", ".join([kinds[0], *sorted(allowed[kinds[0]])])
        raise ConfigError(f"{where}: there is no {wrong[0]!r} for a server with {kinds[0]}; fields: {known}")
    spec = dict(spec)
    if "command" in spec:
        command = spec["command"]
        if isinstance(command, str) or not all(isinstance(part, str) for part in command):
            raise ConfigError(f"{where}.command is a list of words, like [python, server.py]; not {command!r}")
    for key in ("env", "headers"):
        given = spec.get(key) or {}
        if not isinstance(given, Mapping) or not all(isinstance(v, str) for pair in given.items() for v in pair):
            raise ConfigError(f"{where}.{key} is {given!r}; it is a mapping of texts to texts (quote numbers)")
    if "url" in spec and not str(spec["url"]).startswith(("http://", "https://")):
        raise ConfigError(f"{where}.url={spec['url']!r} is no http(s) address")
    return spec


def check_present(spec: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a program or an object that is not on this machine. Starts nothing."""
    if "object" in spec:
        load_object(str(spec["object"]))
    elif "command" in spec:
        if spec.get("cwd") and not os.path.isdir(str(spec["cwd"])):
            raise ConfigError(f"cwd={spec['cwd']!r} is no folder")
        trusted(list(spec["command"]), spec.get("cwd") or None, {**os.environ, **(spec.get("env") or {})})


@dataclass(eq=False)
class Connection:
    """Open it, list, call, close; from any task of one event loop."""

    name: str
    spec: Mapping[str, Any]
    connect_timeout_s: float
    call_timeout_s: float
    sandboxed: bool = False
    lost: str = ""
    _client: Any = None
    _holder: asyncio.Task | None = None
    _leave: asyncio.Event = field(default_factory=asyncio.Event)
    _stderr: Any = None

    async def open(self) -> None:
        """Raises `ConfigError` for what cannot be started, `InfrastructureError` for what does not answer."""
        what = f"the MCP server {self.name!r}"
        try:
            await exchange(self._open, what, repeatable=True, tries=4, deadline_s=self.connect_timeout_s)
        except NeverStarted as error:
            raise InfrastructureError(
                f"{what} does not start: {error.__cause__}", Termination.ENVIRONMENT_LOST
            ) from error

    async def _open(self) -> None:
        ready: asyncio.Future = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(ready), name=f"mcp server {self.name}")
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await asyncio.shield(ready)
        except TimeoutError:
            message = f"the MCP server {self.name!r} did not answer within {self.connect_timeout_s:g} s{self._words()}"
            await self.close()
            raise InfrastructureError(message, Termination.TIMEOUT_INFRA) from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def tools(self) -> list[Any]:
        """What the server lists. Raises `InfrastructureError`."""
        found, cursor = [], None
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                for _ in range(_PAGES):
                    page = await self._client.list_tools(cursor=cursor, cache_mode="bypass")
                    found += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        return found
        except TimeoutError:
            message = f"the MCP server {self.name!r} did not list its tools within {self.connect_timeout_s:g} s"
            raise InfrastructureError(message, Termination.TIMEOUT_INFRA) from None
        except Exception as error:
            raise InfrastructureError(
                f"the MCP server {self.name!r} does not list its tools: {_said(error)}{self._words()}",
                Termination.ENVIRONMENT_LOST,
            ) from error
        raise InfrastructureError(f"the MCP server {self.name!r} lists tools without end", Termination.ENVIRONMENT_LOST)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises `InfrastructureError(ENVIRONMENT_LOST)` when the server is gone."""
        if self.lost:
            raise InfrastructureError(self.lost, Termination.ENVIRONMENT_LOST)
        try:
            return await self._send(tool, arguments)
        except OutcomeUnknown as error:
            return ToolResult(f"{error}; {UNKNOWN}", CallStatus.ERROR)

    async def _send(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult
        from pydantic import ValidationError

        begun = time.monotonic()
        try:
            async with asyncio.timeout(self.call_timeout_s + _GRACE_S):
                result = await self._client.session.call_tool(
                    tool,
                    dict(arguments),
                    read_timeout_seconds=self.call_timeout_s,
                    allow_input_required=True,
                    allow_claimed=True,
                )
        except TimeoutError:
            raise OutcomeUnknown(f"no result within {self.call_timeout_s:g} s") from None
        except MCPError as error:
            # servers use the SDK's own codes and words too: what happened says whose error it is
            if error.code == REQUEST_TIMEOUT and time.monotonic() - begun > 0.9 * self.call_timeout_s:
                raise OutcomeUnknown(f"no result within {self.call_timeout_s:g} s") from None
            if error.code == CONNECTION_CLOSED or ("url" in self.spec and "session" in error.message.lower()):
                await self._check_alive(error)
                if error.message == "Connection closed":
                    raise OutcomeUnknown(f"the connection broke ({error.message})") from None
            return ToolResult(f"{error.message} (code {error.code})", CallStatus.ERROR)
        except ValidationError as error:
            return ToolResult(f"the server's answer cannot be read ({error.error_count()} errors)", CallStatus.ERROR)
        except (InfrastructureError, asyncio.CancelledError):
            raise
        except Exception as error:
            await self._check_alive(error)
            raise OutcomeUnknown(_said(error)) from error
        if not isinstance(result, CallToolResult):
            return ToolResult("the tool asks for input that nobody gives here", CallStatus.ERROR)
        return ToolResult(text_of(result), CallStatus.ERROR if result.is_error else CallStatus.OK)

    async def _check_alive(self, error: Exception) -> None:
        """After a broken connection: a server that lists its tools again goes on, another one is lost."""
        if self._holder is not None and not self._holder.done():
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self.connect_timeout_s):
                    await self._client.list_tools(cache_mode="bypass")
                return
        raise self._gone(_said(error)) from error

    def _gone(self, why: str) -> InfrastructureError:
        self.lost = f"the MCP server {self.name!r} is gone: {why}{self._words()}"
        return InfrastructureError(self.lost, Termination.ENVIRONMENT_LOST)

    async def close(self) -> None:
        """Ends the session, and the command with everything that it started."""
        self._leave.set()
        holder, self._holder = self._holder, None
        if holder is not None:
            if self._client is None:  # still on its way in
                holder.cancel()
            _, running = await asyncio.wait([holder], timeout=_CLOSE_S)
            if running:
                holder.cancel()
                await asyncio.wait([holder], timeout=_CLOSE_S)
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    # -- the session lives in a task of its own: the SDK wants to be left by the task that entered ---------------------

    async def _hold(self, ready: asyncio.Future) -> None:
        from mcp import Client

        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs what servers get wrong, line by line
        try:
            async with contextlib.AsyncExitStack() as stack:
                target = await self._target(stack)
                client = await stack.enter_async_context(Client(target, read_timeout_seconds=self.call_timeout_s))
                client.session.validate_tool_result = _any_result
                self._client = client
                if not ready.done():
                    ready.set_result(None)
                await self._leave.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if ready.done():
                self.lost = self.lost or f"the MCP server {self.name!r} is gone: {_said(error)}{self._words()}"
                return
            if isinstance(error, ConfigError):
                ready.set_exception(error)
                return
            if "url" in self.spec and started(_inner(error)) is Started.NEVER:
                ready.set_exception(_inner(error))
                return
            message = f"the MCP server {self.name!r} does not start: {_said(error)}{self._words()}"
            ready.set_exception(InfrastructureError(message, Termination.ENVIRONMENT_LOST))

    async def _target(self, stack: contextlib.AsyncExitStack) -> Any:
        spec = self.spec
        if "object" in spec:
            from mcp.server import Server
            from mcp.server.mcpserver import MCPServer

            found = load_object(str(spec["object"]))
            made = found() if callable(found) and not isinstance(found, Server | MCPServer) else found
            if not isinstance(made, Server | MCPServer):
                raise ConfigError(f"{spec['object']!r} gives a {type(made).__name__}, no MCP server")
            return made
        if "url" in spec:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            client = await stack.enter_async_context(create_mcp_http_client(dict(spec.get("headers") or {}) or None))
            return streamable_http_client(str(spec["url"]), http_client=client, max_sse_event_size=_LINE_BYTES)
        from mcp.client.stdio import get_default_environment

        from rufus_plugins.rollouts.environments.mcp_pipes import pipes

        env = {**get_default_environment(), **(spec.get("env") or {})}
        told = {"owner": os.getpid(), "env": env, "cwd": spec.get("cwd") or None}
        if self.sandboxed:
            told |= sandbox(list(spec["command"]), dict(spec.get("files") or {}), dict(spec.get("env") or {}), stack)
        else:
            told["command"] = trusted(list(spec["command"]), told["cwd"], env)
        script = str(Path(__file__).with_name("mcp_stdio.py").resolve())
        self._stderr = tempfile.TemporaryFile()
        command = [sys.executable, "-I", "-S", script, as_file(told, stack)]
        return pipes(command, self._stderr, _LINE_BYTES)

    def _words(self) -> str:
        """The end of what the server wrote to standard error."""
        if self._stderr is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self._stderr.fileno()).st_size
            text = os.pread(self._stderr.fileno(), 1000, max(0, size - 1000)).decode(errors="replace").strip()
            return f". It said: {text}" if text else ""
        return ""


async def _any_result(name: str, result: Any) -> None:
    """Instead of the SDK's check: a result that breaks the server's own schema was still computed, and is shown."""


def _inner(error: BaseException) -> BaseException:
    """What a task group's failure is about."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _said(error: BaseException) -> str:
    error = _inner(error)
    return f"{type(error).__name__}: {error}"[:500]


def load_object(path: str) -> Any:
    """`package.module:name`. Raises `ConfigError`."""
    module, _, name = path.partition(":")
    with contextlib.suppress(ConfigError):
        return load(path)
    try:
        import importlib

        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the MCP server {path!r} does not load: {error}; write package.module:name") from error
