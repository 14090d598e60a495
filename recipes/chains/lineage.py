"""What a run folder keeps about itself: JSON files that are whole or absent, digests, the code's version, events."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rufus_plugins
from rufus_plugins.errors import ConfigError

FORMAT = 1
CODE = ("*.py", "*.yaml", "*.jinja", "*.json")


def write_json(path: Path, content: Any) -> None:
    """The old content or the new one, whenever the machine stops."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file. Raises `ConfigError` for one that is damaged or of another version."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error}). Start over with --fresh, or restore the file.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"{path} was written by another version of rufus-plugins. Start over with --fresh.")
    return found


def digest_of(path: Path) -> str:
    """sha256 of a file, or over names and contents of all files in a folder. Raises `ConfigError`."""
    from rufus_plugins.recipes.evidence.protocol import content_digest

    return content_digest(Path(path))


def digest_of_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


@functools.cache
def code() -> dict[str, Any]:
    """`version` of the package, `git` commit (with `+changes`) if it is a checkout, `digest` over its files."""
    made = hashlib.sha256()
    package = Path(rufus_plugins.__file__).parent
    for room in (package, *(package / name for name in ("rewards", "rollouts", "algos", "recipes"))):
        for pattern in CODE:
            for file in sorted(room.resolve().rglob(pattern)):
                made.update(f"{file.relative_to(room.resolve())}\0".encode() + file.read_bytes())
    return {
        "version": importlib.metadata.version("rufus-plugins"),
        "git": _git(package),
        "digest": made.hexdigest()[:16],
    }


def _git(package: Path) -> str | None:
    top = package.resolve().parent
    if not (top / ".git").exists():
        return None
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(top), *words], capture_output=True, text=True, timeout=20, check=True
            ).stdout
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0].strip() + ("+changes" if said[1].strip() else "")


def event(folder: Path, what: str, stage: str | None = None, detail: str = "") -> None:
    """Appends a line to `events.jsonl`."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "stage": stage, "event": what, "detail": detail}
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new`, a line each, of two nested mappings."""
    found: list[str] = []
    for key in sorted({*old, *new}, key=str):
        name, one, two = f"{prefix}{key}", old.get(key, "(unset)"), new.get(key, "(unset)")
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            found += differences(one, two, f"{name}.")
        elif one != two:
            found.append(f"{name}: {one} -> {two}")
    return found
