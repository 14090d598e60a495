"""How an MCP server's command is started: below mcp_stdio.py, as the user or, for a record's own, in bubblewrap."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, SandboxUnavailable

_JAIL_MEMORY = 2 << 30
"""Address space of each process in it. Ours."""


def trusted(command: Sequence[str], cwd: str | None, env: Mapping[str, str]) -> list[str]:
    program = command[0]
    found = shutil.which(os.path.join(cwd or "", program) if os.sep in program else program, path=env.get("PATH"))
    if found is None:
        raise ConfigError(f"the MCP server's program {program!r} is not there; command: {' '.join(command)}")
    return [os.path.abspath(found), *command[1:]]


def as_file(told: Mapping[str, Any], stack: contextlib.AsyncExitStack) -> str:
    """For one reader, which removes it."""
    descriptor, path = tempfile.mkstemp(prefix="rufus-mcp-", suffix=".json")
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(told, file)
    stack.callback(Path(path).unlink, missing_ok=True)
    return path


def sandbox(
    command: list[str], files: dict[str, str], env: dict[str, str], stack: contextlib.AsyncExitStack
) -> dict[str, Any]:
    """bubblewrap around a record's own server: no network, no file of this machine but Python, 64 MiB of its own."""
    from rufus_plugins.rollouts.sandboxes import launch

    if not shutil.which("bwrap"):
        raise SandboxUnavailable("a record's own MCP server runs in bubblewrap only, and bwrap is not installed")
    inside, shown = launch.python_paths()
    root = os.getuid() == 0
    if command[0] in ("python", "python3"):
        command = [launch.interpreter(), *command[1:]]
    own = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": launch.SCRATCH,
        "PYTHONPATH": os.pathsep.join(inside),
        **env,
    }
    told = {
        "command": command,
        "files": files,
        "env": own,
        "path": list(inside),
        "uid": launch.free_uid(os.getpid()) if root else None,
        "tasks_of_user": 0 if root else launch.tasks_of_user() + 256,
        "memory_bytes": _JAIL_MEMORY,
    }
    config = as_file(told, stack)
    script = str(Path(__file__).with_name("mcp_stdio.py").resolve())
    wrap = launch.bubblewrap(shown, own, root)
    return {
        "command": [
            *wrap[:-4],  # before --chdir and the last --remount-ro
            *["--ro-bind", config, "/etc/mcp.json"],
            *wrap[-4:],
            *[launch.interpreter(), "-I", "-S", script, "--inside", "/etc/mcp.json"],
        ],
        "env": {"PATH": own["PATH"]},
        "cwd": "/",
    }
