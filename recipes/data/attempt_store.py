"""Attempts on disk: answers and their scores, one SQLite file, whole after a kill at any moment.

An answer is kept under everything that decided it (prompt, model, sampling, environment, its number), a score under its
answer, the reward and the ground truth. A finished attempt is on disk before it counts as done; those that end while
one commit runs share the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError


def key_of(**parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class AttemptStore:
    def __init__(self, path: Path, writable: bool = True):
        self.path = path
        self._pending: list[tuple[str, str, str]] = []
        self._turn: asyncio.Lock | None = None
        try:
            if writable:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = sqlite3.connect(path, check_same_thread=False, timeout=60)
                self._file.execute("PRAGMA journal_mode=WAL")
                self._file.execute("PRAGMA synchronous=FULL")
                for table in ("answers", "scores"):
                    self._file.execute(f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, body TEXT) STRICT")
                self._file.commit()
            else:
                self._file = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False, timeout=60)
                self._file.execute("SELECT count(*) FROM answers").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"--attempts {path} cannot be used as a file of attempts: {error}") from error

    def get(self, table: str, key: str) -> dict[str, Any] | None:
        try:
            row = self._file.execute(f"SELECT body FROM {table} WHERE key = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])
        except (sqlite3.Error, ValueError) as error:
            raise ConfigError(
                f"--attempts {self.path} is damaged ({error}): mend it with sqlite3's .recover, or give another "
                f"--attempts-file and make the attempts anew"
            ) from error

    async def put(self, *rows: tuple[str, str, Mapping[str, Any]]) -> None:
        """Writes (table, key, body), all or none. Returns when they are on disk. What is there already stays."""
        self._turn = self._turn or asyncio.Lock()
        self._pending += [(table, key, json.dumps(body, ensure_ascii=True, default=str)) for table, key, body in rows]
        async with self._turn:
            if self._pending:  # else the commit before this one took it along
                rows, self._pending = self._pending, []
                await asyncio.to_thread(self._write, rows)

    def _write(self, rows: list[tuple[str, str, str]]) -> None:
        try:
            with self._file:
                for table, key, body in rows:
                    self._file.execute(f"INSERT OR IGNORE INTO {table} VALUES (?, ?)", (key, body))
        except sqlite3.Error as error:
            raise ConfigError(f"--attempts {self.path} cannot be written: {error}") from error

    def close(self) -> None:
        self._file.close()
