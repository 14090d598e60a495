"""Runs in the jail: a request as ASGI's scope and messages, and the answer from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


def scope_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """The ASGI scope that uvicorn would make of the request."""
    from urllib.parse import unquote

    raw = request["path"].encode("ascii")
    headers = [(b"host", b"127.0.0.1:8000"), (b"accept", b"application/json")]
    body = request.get("body")
    if body is not None:
        headers += [
            (b"content-type", request.get("type", "application/json").encode("latin-1")),
            (b"content-length", b"%d" % len(body.encode("utf-8", "surrogatepass"))),
        ]
    headers += [(name.lower().encode("latin-1"), value.encode("utf-8")) for name, value in request.get("headers", ())]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request["method"],
        "scheme": "http",
        "path": unquote(request["path"]),
        "raw_path": raw,
        "query_string": request.get("query", "").encode("ascii"),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


def body_of(request: Mapping[str, Any]) -> Callable[[], Any]:
    messages = iter(
        [
            {
                "type": "http.request",
                "body": (request.get("body") or "").encode("utf-8", "surrogatepass"),
                "more_body": False,
            }
        ]
    )

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    return receive


class Answer:
    """ASGI's `send`: keeps the status, and head and tail of the body."""

    def __init__(self, keep: int):
        self.keep = keep
        self.status: int | None = None
        self.kind = ""
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()

    async def __call__(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            for name, value in message.get("headers", ()):
                if bytes(name).lower() == b"content-type":
                    self.kind = bytes(value).decode("latin-1")
        elif message["type"] == "http.response.body":
            chunk = message.get("body", b"")
            self.size += len(chunk)
            room = 2 * self.keep - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[max(room, len(chunk) - 2 * self.keep) :]
            if len(self._tail) > 4 * self.keep:
                del self._tail[: -2 * self.keep]

    def text(self) -> str:
        """All of it, or twice `keep` bytes of either end with a note between: the caller cuts to characters."""
        if self.kind and not re.match(r"text/|application/(.*\+)?(json|xml)|.*charset=", self.kind):
            return f"[{self.size} bytes of {self.kind}, not shown]" if self.size else ""
        left = self.size - len(self._head) - len(self._tail)
        if left <= 0:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        tail = self._tail[-2 * self.keep :]
        left = self.size - len(self._head) - len(tail)
        ends = [bytes(part).decode("utf-8", "replace") for part in (self._head, tail)]
        return f"{ends[0]}\n[... {left} bytes left out ...]\n{ends[1]}"
