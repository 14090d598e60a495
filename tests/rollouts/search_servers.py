"""Loopback servers that misbehave, for the tests of search: each path is a function that gets the request's handler."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """`Server({path: function(handler)})`; a path that is missing is 404. `requests` are (method, path, body)."""

    def __init__(self, paths):
        self.paths, self.requests, self.headers, self.connections = paths, [], [], 0
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                outer.connections += 1
                self.over = outer.over
                super().setup()

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append((self.command, self.path, body))
                outer.headers.append(dict(self.headers))
                page = outer.paths.get(self.path.partition("?")[0], lambda handler: send(handler, b"no", status=404))
                with contextlib.suppress(OSError):
                    page(self)

            do_GET = do_POST = answer

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def send(handler, body, status=200, **headers):
    """Header names are written with underscores."""
    raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {"Content_Length": str(len(raw)), "Content_Type": "text/html", **headers}.items():
        if value is not None:
            handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(raw)


def page(body, **headers):
    return lambda handler: send(handler, body, **headers)


def redirect(to, status=302):
    return lambda handler: send(handler, b"", status=status, Location=to)


def stall(handler):
    """Accepts, and says nothing until the test is over."""
    handler.over.wait(30)


def in_turn(*pages):
    """Each request gets the next page; the last one repeats."""
    left = list(pages)
    return lambda handler: (left.pop(0) if len(left) > 1 else left[0])(handler)
