"""A loopback E2B: the REST API and envd's Connect protocol, as far as the real SDK needs them, over local sandboxes.

Every E2B sandbox is a real local sandbox (its own files and processes). `fault` may break any start of a command, at a
point of its exchange that it chooses; what the peer was asked is in `requests`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import struct
import tempfile
import urllib.parse
import uuid
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.rollouts.sandboxes.local import Local

FAULTS = (
    "drop_before",
    "drop_after_running",
    "drop_after_start",
    "drop_mid_stream",
    "drop_before_end",
    "429",
    "503",
    "503_after_running",
    "stall_before",
    "stall_after_running",
)


class Dropped(Exception):
    """The connection is cut here."""


class Sandbox:
    def __init__(self, machine: Local, template: str, body: dict):
        self.id, self.machine, self.template, self.body = f"i{uuid.uuid4().hex[:18]}", machine, template, body
        self.paused = False
        self.processes: dict[int, asyncio.Task] = {}

    def described(self) -> dict:
        return {
            "templateID": self.template,
            "sandboxID": self.id,
            "clientID": "peer",
            "envdVersion": "0.5.0",
            "envdAccessToken": "token",
        }


class Peer:
    def __init__(self):
        self.sandboxes: dict[str, Sandbox] = {}
        self.created: dict[str, Sandbox] = {}
        self.snapshots: dict[str, str] = {}
        self.templates: dict[str, str] = {}
        """Name -> image."""
        self.requests: list[tuple[str, str, dict, bytes]] = []
        self.fault: Callable[[], str | None] = lambda: None
        self.rest_faults: list[str] = []
        """Statuses, or `drop_after`, for the next REST requests."""
        self.stall_s = 0.6
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pids = iter(range(1000, 10**9))
        self._folder = tempfile.TemporaryDirectory(prefix="e2b-peer-")
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def deafen(self) -> None:
        """Connections are refused until `listen`."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        await self.deafen()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sandbox in list(self.sandboxes.values()):
            await sandbox.machine.close()
        self._folder.cleanup()

    async def kill(self, sandbox_id: str) -> bool:
        sandbox = self.sandboxes.pop(sandbox_id, None)
        if sandbox:
            await sandbox.machine.close()
            for task in sandbox.processes.values():
                task.cancel()
        return sandbox is not None

    # -- HTTP -------------------------------------------------------------------------------------------------------

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *rest = head.decode("latin-1").split("\r\n")
                method, target, _ = line.split(" ")
                headers = {n.lower(): v.strip() for n, _, v in (h.partition(":") for h in rest if h)}
                body = await self._body(reader, headers)
                url = urllib.parse.urlsplit(target)
                query = dict(urllib.parse.parse_qsl(url.query))
                self.requests.append((method, url.path, headers, body))
                await self._route(method, url.path, query, headers, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, Dropped):
            return
        finally:
            self._writers.discard(writer)
            self._tasks.discard(asyncio.current_task())
            writer.transport.abort()

    @staticmethod
    async def _body(reader: asyncio.StreamReader, headers: dict) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await reader.readline()).split(b";")[0], 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
            return body
        return await reader.readexactly(int(headers.get("content-length", 0)))

    @staticmethod
    def _reply(writer, status: int, body: bytes | dict | list = b"", kind: str = "application/json") -> None:
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async def _route(self, method, path, query, headers, body, writer) -> None:
        if "e2b-sandbox-id" in headers and not path.startswith(("/sandboxes", "/v2/")):
            await self._envd(method, path, query, headers, body, writer)
            return
        fault = self.rest_faults.pop(0) if self.rest_faults else ""
        if fault and fault != "drop_after":
            self._reply(writer, int(fault), {"code": int(fault), "message": "not now"})
            return
        status, answer = await self._rest(method, path, json.loads(body) if body else {}, headers)
        if fault == "drop_after":
            raise Dropped
        self._reply(writer, status, answer if status != 204 else b"")

    # -- REST -------------------------------------------------------------------------------------------------------

    async def _rest(self, method: str, path: str, body: dict, headers: dict) -> tuple[int, dict | list]:
        if (method, path) in (("POST", "/v2/sandboxes"), ("POST", "/sandboxes")):
            key = headers.get("idempotency-key", "")
            if key not in self.created:
                template = body["templateID"]
                if template not in self.snapshots and template.startswith("snap"):
                    return 404, {"code": 404, "message": f"template {template} not found"}
                self.created[key] = self._add(Local(snapshot=self.snapshots.get(template)), template, body)
                await self.created[key].machine.start()
            return 201, self.created[key].described()
        if path.startswith(("/v3/templates", "/v2/templates/", "/templates/")):
            return self._template(method, path, body)
        found = re.fullmatch(r"(?:/v2)?/sandboxes/(\w+)(?:/(\w+))?", path)
        sandbox = self.sandboxes.get(found[1]) if found else None
        if sandbox is None:
            return 404, {"code": 404, "message": f"sandbox {path} not found"}
        match method, found[2]:
            case "DELETE", None:
                await self.kill(sandbox.id)
                return 204, {}
            case "GET", None:
                return 200, {**sandbox.described(), "state": "paused" if sandbox.paused else "running"}
            case "POST", "timeout":
                return 204, {}
            case "POST", "pause":
                await sandbox.machine.pause()
                sandbox.paused = True
                return 204, {}
            case "POST", "connect" | "resume":
                if sandbox.paused:
                    await sandbox.machine.resume()
                    sandbox.paused = False
                return 200, sandbox.described()
            case "POST", "snapshots":
                name = f"snap{len(self.snapshots)}"
                self.snapshots[name] = await sandbox.machine.snapshot_to(os.path.join(self._folder.name, name))
                return 201, {"snapshotID": name, "names": []}
            case "POST", "fork":
                copies = await sandbox.machine.fork(body.get("count", 1))
                added = [self._add(copy, sandbox.template, sandbox.body) for copy in copies]
                return 201, [{"sandbox": copy.described()} for copy in added]
        return 404, {"code": 404, "message": f"{method} {path} is not known"}

    def _template(self, method: str, path: str, body: dict) -> tuple[int, dict]:
        """Builds from an image at once; an image that is called `missing` cannot be had."""
        if path == "/v3/templates":
            self.templates[body["name"]] = ""
            made = {"templateID": body["name"], "buildID": "00000000-0000-0000-0000-000000000001", "public": False}
            return 202, made | {"names": [body["name"]], "tags": [], "aliases": [body["name"]]}
        name = path.split("/templates/")[1].split("/")[0]
        if method == "POST":
            self.templates[name] = body["fromImage"]
            return 202, {}
        failed = "missing" in self.templates[name]
        status = {"templateID": name, "buildID": path.split("/builds/")[1].split("/")[0], "logs": [], "logEntries": []}
        reason = {"reason": {"message": f"no image {self.templates[name]}"}} if failed else {}
        return 200, status | {"status": "error" if failed else "ready"} | reason

    def _add(self, machine: Local, template: str, body: dict) -> Sandbox:
        sandbox = Sandbox(machine, template, body)
        self.sandboxes[sandbox.id] = sandbox
        return sandbox

    # -- envd -------------------------------------------------------------------------------------------------------

    async def _envd(self, method, path, query, headers, body, writer) -> None:
        sandbox = self.sandboxes.get(headers["e2b-sandbox-id"])
        if sandbox is None or sandbox.paused or sandbox.machine.lost:
            told = {"sandboxId": headers["e2b-sandbox-id"], "message": "The sandbox was not found", "code": 502}
            self._reply(writer, 502, told)
            return
        if path == "/health":
            self._reply(writer, 204)
        elif path == "/files" and method == "GET":
            try:
                content = await sandbox.machine.read_file(query["path"])
                self._reply(writer, 200, content, "application/octet-stream")
            except OSError:
                self._reply(writer, 404, {"code": 404, "message": f"path '{query['path']}' does not exist"})
        elif path == "/files":
            if headers.get("content-type", "").startswith("multipart/"):
                boundary = headers["content-type"].partition("boundary=")[2].encode()
                body = body.split(b"--" + boundary)[1].partition(b"\r\n\r\n")[2][:-2]
            await sandbox.machine.write_file(query["path"], body)
            self._reply(writer, 200, [{"name": os.path.basename(query["path"]), "type": "file", "path": query["path"]}])
        elif path == "/process.Process/Start":
            await self._start(sandbox, headers, json.loads(body[5:]), writer)
        elif path == "/process.Process/SendSignal":
            task = sandbox.processes.get(json.loads(body)["process"]["pid"])
            if task is None:
                self._reply(writer, 404, {"code": "not_found", "message": "no such process"})
            else:
                task.cancel()
                self._reply(writer, 200, {})
        elif path == "/process.Process/List":
            self._reply(writer, 200, {"processes": [{"pid": pid, "config": {}} for pid in sandbox.processes]})
        else:
            self._reply(writer, 404, {"code": "unimplemented", "message": path})

    async def _start(self, sandbox: Sandbox, headers: dict, asked: dict, writer) -> None:
        fault = self.fault()
        if fault == "drop_before":
            raise Dropped
        if fault in ("429", "503"):
            code = {"429": "resource_exhausted", "503": "unavailable"}[fault]
            self._reply(writer, int(fault), {"code": code, "message": "not now"})
            return
        if fault == "stall_before":
            await asyncio.sleep(self.stall_s)
            raise Dropped
        config = asked["process"]
        user = base64.b64decode(headers.get("authorization", "Basic ").split()[1]).decode().partition(":")[0]
        command = " ".join(["exec bash", *map(_quoted, config["args"])])
        cwd = config.get("cwd")
        if cwd and (await sandbox.machine.exec(f"test -d {_quoted(cwd)}", 30)).exit_code:
            self._reply(writer, 400, {"code": "invalid_argument", "message": f"cwd '{cwd}' does not exist"})
            return
        deadline = int(headers.get("connect-timeout-ms") or 3_600_000) / 1000
        pid = next(self._pids)
        envs = {**sandbox.body.get("envVars", {}), **config.get("envs", {})}
        task = asyncio.create_task(sandbox.machine.exec(command, deadline, env=envs, cwd=cwd or "/root", user=user))
        sandbox.processes[pid] = task
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(sandbox, pid, task))
        if fault == "drop_after_running":
            raise Dropped
        if fault == "503_after_running":
            self._reply(writer, 503, {"code": "unavailable", "message": "not now"})
            return
        if fault == "stall_after_running":
            await asyncio.sleep(self.stall_s)
            raise Dropped
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self._frame(writer, {"event": {"start": {"pid": pid}}})
        if fault == "drop_after_start":
            raise Dropped
        try:
            result = await asyncio.shield(task)
        except (asyncio.CancelledError, InfrastructureError):
            if not task.done():
                raise
            raise Dropped from None
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
            data = text.encode()
            if fault == "drop_mid_stream":
                data = data[: len(data) // 2]
            if data:
                await self._frame(writer, {"event": {"data": {name: base64.b64encode(data).decode()}}})
        if fault in ("drop_mid_stream", "drop_before_end"):
            raise Dropped
        if result.exit_code is None:
            await self._frame(writer, {"error": {"code": "deadline_exceeded", "message": "deadline"}}, 2)
        else:
            end = {"exited": True, "exitCode": result.exit_code, "status": f"exit status {result.exit_code}"}
            await self._frame(writer, {"event": {"end": end}})
            await self._frame(writer, {}, 2)
        writer.write(b"0\r\n\r\n")

    def _ended(self, sandbox: Sandbox, pid: int, task: asyncio.Task) -> None:
        sandbox.processes.pop(pid, None)
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a sandbox that was killed: nobody may be left to hear of it

    @staticmethod
    async def _frame(writer, message: dict, flag: int = 0) -> None:
        data = json.dumps(message).encode()
        frame = struct.pack(">BI", flag, len(data)) + data
        writer.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
        await writer.drain()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@asynccontextmanager
async def peer():
    """A running peer, with the SDK's environment pointing at it."""
    served = Peer()
    await served.listen()
    url = f"http://127.0.0.1:{served.port}"
    wanted = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": "e2b_" + "0" * 40}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield served
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        with suppress(asyncio.CancelledError):
            await served.stop()
