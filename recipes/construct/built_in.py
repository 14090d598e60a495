"""The built-in table set: larger bodies of the solar system, chemical elements, and a generated shipping company.

`bodies.txt` and `elements.txt` hold measured facts. Ships, ports and voyages are generated from a seed and exist
nowhere. The same seed gives the same DuckDB tables.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DESCRIPTION = HERE / "built_in.yaml"
SHIPS, PORTS, VOYAGES = 160, 60, 4_000
"""Ours."""

_REGIONS = ("North Reach", "Amber Coast", "Inner Sea", "Long Gulf", "Cape Shelf", "South Arc")
_FLAGS = ("Marosa", "Teld", "Quillan", "Ostrava Isles", "Bryne", "Kasso")
_CARGO = {"grain": 38.0, "ore": 24.0, "timber": 46.0, "machinery": 95.0, "coffee": 130.0, "salt": 19.0}
"""Freight per tonne and 1,000 km, in dollars, about."""


def fill(connection: Any, seed: int = 0) -> None:
    """Creates bodies, elements, ship, port and voyage in a DuckDB connection."""
    connection.execute(
        "CREATE TABLE bodies (name VARCHAR, kind VARCHAR, parent VARCHAR, radius DOUBLE, mass DOUBLE, axis DOUBLE, "
        "period DOUBLE, discovered INTEGER)"
    )
    _insert(connection, "bodies", rows("bodies.txt", 3))
    connection.execute(
        'CREATE TABLE elements (name VARCHAR, symbol VARCHAR, number INTEGER, molar_mass DOUBLE, "row" INTEGER, '
        '"column" INTEGER, density DOUBLE, melting DOUBLE, boiling DOUBLE, state VARCHAR)'
    )
    _insert(connection, "elements", rows("elements.txt", 2, 9))
    ships, ports, voyages = company(seed)
    connection.execute("CREATE TABLE ship (id INTEGER, name VARCHAR, flag VARCHAR, built INTEGER, speed DOUBLE)")
    connection.execute("CREATE TABLE port (id INTEGER, name VARCHAR, region VARCHAR, x DOUBLE, y DOUBLE)")
    connection.execute(
        "CREATE TABLE voyage (code VARCHAR, ship INTEGER, origin INTEGER, destination INTEGER, cargo VARCHAR, "
        "distance DOUBLE, duration DOUBLE, fuel DOUBLE, tonnes DOUBLE, freight DOUBLE)"
    )
    for table, content in (("ship", ships), ("port", ports), ("voyage", voyages)):
        _insert(connection, table, content)


def _insert(connection: Any, table: str, content: list[tuple[Any, ...]]) -> None:
    marks = "(" + ", ".join("?" * len(content[0])) + ")"
    for start in range(0, len(content), 500):
        part = content[start : start + 500]
        connection.execute(
            f"INSERT INTO {table} VALUES {', '.join([marks] * len(part))}", [value for row in part for value in row]
        )


def rows(name: str, texts: int, *also: int) -> list[tuple[Any, ...]]:
    """The rows of a facts file; the first `texts` columns and `also` are text, the others numbers, - is NULL."""
    found = []
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            cells = [cell.strip() for cell in line.split("|")]
            found.append(
                tuple(
                    None if cell == "-" else cell if at < texts or at in also else float(cell)
                    for at, cell in enumerate(cells)
                )
            )
    return found


def company(seed: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Ships, ports and voyages."""
    rng = random.Random(f"company {seed}")
    used: set[str] = set()

    def name(endings: str) -> str:
        while True:
            word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))
            word = (word + rng.choice(endings.split())).capitalize()
            if word not in used:
                used.add(word)
                return word

    ports = [
        (i, name("by port haven mouth"), _REGIONS[i % len(_REGIONS)], rng.uniform(0, 9000), rng.uniform(0, 7000))
        for i in range(PORTS)
    ]
    ships = [
        (i, f"{name('na ra lis dor')} {rng.choice(('Star', 'Wind', 'Pride', 'Dawn'))}", _FLAGS[i % len(_FLAGS)],
         rng.randint(1974, 2023), rng.uniform(18, 38))
        for i in range(SHIPS)
    ]  # fmt: skip
    voyages = []
    for number in range(VOYAGES):
        ship = rng.choice(ships)
        start, end = rng.sample(ports, 2)
        cargo = rng.choice(sorted(_CARGO))
        distance = round(((start[3] - end[3]) ** 2 + (start[4] - end[4]) ** 2) ** 0.5 * rng.uniform(1.05, 1.4) + 60, 1)
        duration = round(distance / (ship[4] * rng.uniform(0.7, 1.05)), 1)
        tonnes = round(rng.uniform(2_000, 60_000), 0)
        fuel = round(distance * rng.uniform(0.03, 0.09) * (1 + tonnes / 90_000), 1)
        freight = round(tonnes * distance / 1000 * _CARGO[cargo] * rng.uniform(0.7, 1.4), 0)
        voyages.append(
            (f"V-{10_000 + number}", ship[0], start[0], end[0], cargo, distance, duration, fuel, tonnes, freight)
        )
    return ships, ports, voyages
