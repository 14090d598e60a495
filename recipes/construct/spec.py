"""One construction: filter, select, compute (Axion 1.0), run by DuckDB and checked before anybody words it.

A construction is declarative data:

    {"table": "bodies",
     "filters": [{"column": "parent", "op": "=", "value": "Saturn"}, {"column": "radius", "op": ">=", "value": 100}],
     "select": {"column": "mass", "extreme": "min"},
     "compute": {"formula": "density", "unit": "g/cm^3"}}

What is refused, and why (`Unfit.reason`):

| | |
|---|---|
| `no_candidates`, `few_candidates` | nothing, or less than three rows to select from |
| `missing_value` | a row whose value is unknown could be the answer |
| `tie`, `small_margin` | the runner-up is as good, or closer than `MARGIN` |
| `near_threshold` | a row's value is so near to a filter's number that rounding decides |
| `idle_filter` | without this filter the answer would be the same: it could be lost and nobody would see |
| `entity_not_unique` | the table names two rows alike |
| `impossible` | the quantity cannot be computed for the row |
| `answer_not_distinct` | another row that a slip would select has the same answer within the tolerance |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.recipes.construct import quantities
from rufus_plugins.recipes.construct.tables import Table, TableSet, quoted

MARGIN = 0.05
"""Least relative distance to the runner-up. The paper demands a margin; its size is ours."""
THRESHOLD_MARGIN = 0.01
TOLERANCE = 0.01
"""Of the answer and the intermediate targets, relative. Ours."""
FEWEST = 3
OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


class Unfit(DataError):
    """The construction is no task."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Filter:
    column: str
    op: str
    value: str | float


@dataclass(frozen=True)
class Spec:
    table: str
    filters: tuple[Filter, ...]
    column: str
    extreme: str
    """max or min"""
    formula: str
    unit: str

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "filters": [{"column": f.column, "op": f.op, "value": f.value} for f in self.filters],
            "select": {"column": self.column, "extreme": self.extreme},
            "compute": {"formula": self.formula, "unit": self.unit},
        }


@dataclass(frozen=True)
class Solved:
    """A construction with its answer."""

    spec: Spec
    entity: str
    row: Mapping[str, Any]
    runner_up: str
    margin: float
    candidates: int
    answer: float
    """In `spec.unit`."""
    targets: tuple[dict[str, Any], ...]
    """z in dependency order, as `progress_chain` reads them."""


def read(given: Mapping[str, Any], tables: TableSet) -> Spec:
    """A construction from data. Raises `ConfigError` that says what exists."""
    try:
        table = _known("table", given["table"], tables.tables)
        filters = []
        for f in given.get("filters", []):
            column = _known("column", f["column"], table.columns)
            if f["op"] not in OPERATORS:
                raise ConfigError(f"the operator {f['op']!r} does not exist; there are {', '.join(OPERATORS)}")
            value = f["value"]
            if column.values and f["op"] not in ("=", "!="):
                raise ConfigError(f"column {column.name} names classes: it is compared by = or !=")
            if column.unit is not None or column.values:
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                    raise ConfigError(f"column {column.name} is compared with {value!r}, which is no number")
                value = float(value)
            elif f["op"] not in ("=", "!=") or not isinstance(value, str):
                raise ConfigError(f"column {column.name} is a text: it is compared by = or != with a text")
            filters.append(Filter(column.name, f["op"], value))
        ranked = _known("column", given["select"]["column"], table.columns)
        formula = _known("formula", given["compute"]["formula"], table.formulas)
        extreme, unit = given["select"]["extreme"], str(given["compute"]["unit"])
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"a construction is {{table, filters, select, compute}}; {error} is missing or wrong"
        ) from error
    if ranked.unit is None or extreme not in ("max", "min"):
        raise ConfigError(f"select needs a column of numbers and max or min, not {ranked.name} and {extreme!r}")
    if unit not in formula.units:
        raise ConfigError(f"formula {formula.name} has the units {', '.join(formula.units)}, not {unit!r}")
    return Spec(table.name, tuple(filters), ranked.name, extreme, formula.name, unit)


def _known(what: str, name: Any, of: Mapping[str, Any]) -> Any:
    if name not in of:
        raise ConfigError(f"there is no {what} {name!r}; there are {', '.join(of)}")
    return of[name]


def solve(spec: Spec, tables: TableSet) -> Solved:
    """Runs a construction. Raises `Unfit` for one that is no task."""
    table = tables.tables[spec.table]
    _near_thresholds(spec, table, tables)
    ranked = _ranked(spec, spec.filters, table, tables)
    if len(ranked) < FEWEST:
        raise Unfit("few_candidates" if ranked else "no_candidates", f"{len(ranked)} rows pass the filters")
    _unknown(spec, table, tables)
    best, second = ranked[0], ranked[1]
    margin = _distance(best[1], second[1])
    if margin == 0.0:
        raise Unfit("tie", f"{best[0]} and {second[0]} have the same {spec.column}")
    if margin < MARGIN:
        raise Unfit("small_margin", f"{best[0]} and {second[0]} differ by {margin:.2%}")
    rows = [row for row in table.rows if row[table.entity] == best[0]]
    if len(rows) != 1:
        raise Unfit("entity_not_unique", f"{best[0]!r} names {len(rows)} rows")
    answer = _answer(spec, table, rows[0])
    rivals = {second[0]}
    for at in range(len(spec.filters)):
        without = spec.filters[:at] + spec.filters[at + 1 :]
        other = _ranked(spec, without, table, tables)[0][0]
        if other == best[0]:
            raise Unfit("idle_filter", f"without the filter on {spec.filters[at].column} the answer is the same")
        rivals.add(other)
    reverse = ranked[-1][0]
    for rival in (*sorted(rivals), reverse):
        found = _answer_of(spec, table, rival)
        if found is not None and _distance(found, answer) <= 2 * TOLERANCE:
            raise Unfit("answer_not_distinct", f"{rival} has {found:.4g}, {best[0]} {answer:.4g}")
    return Solved(
        spec, str(best[0]), rows[0], str(second[0]), margin, len(ranked), answer, _targets(spec, table, rows[0], answer)
    )


def _ranked(spec: Spec, filters: Sequence[Filter], table: Table, tables: TableSet) -> list[tuple[str, float]]:
    """(entity, value) of the rows that pass, best first."""
    where, values = _where(filters)
    column, entity = quoted(spec.column), quoted(table.entity)
    order = "DESC" if spec.extreme == "max" else "ASC"
    found = tables.connection.execute(
        f"SELECT CAST({entity} AS VARCHAR), CAST({column} AS DOUBLE) FROM {quoted('task_' + table.name)} "
        f"WHERE {column} IS NOT NULL AND {entity} IS NOT NULL AND {where} ORDER BY {column} {order}, {entity}",
        values,
    )
    return found.fetchall()


def _where(filters: Sequence[Filter]) -> tuple[str, list[Any]]:
    return " AND ".join([f"{quoted(f.column)} {f.op} ?" for f in filters] or ["TRUE"]), [f.value for f in filters]


def _unknown(spec: Spec, table: Table, tables: TableSet) -> None:
    """A row that passes what is known of it, and of which not all that decides is known, might be the answer."""
    parts = [f"({quoted(f.column)} IS NULL OR {quoted(f.column)} {f.op} ?)" for f in spec.filters]
    nulls = " OR ".join(f"{quoted(c)} IS NULL" for c in dict.fromkeys([spec.column, *(f.column for f in spec.filters)]))
    hit = tables.connection.execute(
        f"SELECT {quoted(table.entity)} FROM {quoted('task_' + table.name)} WHERE {' AND '.join(parts or ['TRUE'])} "
        f"AND ({nulls} OR {quoted(table.entity)} IS NULL) LIMIT 1",
        [f.value for f in spec.filters],
    ).fetchone()
    if hit:
        raise Unfit("missing_value", f"{hit[0]!r} has no value where one decides")


def _near_thresholds(spec: Spec, table: Table, tables: TableSet) -> None:
    for f in spec.filters:
        if not table.columns[f.column].number:
            continue
        column, value = quoted(f.column), float(f.value)
        view = quoted(f"task_{table.name}")
        # years and counts are exact: only equality leaves open whether "above" includes it
        whole = f"bool_and(abs({column}) < 1e6 AND {column} = round({column}))"
        exact = tables.connection.execute(f"SELECT {whole} FROM {view} WHERE {column} IS NOT NULL").fetchone()[0]
        margin = 0.0 if exact and value.is_integer() else THRESHOLD_MARGIN
        near = tables.connection.execute(
            f"SELECT {quoted(table.entity)}, {column} FROM {view} WHERE {column} = $value OR "
            f"abs({column} - $value) < $margin * greatest(abs({column}), abs($value)) LIMIT 1",
            {"value": value, "margin": margin},
        ).fetchone()
        if near:
            raise Unfit("near_threshold", f"{near[0]}: {f.column} is {near[1]}, the filter has {f.value}")


def _distance(a: float, b: float) -> float:
    """Relative to the larger one; 0.0 for equal numbers."""
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _answer(spec: Spec, table: Table, row: Mapping[str, Any]) -> float:
    try:
        found = quantities.compute(table.formulas[spec.formula], table, row, spec.unit)
    except quantities.Impossible as error:
        raise Unfit("impossible", f"{spec.formula} of {row[table.entity]}: {error}") from error
    if found == 0 or not 1e-12 < abs(found) < 1e15:
        raise Unfit("impossible", f"{spec.formula} of {row[table.entity]} is {found:g}, which no answer writes well")
    return found


def _answer_of(spec: Spec, table: Table, entity: str) -> float | None:
    row = next((r for r in table.rows if str(r[table.entity]) == entity), None)
    try:
        return None if row is None else quantities.compute(table.formulas[spec.formula], table, row, spec.unit)
    except quantities.Impossible:
        return None


def _targets(spec: Spec, table: Table, row: Mapping[str, Any], answer: float) -> tuple[dict[str, Any], ...]:
    """The selected value, the inputs of the formula, the quantity in each of its other units, the answer."""
    from rufus_plugins.rewards.progress_chain import targets_of

    formula = table.formulas[spec.formula]
    names = [n for n in dict.fromkeys([spec.column, *quantities.inputs(formula, table)]) if row[n] is not None]
    found: list[dict[str, Any]] = []
    for name in names:
        unit = table.columns[name].unit or ""
        found.append(_target(name, float(row[name]), unit, [] if name == spec.column else [spec.column]))
    found.append(_target("answer", answer, spec.unit, names))
    targets_of({"answer": "", "targets": found})  # the reward must know every unit: DataError names the one it does not
    return tuple(found)


def _target(name: str, value: float, unit: str, depends_on: list[str]) -> dict[str, Any]:
    value = float(f"{value:.6g}")
    return {"name": name, "value": value, "unit": unit, "tolerance": TOLERANCE, "depends_on": depends_on}
