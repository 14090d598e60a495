"""Tables to construct tasks from: their description (YAML), their rows (DuckDB), and what their columns mean.

A description names, per table: `entity` (the column whose values name the rows), `noun` (singular, plural), `columns`
and `formulas` as in built_in.yaml, and where the rows are: `file` (Parquet, CSV, JSON), `query` (SQL over the other
tables and the `files` of the description), or nothing (the built-in set, or a table of `database`, a DuckDB or SQLite
file).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.construct import quantities

MOST_ROWS = 1_000_000
"""They are kept in memory, some 500 bytes each. Ours."""


@dataclass(frozen=True)
class Column:
    name: str
    words: str
    unit: str | None = None
    """Of a number; "" is a plain number, None a text."""
    filter: str = ""
    """How a condition `= value` on a text is worded."""
    values: bool = False
    """A number that names a class (a period of the periodic table): conditions are `=` only."""
    rank: bool = True
    """Whether rows may be selected by its extreme value."""
    least: str = "smallest"
    most: str = "largest"

    @property
    def number(self) -> bool:
        return self.unit is not None and not self.values


@dataclass(frozen=True)
class Formula:
    """A derived quantity of one row."""

    name: str
    words: str
    of: str
    units: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    name: str
    entity: str
    noun: tuple[str, str]
    columns: Mapping[str, Column]
    formulas: Mapping[str, Formula]
    aliases: tuple[str, ...] = ()
    """Columns with other names of the entity: a question must not hold them either."""
    rows: tuple[Mapping[str, Any], ...] = ()
    """Every row, for checks that do not trust SQL. NaN and infinite numbers are None."""


@dataclass
class TableSet:
    """Tables in an open DuckDB connection, one view per table."""

    tables: dict[str, Table]
    connection: Any
    blocked: tuple[str, ...] = ()
    """Where the facts stand side by side: entries of `blocked` in `environment=search`."""
    files: tuple[str, ...] = field(default=())


def open_tables(description: str | Path | None = None, seed: int = 0) -> TableSet:
    """The tables of a description, None being the built-in set. Raises `ConfigError` that names table and column."""
    import yaml

    try:
        import duckdb
    except ImportError as error:
        raise ConfigError("tables need DuckDB: pip install 'rufus-plugins[construct]'") from error
    from rufus_plugins.recipes.construct import built_in

    path = Path(description) if description else built_in.DESCRIPTION
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is no description of tables ({type(error).__name__}: {error}).") from error
    if not isinstance(raw, Mapping) or not isinstance(raw.get("tables"), Mapping) or not raw["tables"]:
        raise ConfigError(f"{path} has no `tables`: see recipes/construct/built_in.yaml for a whole one.")
    connection = duckdb.connect()
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET threads = 1")  # many small queries: threads cost more than they give
    files = [str(path)]
    if not description:
        built_in.fill(connection, seed)
    _attach(connection, raw, path, files)
    # what follows reads no file and no network: rows come from the tables that were made above
    made = {}
    for name, entry in raw["tables"].items():
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{path}: table {name} is described by {type(entry).__name__}, not by a mapping.")
        made[str(name)] = _table(connection, path, str(name), entry)
    blocked = tuple(str(b) for b in raw.get("blocked") or ())
    return TableSet(made, connection, blocked, tuple(files))


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _attach(connection: Any, raw: Mapping[str, Any], path: Path, files: list[str]) -> None:
    import duckdb

    readers = {".parquet": "read_parquet", ".csv": "read_csv", ".json": "read_json", ".jsonl": "read_json"}
    named = [("database", raw["database"])] if raw.get("database") else []
    named += [(str(n), e["file"]) for n, e in raw["tables"].items() if isinstance(e, Mapping) and e.get("file")]
    named += [(str(n), f) for n, f in (raw.get("files") or {}).items()]
    for name, given in named:
        file = (path.parent / str(given)).resolve()
        if not file.is_file():
            raise ConfigError(f"{path}: {name} is to be read from {given}, which is no file beside the description.")
        files.append(str(file))
        shown = str(file).replace("'", "''")
        try:
            if name == "database":
                if file.read_bytes()[:16] == b"SQLite format 3\0":
                    _copy_sqlite(connection, file)
                else:
                    connection.execute(f"ATTACH '{shown}' AS given (READ_ONLY)")
                    connection.execute("USE given")
                    connection.execute("USE memory")
                    for (table,) in connection.execute(
                        "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'given'"
                    ).fetchall():
                        connection.execute(f"CREATE VIEW {quoted(table)} AS SELECT * FROM given.{quoted(table)}")
            elif file.suffix not in readers:
                raise ConfigError(f"{path}: {given} is none of {', '.join(readers)}.")
            else:
                connection.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM {readers[file.suffix]}('{shown}')")
        except duckdb.Error as error:
            raise ConfigError(f"{path}: {given} cannot be read: {_first_line(error)}") from error


def _copy_sqlite(connection: Any, file: Path) -> None:
    """SQLite's tables, by Python's own reader: DuckDB's would have to be downloaded."""
    import sqlite3

    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as source:
            names = [n for (n,) in source.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
            for name in names:
                cursor = source.execute(f"SELECT * FROM {quoted(name)}")
                columns = [c[0] for c in cursor.description]
                rows = cursor.fetchall()
                kinds = [_kind([row[i] for row in rows]) for i in range(len(columns))]
                spec = ", ".join(f"{quoted(c)} {k}" for c, k in zip(columns, kinds, strict=True))
                connection.execute(f"CREATE TABLE {quoted(name)} ({spec})")
                if rows:
                    marks = ", ".join("?" * len(columns))
                    fit = [
                        [v if v is None or k == "DOUBLE" else str(v) for v, k in zip(r, kinds, strict=True)]
                        for r in rows
                    ]
                    connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", fit)
    except sqlite3.Error as error:
        raise ConfigError(f"{file} is no whole SQLite database: {error}") from error


def _kind(values: list[Any]) -> str:
    return "DOUBLE" if all(v is None or isinstance(v, (int, float)) for v in values) else "VARCHAR"


def _table(connection: Any, path: Path, name: str, entry: Mapping[str, Any]) -> Table:
    import duckdb

    where = f"{path}: table {name}"
    entity, noun = entry.get("entity"), entry.get("noun")
    if not isinstance(entity, str) or not isinstance(noun, list) or len(noun) != 2:
        raise ConfigError(f"{where} needs `entity` (a column) and `noun` ([singular, plural]).")
    columns, formulas = {}, {}
    try:
        for column, given in (entry.get("columns") or {}).items():
            columns[str(column)] = Column(str(column), **given)
        for formula, given in (entry.get("formulas") or {}).items():
            units = tuple(map(str, given["units"]))
            formulas[str(formula)] = Formula(str(formula), given["words"], str(given["of"]), units)
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{where}: a column or formula is described wrongly: {error}") from error
    source = f"({str(entry['query']).strip().rstrip(';')})" if entry.get("query") else quoted(name)
    aliases = tuple(str(a) for a in entry.get("aliases") or () if str(a) not in columns)
    wanted = ", ".join(quoted(c) for c in (entity, *columns, *aliases))
    view = quoted(f"task_{name}")
    try:
        numbers = [quoted(c) for c, column in columns.items() if column.number]
        # NaN and infinity are no values: NULL from here on
        cleaned = ", ".join(
            f"CASE WHEN isfinite(CAST({c} AS DOUBLE)) THEN CAST({c} AS DOUBLE) END AS {c}" if c in numbers else c
            for c in map(quoted, (entity, *columns, *aliases))
        )
        connection.execute(f"CREATE TABLE {view} AS SELECT {cleaned} FROM (SELECT {wanted} FROM {source} AS t) AS u")
        count = connection.execute(f"SELECT count(*) FROM {view}").fetchone()[0]
        if count > MOST_ROWS:
            raise ConfigError(f"{where} has {count:,} rows; at most {MOST_ROWS:,}. Narrow it down with a `query`.")
        rows = connection.execute(f"SELECT * FROM {view} ORDER BY ALL").fetchall()
    except duckdb.Error as error:
        raise ConfigError(f"{where} cannot be read: {_first_line(error)}") from error
    keys = (entity, *columns, *aliases)
    made = tuple({k: _plain(v) for k, v in zip(keys, row, strict=True)} for row in rows)
    table = Table(name, entity, (str(noun[0]), str(noun[1])), columns, formulas, aliases, made)
    for formula in formulas.values():
        quantities.check(table, formula, where)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
