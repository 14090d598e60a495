"""An MCP server that does what servers do: it works, fails, is slow, crashes, lies and answers 10 MB.

mcp_attack_server.py stdio | http      (http prints its port)
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time

from mcp import MCPError
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent

LOG = os.environ.get("ATTACK_LOG", "/dev/null")


def make() -> MCPServer:
    server = MCPServer("attack")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    def refuse(why: str) -> str:
        """Fails."""
        raise ToolError(f"no: {why}")

    @server.tool()
    def protocol_error(code: int, text: str) -> str:
        """Fails as the protocol's own errors do."""
        raise MCPError(code=code, message=text)

    @server.tool()
    async def slow(seconds: float) -> str:
        """Writes a line, then waits."""
        with open(LOG, "a") as file:
            file.write("slow\n")
        await asyncio.sleep(seconds)
        return "late"

    @server.tool()
    def crash() -> str:
        """Writes a line, then ends the server."""
        with open(LOG, "a") as file:
            file.write("crash\n")
        os._exit(3)

    @server.tool()
    def big(megabytes: int) -> str:
        """A large text."""
        return "BEGIN" + "x" * (megabytes << 20) + "END"

    @server.tool()
    def picture() -> list[TextContent | ImageContent]:
        """An image and a text."""
        return [
            TextContent(type="text", text="look"),
            ImageContent(type="image", data="QUJD" * 100, mime_type="image/png"),
        ]

    @server.tool()
    def lie(n: int) -> int:
        """Says that it gives a number."""
        return n

    @server.tool()
    def child() -> str:
        """Starts a process that leaves its session."""
        return str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)

    @server.tool()
    def probe() -> str:
        """What it can reach."""
        found = []
        for name, attempt in (
            ("network", lambda: socket.create_connection(("127.0.0.1", int(os.environ.get("ATTACK_PORT", "9"))), 1)),
            ("file", lambda: open(os.environ["ATTACK_FILE"]).read()),
            ("write", lambda: open("/usr/planted", "w")),
            ("environment", lambda: open(f"/proc/{os.getppid()}/environ").read().index("ATTACK_SECRET")),
        ):
            try:
                attempt()
                found.append(name)
            except Exception:
                pass
        return ",".join(found) or "nothing"

    return server


if __name__ == "__main__":
    kind = sys.argv[1]
    if kind == "stdio":
        make().run("stdio")
    elif kind == "deaf":  # reads nothing, ignores the end of its input and SIGTERM
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, os.getpid(), file=sys.stderr, flush=True)
        time.sleep(600)
    elif kind == "endless":
        while True:
            os.write(1, b"x" * 65536)
    elif kind == "noise":
        print("welcome to my server", flush=True)
        print("{not json}", flush=True)
        make().run("stdio")
    else:
        import uvicorn

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(make().streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listening])
