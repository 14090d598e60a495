"""Draws constructions at random from a table set. The same seed gives the same ones, in the same order."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

from rufus_plugins.recipes.construct.spec import Filter, Solved, Spec, Unfit, solve
from rufus_plugins.recipes.construct.tables import Column, Table, TableSet

MOST_FILTERS = 3
"""Ours."""
TRIES = 2_000
"""Draws for one task before the tables are given up. Ours."""


def constructions(tables: TableSet, seed: int, refused: Counter[str]) -> Iterator[tuple[Solved, random.Random]]:
    """Solved constructions without end, in turn from each table; two never have the same table, entity and formula.

    Ends when no table gives another one within `TRIES` draws. `refused` counts why draws were no tasks.
    """
    rng = random.Random(f"construct {seed}")
    used: set[tuple[str, str, str, str]] = set()
    open_ = [table for table in tables.tables.values() if table.formulas and _rankable(table)]
    while open_:
        for table in list(open_):
            found = _one(tables, table, rng, used, refused)
            if found is None:
                open_.remove(table)
                continue
            yield found, rng


def _one(
    tables: TableSet, table: Table, rng: random.Random, used: set[tuple[str, str, str, str]], refused: Counter[str]
) -> Solved | None:
    for _ in range(TRIES):
        spec = draw(table, rng)
        try:
            solved = solve(spec, tables)
        except Unfit as error:
            refused[error.reason] += 1
            continue
        key = (table.name, solved.entity, spec.formula, spec.column)
        if key in used:
            refused["seen"] += 1
            continue
        used.add(key)
        return solved
    return None


def draw(table: Table, rng: random.Random) -> Spec:
    ranked = rng.choice(_rankable(table))
    formula = rng.choice(list(table.formulas.values()))
    others = [c for c in table.columns.values() if c.name != ranked.name]
    few = [c for c in others if not c.number]
    many = [c for c in others if c.number]
    chosen: list[Column] = []
    for _ in range(rng.randint(1, MOST_FILTERS)):
        pool = few if few and (not many or rng.random() < 0.6) else many
        pool = [c for c in pool if c not in chosen]
        if pool:
            chosen.append(rng.choice(pool))
    filters = []
    for column in chosen:
        made = _filter(table, column, rng)
        if made:
            filters.append(made)
    return Spec(
        table.name, tuple(filters), ranked.name, rng.choice(("max", "min")), formula.name, rng.choice(formula.units)
    )


def _rankable(table: Table) -> list[Column]:
    return [c for c in table.columns.values() if c.number and c.rank]


def _filter(table: Table, column: Column, rng: random.Random) -> Filter | None:
    values = [row[column.name] for row in table.rows if row[column.name] not in (None, "")]
    if not values:
        return None
    if not column.number:
        value = rng.choice(values)
        return Filter(column.name, "=", float(value) if column.unit is not None or column.values else str(value))
    low, high = sorted(rng.sample(sorted(map(float, values)), 2)) if len(values) > 1 else (values[0], values[0])
    middle = rounded((low + high) / 2)
    return Filter(column.name, rng.choice((">", "<", ">=", "<=")), middle)


def rounded(value: float) -> float:
    """To two significant digits, or to a whole decade for years: what a person would write."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    if 1000 <= value <= 2100:
        return float(round(value / 5) * 5)
    digits = 1 - math.floor(math.log10(abs(value)))
    return round(value, digits) if digits > 0 else float(round(value / 10**-digits) * 10**-digits)
