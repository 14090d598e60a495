"""AgentWorldModel's JSONL, read offline (the data card of Snowflake/AgentWorldModel-1K; arXiv 2602.10090).

A folder holds `gen_db.jsonl` (tables), `gen_sample.jsonl` (rows), `gen_envs.jsonl` (one FastAPI + SQLAlchemy file per
world), `gen_tasks.jsonl` and `gen_verifier.pure_code.jsonl`; other files are not needed. Lines are joined by the
scenario's name in lower case, with every run of other characters than `a-z0-9_` as one `_`.

The rows may be written by expressions (`datetime('now')`), so a world's database is made once and kept under the hash
of what makes it; every episode gets a copy.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.types import Termination

TABLES, ROWS, CODE = "gen_db.jsonl", "gen_sample.jsonl", "gen_envs.jsonl"
TASKS, VERIFIERS = "gen_tasks.jsonl", "gen_verifier.pure_code.jsonl"
_BUILD_S = 60.0
_MOST_MB = 28
"""A larger database is more than the reward's sandbox takes (rewards/post_state.py)."""


def scenario_key(name: str) -> str:
    return re.sub(r"_+", "_", re.sub(r"[^a-z0-9_]", "_", name.lower())).strip("_")


@dataclass(frozen=True)
class World:
    """One scenario: code, and what makes its database."""

    scenario: str
    code: str
    ddl: Sequence[str]
    inserts: Sequence[str]

    @functools.cached_property
    def database_key(self) -> str:
        return hashlib.sha256(json.dumps([list(self.ddl), list(self.inserts)]).encode("utf-8", "replace")).hexdigest()

    @functools.cached_property
    def key(self) -> str:
        return hashlib.sha256(f"{self.database_key}\0{self.code}".encode("utf-8", "replace")).hexdigest()


class Library:
    """The worlds of a folder. Only where each line begins is kept in memory."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        missing = [name for name in (TABLES, ROWS, CODE) if not (self.folder / name).is_file()]
        if missing:
            raise ConfigError(
                f"{self.folder} is no folder of AgentWorldModel's JSONL: {', '.join(missing)} is missing. It needs "
                f"{TABLES}, {ROWS} and {CODE}; for its tasks also {TASKS} and {VERIFIERS}"
            )
        self._index: dict[str, dict[str, list[int]]] = {}

    @property
    def scenarios(self) -> list[str]:
        return list(self._lines_of(CODE))

    def world(self, name: str) -> World:
        """Raises `DataError` for a scenario that is not there or lacks a part."""
        scenario = scenario_key(name)
        code = self._one(CODE, scenario).get("full_code")
        schema = self._one(TABLES, scenario).get("db_schema")
        sample = self._one(ROWS, scenario).get("sample_data")
        try:
            tables = schema["tables"]
            ddl = [str(table["ddl"]) for table in tables]
            ddl += [str(index) for table in tables for index in table.get("indexes") or ()]
            inserts = [str(one) for table in sample["tables"] for one in table.get("insert_statements") or ()]
            if not isinstance(code, str) or not code.strip():
                raise TypeError("full_code is empty")
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self.folder}: the world {name!r} cannot be read: {type(error).__name__}: {error}"
            ) from None
        return World(scenario, code, ddl, inserts)

    def tasks(self, name: str) -> list[str]:
        return [str(task) for task in self._one(TASKS, scenario_key(name)).get("tasks") or ()]

    def verifier(self, name: str, index: int) -> str:
        """Source of the task's verifier. Raises `DataError` where there is none."""
        for line in self._all(VERIFIERS, scenario_key(name)):
            if line.get("task_idx") == index:
                code = (line.get("verification") or {}).get("code")
                if isinstance(code, str) and code.strip():
                    return code
        raise DataError(f"{self.folder / VERIFIERS}: no verifier of task {index} of {name!r}")

    def _one(self, file: str, scenario: str) -> Mapping[str, Any]:
        for line in self._all(file, scenario):
            return line
        close = ", ".join(list(self._lines_of(file))[:20]) or "none"
        raise DataError(f"{self.folder / file}: no scenario {scenario!r}; there are {close}")

    def _all(self, file: str, scenario: str) -> Iterator[Mapping[str, Any]]:
        lines = self._lines_of(file).get(scenario, ())
        with open(self.folder / file, "rb") as stream:
            for at in lines:
                stream.seek(at)
                yield json.loads(stream.readline())

    def _lines_of(self, file: str) -> dict[str, list[int]]:
        if file not in self._index:
            found: dict[str, list[int]] = {}
            at = 0
            try:
                with open(self.folder / file, "rb") as stream:
                    for number, line in enumerate(stream, 1):
                        if line.strip():
                            try:
                                name = json.loads(line)["scenario"]
                                found.setdefault(scenario_key(name), []).append(at)
                            except (ValueError, KeyError, TypeError, AttributeError) as error:
                                raise DataError(
                                    f"{self.folder / file}, line {number}: no record with a scenario ({error})"
                                ) from None
                        at += len(line)
            except OSError as error:
                raise DataError(f"{self.folder / file} cannot be read: {error}") from None
            self._index[file] = found
        return self._index[file]


@functools.lru_cache(maxsize=16)
def library(folder: str) -> Library:
    """`builtin` is the folder of our own worlds."""
    if folder == "builtin":
        from rufus_plugins.recipes.general_agent import worlds

        return Library(Path(worlds.__file__).parent)
    return Library(folder)


_making: dict[tuple[int, Path], asyncio.Task] = {}


async def initial_database(world: World, cache: Path) -> Path:
    """The file of the world's initial state, made at first use (in the sandbox). Raises `DataError`."""
    path = cache / f"{world.database_key}.db"
    if not path.exists():  # who comes while it is made waits for it
        key = (id(asyncio.get_running_loop()), path)
        if key not in _making:
            _making[key] = asyncio.ensure_future(_make(world, path))
            _making[key].add_done_callback(lambda done: (_making.pop(key), done.cancelled() or done.exception()))
        await asyncio.shield(_making[key])
    return path


async def _make(world: World, path: Path) -> None:
    from rufus_plugins.rollouts.sandboxes.zygote import Limits, shared

    pool = shared([f"{__name__}:build"])
    statements = {"ddl": list(world.ddl), "inserts": list(world.inserts)}
    limits = Limits(wall_s=_BUILD_S, memory_mb=512, result_kb=16384)
    result = await pool.call(f"{__name__}:build", statements, limits)
    if not result.ok:
        why = result.message if result.error == "ValueError" else f"{result.error}: {result.message}"
        raise DataError(f"the database of the world {world.scenario!r} cannot be made: {why}")
    data = zlib.decompress(base64.b64decode(result.value))
    if len(data) > _MOST_MB << 20:
        raise DataError(f"the database of the world {world.scenario!r} has more than {_MOST_MB} MiB")
    partial = path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        os.chmod(partial, 0o444)
        os.link(partial, path)  # the first one stays: later ones may have other times in their rows
    except FileExistsError:
        pass
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error}", Termination.ENVIRONMENT_LOST) from error
    finally:
        partial.unlink(missing_ok=True)


def build(statements: Mapping[str, Sequence[str]]) -> str:
    """Runs in the sandbox. The SQLite file as base64 of its zlib form; ValueError names the statement that fails."""
    connection = sqlite3.connect(":memory:")
    for kind, name in (("ddl", "table or index"), ("inserts", "row")):
        for number, statement in enumerate(statements[kind], 1):
            try:
                connection.executescript(statement.rstrip().rstrip(";") + ";")
            except sqlite3.Error as error:
                raise ValueError(f"{name} {number}: {error}; in {statement.strip()[:300]!r}") from None
    connection.commit()
    connection.execute("VACUUM")
    return base64.b64encode(zlib.compress(connection.serialize(), 1)).decode()
