"""The judge of the tiny run: a rule behind the real client (`judge: rule_server`).

A server on the loopback speaks OpenAI's chat completions and answers each request by the rule judge: 1 if the
candidate's final answer is the reference. So a tiny run goes the whole way of a real one, prompt, HTTP and verdict,
without a model. The server starts with the first judge of a process and ends with the process.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rufus_plugins.rewards.judges.openai_compatible import OpenAICompatibleJudge
from rufus_plugins.rewards.judges.rule import RuleJudge

_BLOCK = r"<{name}-(?P<mark>[0-9a-f]+)>\n(?P<text>.*?)\n</{name}-(?P=mark)>"
_MOST_BYTES = 4 << 20


@dataclass
class RuleServerJudge(OpenAICompatibleJudge):
    """The real client before a server of this process that judges by rule; no model."""

    base_url: str = ""
    """"": the server of this process, started if there is none."""
    model: str = "rule"

    def __post_init__(self) -> None:
        self.base_url = self.base_url or address()
        super().__post_init__()


@functools.cache
def address() -> str:
    """Up to and with /v1. Starts the server of this process at the first call."""
    server = _Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, name="rufus-rule-server", daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def verdict(messages: list[dict[str, Any]]) -> float:
    """The rule's score of a judge's prompt (rewards/judges/layout.py). Raises `ValueError` for another prompt."""
    text = messages[-1]["content"]
    found = {name: re.search(_BLOCK.format(name=name), text, re.DOTALL) for name in ("reference", "candidate")}
    if not all(found.values()):
        raise ValueError("the prompt has no reference or no candidate")
    reference, candidate = (found[name]["text"] for name in ("reference", "candidate"))
    return asyncio.run(RuleJudge()("", candidate, reference)).value


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 <= size <= _MOST_BYTES:
                raise ValueError("too long")
            body = json.loads(self.rfile.read(size))
            score = verdict(body["messages"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            self.close_connection = True
            return self._send(400, {"error": {"message": str(error)}})
        message = {"role": "assistant", "content": json.dumps({"reason": "by rule", "score": score})}
        self._send(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        raw = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        """Nothing: a line per request would bury the run's log."""
