"""Runs in the jail: reads two SQLite databases, applies the verifier or the SQL conditions, describes the change.

Standard input: a line of JSON (`mark`, `sizes`, `verifier` or `sql`, `answer`), then the bytes of both databases.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sqlite3
import sys
import time
from collections import Counter
from typing import Any

_MAX_LINES, _MAX_ROWS, _MAX_VALUE = 60, 20_000, 80


def main() -> None:
    stream = sys.stdin.buffer
    given = json.loads(stream.readline())
    mark, out = given.pop("mark"), os.dup(1)
    for name, size in zip(("before.db", "after.db"), given["sizes"], strict=True):
        with open(name, "wb") as file:
            file.write(stream.read(size))
    said: dict[str, Any] = {}
    try:
        said["diff"] = diff("before.db", "after.db")
    except sqlite3.Error as error:
        said["unreadable"] = str(error)[:300]
    if "sql" in given and "unreadable" not in said:
        said |= _conditions(given["sql"], given["timeout_s"])
    elif "verifier" in given:
        said |= _verified(given["verifier"], given["answer"])
    sys.stdout.flush()
    os.write(out, ("\n" + mark + json.dumps(said)).encode("utf-8", "replace"))
    os._exit(0)


def _verified(source: str, answer: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "verifier"}
    try:
        exec(compile(source, "verifier.py", "exec"), space)
    except BaseException as error:
        return {"broken": f"does not load: {type(error).__name__}: {error}"[:500]}
    named = [v for k, v in space.items() if k.startswith("verify_") and inspect.isfunction(v)]
    if not named:
        return {"broken": "has no function verify_..."}
    take = named[0]
    kinds = [p.kind for p in inspect.signature(take).parameters.values()]
    count = 3 if inspect.Parameter.VAR_POSITIONAL in kinds else sum(k <= k.POSITIONAL_OR_KEYWORD for k in kinds)

    def call(after: str) -> Any:
        return take(*("before.db", after, answer)[: max(2, min(3, count))])

    try:
        value = call("after.db")
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"[:500]
        try:
            call("before.db")
        except BaseException:
            return {"broken": f"raises on the untouched database too: {failure}"}
        return {"passed": False, "failed": f"raised on the final state: {failure}"}
    result = value.get("result") if isinstance(value, dict) else value
    if isinstance(result, bool):
        return {"passed": result}
    if isinstance(result, str):
        return {"passed": result.strip().lower() == "complete", "result": result[:100]}
    return {"broken": f"returned {value!r}"[:300] + "; it must return {'result': 'complete' | 'others'}"}


def _conditions(conditions: list[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
    """What each condition found. `broken`: a query that is none, on any database.

    The model wrote the final database (a view of it may have no end), so a query that fails there only, or takes half
    of the time, does not hold. A table or column that both databases lack may be what the task asks for.
    """
    final, untouched = _opened("after.db", timeout_s / 2), _opened("before.db", timeout_s / 4)
    gone = _names(final, "before") - _names(final, "main")
    held = []
    for condition in conditions:
        query = condition["query"]
        wanted = [tuple(row) for row in condition["rows"]] if "rows" in condition else None
        final.set_authorizer(_no_fall_through(query, gone))
        most = 1000 if wanted is None else len(wanted) + 1000
        try:
            rows = final.execute(query).fetchmany(most)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            problem = str(error)[:300]
            if not problem.startswith(("no such table", "no such column")):
                try:
                    untouched.execute(query).fetchmany(most)
                except (sqlite3.Error, sqlite3.Warning, ValueError) as other:
                    return {"broken": f"fails on the untouched database too: {query[:200]!r}: {str(other)[:300]}"}
            held.append({"query": query, "error": problem})
            continue
        if wanted is None:
            value = rows[0][0] if rows and rows[0] else None
            same = value == condition["equals"] if "equals" in condition else bool(value)
        else:  # 7 equals 7.0, and true is 1, in any order too
            same = rows == wanted if condition.get("ordered") else Counter(rows) == Counter(wanted)
        held.append({"query": query, "passed": same, "found": json.dumps(rows, default=str)[:300]})
    return {"conditions": held}


def _opened(name: str, seconds: float) -> sqlite3.Connection:
    """The database as `main`, the initial one as `before`, nothing to be written; queries end `seconds` from now on."""
    connection = sqlite3.connect(f"file:{name}?mode=ro", uri=True)
    connection.execute("ATTACH DATABASE 'file:before.db?mode=ro' AS before")
    connection.execute("PRAGMA query_only = ON")
    end = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    return connection


def _names(connection: sqlite3.Connection, schema: str) -> set[str]:
    return {row[0].lower() for row in connection.execute(f"SELECT name FROM {schema}.sqlite_master")}


def _no_fall_through(query: str, gone: set[str]) -> Any:
    """SQLite looks in `before` for a table that is gone from the final state: only a query that says so may read it."""

    def allowed(action: int, table: str | None, column: str | None, database: str | None, source: str | None) -> int:
        if action == sqlite3.SQLITE_READ and database in ("before", None) and (table or "").lower() in gone:
            name = re.escape(table)
            said = len(re.findall(rf"\bbefore\b[\"`\]]?\s*\.\s*[\"`\[]?{name}\b", query, re.IGNORECASE))
            if len(re.findall(rf"\b{name}\b(?!\s*\.)", query, re.IGNORECASE)) > said:
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    return allowed


def diff(before: str, after: str) -> list[str]:
    """What changed between two databases, one line per row: `+` added, `-` removed, `~` changed."""
    lines: list[str] = []
    one, other = _tables(before), _tables(after)
    for table in sorted(one.keys() | other.keys()):
        if table not in other or table not in one:
            lines.append(f"{'-' if table in one else '+'} table {table}")
            continue
        (columns, keys, old), (new_columns, _, new) = one[table], other[table]
        if columns != new_columns:
            lines.append(f"~ table {table}: columns {', '.join(columns)} -> {', '.join(new_columns)}")
            continue
        for key in [k for k in old if k not in new]:
            lines += [f"- {table} {_row(columns, row)}" for row in old[key]]
        for key, rows in new.items():
            past = old.get(key, [])
            if not past:
                lines += [f"+ {table} {_row(columns, row)}" for row in rows]
            elif rows != past and keys and len(rows) == len(past) == 1:
                changes = [
                    f"{c}: {_value(a)} -> {_value(b)}"
                    for c, a, b in zip(columns, past[0], rows[0], strict=True)
                    if a != b
                ]
                label = ", ".join(f"{c}={_value(rows[0][columns.index(c)])}" for c in keys)
                lines.append(f"~ {table} [{label}] {'; '.join(changes)}")
            elif len(rows) != len(past):
                sign, count = ("+", len(rows) - len(past)) if len(rows) > len(past) else ("-", len(past) - len(rows))
                lines.append(f"{sign} {table} {_row(columns, rows[0])}" + (f" ({count} times)" if count > 1 else ""))
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"... and {len(lines) - _MAX_LINES} more changes"]
    return lines


def _tables(path: str) -> dict[str, tuple[list[str], list[str], dict[Any, list[tuple]]]]:
    """Table -> (columns, key columns, rows by key; by the whole row where there is no key)."""
    found = {}
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        for (name,) in names:
            quoted = '"' + name.replace('"', '""') + '"'
            try:
                found[name] = _table(connection, quoted)
            except sqlite3.Error as error:  # a virtual table whose module is not here; the others can still be told
                found[name] = ([f"unreadable: {error}"], [], {})
    finally:
        connection.close()
    return found


def _table(connection: sqlite3.Connection, quoted: str) -> tuple[list[str], list[str], dict[Any, list[tuple]]]:
    described = connection.execute(f"PRAGMA table_info({quoted})").fetchall()
    keys = [d[1] for d in sorted((d for d in described if d[5]), key=lambda d: d[5])]
    cursor = connection.execute(f"SELECT * FROM {quoted} LIMIT {_MAX_ROWS}")
    columns = [d[0] for d in cursor.description]  # with generated columns, which table_info leaves out
    rows: dict[Any, list[tuple]] = {}
    for row in cursor:
        key = tuple(row[columns.index(k)] for k in keys) if keys else row
        rows.setdefault(key, []).append(row)
    return columns, keys, rows


def _row(columns: list[str], row: tuple) -> str:
    return ", ".join(f"{c}={_value(v)}" for c, v in zip(columns, row, strict=True))


def _value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."
