"""MCP servers and AgentWorldModel worlds as environments: the model calls their tools until it answers (Rufus-Air).

    environment=mcp reward=post_state                                        our own worlds, or a folder of JSONL
    environment=mcp 'rufus.environment.servers={notes: {command: [python, notes.py]}}'

A record's `extra_info` says where it plays:

- `world` (or `scenario`): a scenario of `worlds` (world_data.py). Its code runs in the sandbox (world_host.py);
  `finish()` keeps the database before and after, which `post_state` judges.
- `server`: one of `servers`, or a list of them (mcp_servers.py). A record that names nothing gets all of them.
- `mcp_server`: `{command, files}`, a server of its own, in the sandbox and without network.
- `tools`: `{allow: [...], deny: [...]}`, names or patterns; what the configuration denies stays denied.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rollouts.environments.mcp_servers import UNKNOWN, Connection, check_present, check_spec
from rufus_plugins.rollouts.environments.mcp_tools import usable
from rufus_plugins.rollouts.environments.world_data import initial_database, library
from rufus_plugins.rollouts.environments.world_host import WorldHost, WorldLimits, shared_host
from rufus_plugins.rollouts.environments.world_tools import Endpoint
from rufus_plugins.rollouts.tools import Tool, Toolbox, ToolResult
from rufus_plugins.types import CallStatus, Message, StepResult, Task, Termination

_KEPT_S = 6 * 3600.0
"""How long a final database is kept for the reward. Ours."""


@dataclass
class Mcp:
    """Tools of MCP servers, or of a jailed world with a database of its own (AgentWorldModel)."""

    worlds: str | None = None
    """Folder with AgentWorldModel's JSONL, or `builtin` for our own shop, desk and bank; null: the record's `worlds`,
    else `builtin`."""
    servers: dict[str, Any] = field(default_factory=dict)
    """Name -> `{object}`, `{command, env, cwd}` or `{url, headers}`: trusted, they run as your user."""
    allow: list[str] = field(default_factory=list)
    """Tools that may be used, names or patterns with `*`; empty: all."""
    deny: list[str] = field(default_factory=list)
    call_timeout_s: float = 60.0
    """Of one call; the model is told and the episode goes on. Ours."""
    connect_timeout_s: float = 60.0
    """Of starting a server. Ours."""
    max_result_chars: int = 20_000
    """Of one result; the middle is left out. Ours."""
    max_worlds: int = 32
    """Worlds that stay loaded per worker, at 60-80 MB each. Ours."""
    memory_mb: int = 512
    """Of a world's episode, beyond the loaded world. Ours."""
    disk_mb: int = 64
    """Of a world's episode. Ours."""
    cpu_s: int = 600
    """Processor time of a world's episode. Ours."""
    folder: str | None = None
    """Where databases are kept for the reward, shared by all nodes if rewards are computed on other ones. null: a
    folder of the user under the temporary directory."""

    def __post_init__(self) -> None:
        positive = ("call_timeout_s", "connect_timeout_s", "max_result_chars", "max_worlds")
        for name in (*positive, "memory_mb", "disk_mb", "cpu_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"rufus.environment.{name}={getattr(self, name)}: a positive number")
        self._specs = {str(name): check_spec(str(name), spec) for name, spec in self.servers.items()}
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._box: Toolbox | None = None
        self._connections: list[Connection] = []
        self._host: WorldHost | None = None
        self._episode = uuid.uuid4().hex
        self._before: Path | None = None

    def preflight(self) -> None:
        """Raises `ConfigError` for a folder of worlds, a program or an object that is not on this machine."""
        if self.worlds:
            library(str(self.worlds))
        for name, spec in self._specs.items():
            try:
                check_present(spec)
            except ConfigError as error:
                raise ConfigError(f"rufus.environment.servers.{name}: {error}") from error

    async def start(self, task: Task) -> Sequence[Message]:
        """Raises `DataError` for a record that names what does not exist."""
        world = task.extra.get("world") or task.extra.get("scenario")
        folder = str(self.worlds or task.extra.get("worlds") or "builtin")
        tools = await (self._open_world(folder, str(world)) if world else self._open_servers(task))
        chosen = _chosen(tools, [self.allow, _names(task, "allow")], [*self.deny, *_names(task, "deny")])
        if not chosen:
            offered = ", ".join(tool.schema["function"]["name"] for tool in tools) or "none"
            raise DataError(f"{task.id}: no tool is left; offered: {offered}; allow and deny leave none of them")
        self._box = Toolbox(chosen, self.call_timeout_s * 3 + 120.0, self.max_result_chars)
        self.tools = self._box.schemas
        return task.prompt

    async def step(self, message: Message) -> StepResult:
        if not message.get("tool_calls"):
            return StepResult(done=True)
        answers = await self._box.answer(message)
        errors = sum(answer["status"] is not CallStatus.OK for answer in answers)
        return StepResult(answers, metrics={"mcp_calls": len(answers), "mcp_errors": errors})

    async def finish(self) -> Mapping[str, Any]:
        """`db_before` and `db_after` of a world, as paths; nothing of other servers. `temporary_files` are removed once
        the rollout is scored."""
        if self._host is None:
            return {}
        data = await self._host.finish(self._episode)
        path = await asyncio.to_thread(_keep, self._root / "after", f"{self._episode}.db", data)
        return {"db_before": str(self._before), "db_after": str(path), "temporary_files": [str(path)]}

    async def close(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.close(self._episode)
        connections, self._connections = self._connections, []
        results = await asyncio.gather(*(one.close() for one in connections), return_exceptions=True)
        for failure in results:
            if isinstance(failure, Exception):
                raise failure

    # -- a world --------------------------------------------------------------------------------------

    @property
    def _root(self) -> Path:
        if self.folder:
            return Path(self.folder)
        path = Path(tempfile.gettempdir()) / f"rufus-worlds-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        if path.is_symlink() or path.stat().st_uid != os.getuid():  # what others put there would be judged
            raise ConfigError(f"{path} belongs to somebody else: set rufus.environment.folder to a folder of yours")
        return path

    async def _open_world(self, folder: str, name: str) -> list[Tool]:
        world = await asyncio.to_thread(lambda: library(folder).world(name))
        self._before = await initial_database(world, self._root / "initial")
        limits = WorldLimits(self.memory_mb, self.cpu_s, self.disk_mb)
        self._host = shared_host(limits, self.max_worlds)
        found = await self._host.start(self._episode, world, self._before)
        return [_WorldTool(one, self) for one in found]

    # -- servers --------------------------------------------------------------------------------------

    async def _open_servers(self, task: Task) -> list[Tool]:
        specs: list[tuple[str, Mapping[str, Any], bool]] = []
        own = _plain(task.extra.get("mcp_server"))
        if own:
            specs.append(("of the record", _own_server(task, own), True))
        named = _plain(task.extra.get("server")) or ([] if own else list(self._specs))
        for name in [named] if isinstance(named, str) else named:
            if name not in self._specs:
                known = ", ".join(self._specs) or "none"
                raise DataError(
                    f"{task.id}: there is no MCP server {name!r} in rufus.environment.servers; known: {known}"
                )
            specs.append((name, self._specs[name], False))
        if not specs:
            raise DataError(
                f"{task.id}: the record names no world and no server. Put `world` (or `server`, `mcp_server`) into its "
                "extra_info, or servers into rufus.environment.servers"
            )
        self._connections = [
            Connection(name, spec, self.connect_timeout_s, self.call_timeout_s, sandboxed)
            for name, spec, sandboxed in specs
        ]
        await _together(one.open() for one in self._connections)
        lists = await _together(one.tools() for one in self._connections)
        tools: list[Tool] = []
        taken: dict[str, Any] = {}
        for connection, listed in zip(self._connections, lists, strict=True):
            for one in listed:
                tool = usable(connection, one, taken, prefix=len(specs) > 1)
                if tool is not None:
                    tools.append(tool)
        return tools


async def _together(work: Any) -> list[Any]:
    """All of it, also where one fails; then the first failure."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@dataclass
class _WorldTool:
    """An operation of a world, in one episode."""

    endpoint: Endpoint
    owner: Mcp

    def __post_init__(self) -> None:
        self.schema = self.endpoint.schema

    async def open(self, task: Task) -> None: ...

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        request = self.endpoint.request(arguments)
        if isinstance(request, ToolResult):
            return request
        owner = self.owner
        reply = (await owner._host.call(owner._episode, [request], owner.call_timeout_s, owner.max_result_chars))[0]
        if reply.status == 0:
            return ToolResult(f"no result within {owner.call_timeout_s:g} s; {UNKNOWN}", CallStatus.ERROR)
        if 200 <= reply.status < 300:
            return ToolResult(reply.body)
        return ToolResult(f"HTTP {reply.status}: {reply.body}", CallStatus.ERROR)

    async def close(self) -> None: ...


def _plain(value: Any) -> Any:
    """Tables hold nested values as JSON."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _own_server(task: Task, spec: Any) -> Mapping[str, Any]:
    if not isinstance(spec, Mapping) or not isinstance(spec.get("command"), list) or not spec["command"]:
        raise DataError(
            f"{task.id}: mcp_server must be {{command: [...], files: {{name: text}}}}, not {str(spec)[:200]!r}. "
            "A server elsewhere belongs into rufus.environment.servers, and the record names it by `server`"
        )
    files = {str(k): str(v) for k, v in (spec.get("files") or {}).items() if v is not None}
    outside = [name for name in files if os.path.isabs(name) or ".." in Path(name).parts]
    if outside:
        raise DataError(f"{task.id}: mcp_server.files: {outside[0]!r} leads out of the server's folder")
    return {"command": [str(part) for part in spec["command"]], "files": files, "env": dict(spec.get("env") or {})}


def _names(task: Task, key: str) -> list[str]:
    given = _plain(task.extra.get("tools"))
    names = given.get(key) if isinstance(given, Mapping) else None
    return [str(name) for name in _plain(names) or ()]


def _chosen(tools: Sequence[Tool], allows: Sequence[Sequence[str]], deny: Sequence[str]) -> list[Tool]:
    def allowed(name: str) -> bool:
        return all(not some or any(fnmatch.fnmatchcase(name, one) for one in some) for some in allows)

    names = [tool.schema["function"]["name"] for tool in tools]
    return [
        tool
        for tool, name in zip(tools, names, strict=True)
        if allowed(name) and not any(fnmatch.fnmatchcase(name, one) for one in deny)
    ]


def _keep(folder: Path, name: str, data: bytes) -> Path:
    """Writes the final state, and removes what no reward waits for any more."""
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        sweep(folder)
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error}", Termination.ENVIRONMENT_LOST) from error
    return path


_swept: dict[Path, float] = {}


def sweep(folder: Path, kept_s: float = _KEPT_S) -> int:
    """Removes databases older than `kept_s`, whoever wrote them; at most once a minute. Returns how many."""
    now, removed = time.time(), 0
    if now - _swept.get(folder, 0.0) < 60.0:
        return 0
    _swept[folder] = now
    for entry in os.scandir(folder):
        try:
            if entry.name.endswith(".db") and now - entry.stat().st_mtime > kept_s:
                os.unlink(entry.path)
                removed += 1
        except OSError:
            continue
    return removed
