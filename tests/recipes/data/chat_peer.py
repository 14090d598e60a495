"""A loopback server that speaks OpenAI's chat completions, answers by prompt and seed alone, and can misbehave."""

import contextlib
import hashlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def chance(*parts):
    """A number in [0, 1) that depends on the parts alone."""
    return int(hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8], 16) / 2**32


def solver(body):
    """The prompt says how hard it is: `... [p=0.25] answer 42`: right with that chance over the seeds."""
    text = body["messages"][-1]["content"]
    p, gold = float(text.partition("[p=")[2].partition("]")[0]), text.rpartition(" ")[2]
    right = chance(text, body["seed"]) < p
    return {"content": f"<think>Hm.</think>So \\boxed{{{gold if right else '-1'}}}."}


class ChatPeer:
    """`answer(body)` gives a message, a dict with `choices`, or a number: that status. `misbehave(handler, count)` may
    take a request over by returning True."""

    def __init__(self, answer=solver, misbehave=None, delay_s=0.0):
        self.requests, lock, outer = [], threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.requests.append(body)
                    count = len(outer.requests)
                with contextlib.suppress(OSError):
                    if misbehave and misbehave(self, count):
                        return
                    time.sleep(delay_s)
                    made = answer(body)
                    if isinstance(made, int):
                        return self.send(made, b'{"error": "the context length of 10 tokens is exceeded"}')
                    if "choices" not in made:
                        ended = made.pop("finish_reason", "stop")
                        made = {"choices": [{"message": {"role": "assistant", **made}, "finish_reason": ended}]}
                    self.send(200, json.dumps(made | {"usage": {"completion_tokens": 7}}).encode())

            def send(self, status, raw):
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def hang_up(self):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
