"""A log of what was asked of models, what they said, and what became of it: JSONL, one line per step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError


class AuditLog:
    """Appends whole lines; a line that a kill cut off is ended first. Steps repeated after a kill stand there twice."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
        if self._file.tell():
            with self.path.open("rb") as written:
                written.seek(-1, os.SEEK_END)
                if written.read(1) != b"\n":
                    self._file.write(b"\n")

    def write(self, step: str, **what: Any) -> None:
        line = json.dumps({"step": step, **what}, ensure_ascii=True, default=str)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()
