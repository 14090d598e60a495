"""Which files of a build context `.dockerignore` keeps out of COPY and ADD, as Docker reads it.

One pattern a line, relative to the context: `*`, `?` and `[...]` stay within a name, `**` crosses folders, `!` takes a
file back in, the last pattern that matches decides, and what matches a folder matches all below it.
(docs.docker.com, build context, ".dockerignore files")
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path


def ignored(context: Path) -> Callable[[Path], bool]:
    """Whether a path below `context` is left out. `Dockerfile.dockerignore` stands in for `.dockerignore`."""
    rules: list[tuple[re.Pattern[str], bool]] = []
    for name in ("Dockerfile.dockerignore", ".dockerignore"):
        if (context / name).is_file():
            for line in (context / name).read_text("utf-8-sig", "replace").splitlines():
                line = line.strip()
                if line and not line.startswith("#"):
                    keeps = line.startswith("!")
                    pattern = posixpath.normpath(line.removeprefix("!").strip().lstrip("/") or ".")
                    rules.append((_pattern(pattern), not keeps))
            break

    def left_out(path: Path) -> bool:
        relative = path.relative_to(context).as_posix()
        out = False
        for pattern, leaves in rules:
            if pattern.fullmatch(relative):
                out = leaves
        return out

    return left_out


def _pattern(text: str) -> re.Pattern[str]:
    found, at = "", 0
    while at < len(text):
        if text.startswith("**/", at):
            found, at = found + r"(?:.*/)?", at + 3
        elif text.startswith("**", at):
            found, at = found + ".*", at + 2
        elif text[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif text[at] == "?":
            found, at = found + "[^/]", at + 1
        elif text[at] == "[" and (end := text.find("]", at + 2)) > 0:
            inner = text[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            found, at = found + f"[{inner}]", end + 1
        elif text[at] == "\\" and at + 1 < len(text):
            found, at = found + re.escape(text[at + 1]), at + 2
        else:
            found, at = found + re.escape(text[at]), at + 1
    try:
        return re.compile(f"{found}(?:/.*)?", re.DOTALL)
    except re.error:  # a range that is none matches nothing
        return re.compile(r"(?!)")
