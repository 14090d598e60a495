"""Judge answers on disk: one small file per request, so that a repeated judgement costs nothing."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError


class DiskCache:
    """Maps a request (JSON data) to the server's text. Safe for many processes: files appear whole or not at all."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the judge's cache folder {self.folder} cannot be made: {error}") from error

    def _path(self, request: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.json"

    def get(self, request: Mapping[str, Any]) -> str | None:
        """The stored text; None if there is none, also when the file is damaged (it is then written anew)."""
        try:
            stored = json.loads(self._path(request).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("request") != request or not isinstance(stored.get("text"), str):
            return None
        return stored["text"]

    def put(self, request: Mapping[str, Any], text: str) -> None:
        path = self._path(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"request": request, "text": text}, file)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
