"""verl's metrics while they are written: `metrics/*.jsonl`, a file per attempt, the later one wins for a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Metrics:
    """Reads what was appended since the last look, so that a long run costs no more per look than a short one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.steps: dict[int, dict[str, Any]] = {}
        """step -> metrics."""
        self._read: dict[Path, int] = {}

    def look(self) -> dict[int, dict[str, Any]]:
        for file in sorted(self.folder.glob("*.jsonl")):
            at = self._read.get(file, 0)
            with file.open("rb") as stream:
                stream.seek(at)
                found = stream.read()
            whole = found[: found.rfind(b"\n") + 1]  # the last line may be half written
            self._read[file] = at + len(whole)
            for line in whole.splitlines():
                self._take(line)
        return self.steps

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            step, data = int(entry["step"]), entry["data"]
        except (ValueError, TypeError, KeyError):  # a line that a kill cut off, and the next attempt's file goes on
            return
        if isinstance(data, Mapping):
            self.steps.setdefault(step, {}).update(data)


def next_file(folder: Path) -> Path:
    """Of the next attempt; its name sorts after those before."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{len(list(folder.glob('*.jsonl'))):04d}.jsonl"
