"""Generated data, pinned: made once, known by the digests of its files, and never made again under a trained stage.

`data/<stage>.json` is written when the folder `data/<stage>` is whole; without it the folder is half made. Files that
appear later, such as the tokens that SFT keeps, are not part of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rufus_plugins.recipes.chains.lineage import FORMAT, digest_of, digest_of_json, read_json, write_json


def pin(folder: Path) -> None:
    files = {name: _seen(folder / name) for name in _files(folder)}
    write_json(_manifest(folder), {"format": FORMAT, "files": files})


def pinned(folder: Path) -> bool:
    """Whether the folder is whole; whether it is unchanged says `changes`."""
    return folder.is_dir() and _manifest(folder).is_file()


def changes(folder: Path) -> list[str]:
    """Files that are not as they were made."""
    return [name for name, seen in _told(folder).items() if _now(folder, name, seen) != seen["sha256"]]


def digest(folder: Path) -> str:
    """Of names and contents of all pinned files, as they are now."""
    return digest_of_json({name: _now(folder, name, seen) for name, seen in _told(folder).items()})


def _manifest(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _told(folder: Path) -> dict[str, Any]:
    return (read_json(_manifest(folder)) or {}).get("files", {})


def _files(folder: Path) -> list[str]:
    """Hidden ones are caches."""
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))


def _seen(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"sha256": digest_of(file), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _now(folder: Path, name: str, seen: dict[str, Any]) -> str:
    """A file that kept size and time kept its content."""
    file = folder / name
    try:
        stat = file.stat()
    except FileNotFoundError:
        return "(removed)"
    same = (stat.st_size, stat.st_mtime_ns) == (seen["size"], seen["mtime_ns"])
    return seen["sha256"] if same else digest_of(file)
