"""A real OpenAI-compatible server on the loopback, whose model answers by a rule of the test."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Loopback:
    """`rule(body)` returns a text, (status, bytes), or None to hang up."""

    def __init__(self, rule):
        self.rule, self.bodies = rule, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                said = outer.rule(body)
                if said is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, raw = said if isinstance(said, tuple) else (200, completion(said))
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def completion(text, finish="stop"):
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish}]}).encode()


@pytest.fixture
def serve():
    """`serve(rule)` starts a server; all are stopped at the end of the test."""
    started = []

    def start(rule):
        started.append(Loopback(rule))
        return started[-1]

    yield start
    for server in started:
        server.close()
