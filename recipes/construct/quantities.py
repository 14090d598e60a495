"""Derived quantities: an expression over a row's columns, computed with units (Pint).

`of: "sqrt(2 * G * mass / radius)"` may use columns, numbers, `+ - * / **`, `sqrt`, the constants below, and unit names
as factors (`20 * cm`). It is read by this module alone; nothing is executed.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rufus_plugins.errors import ConfigError

if TYPE_CHECKING:
    from rufus_plugins.recipes.construct.tables import Formula, Table

CONSTANTS = {
    "pi": (math.pi, ""),
    "G": (6.6743e-11, "m^3/kg/s^2"),
    "R": (8.314462618, "J/K/mol"),
    "g": (9.80665, "m/s^2"),
}
"""CODATA 2018; g is the standard one."""


class Impossible(ValueError):
    """This row has no such quantity (a missing value, a root of a negative number, too large)."""


@functools.cache
def units() -> Any:
    try:
        import pint
    except ImportError as error:
        raise ConfigError("derived quantities need Pint: pip install 'rufus-plugins[construct]'") from error
    registry = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
    registry.define("USD = [money]")
    registry.define("EUR = [money_eur]")
    return registry


def unit(text: str) -> Any:
    """A Pint unit. Raises `ConfigError` for an unknown one."""
    import pint

    try:
        return units().parse_units(text or "dimensionless")
    except (pint.PintError, ValueError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"the unit {text!r} is unknown to Pint ({type(error).__name__})") from error


def inputs(formula: Formula, table: Table) -> list[str]:
    """The columns that a formula reads, in its order."""
    names = [n.id for n in ast.walk(_tree(formula.of)) if isinstance(n, ast.Name)]
    order = sorted(set(names), key=lambda n: formula.of.index(n))
    return [n for n in order if n in table.columns]


def compute(formula: Formula, table: Table, row: Mapping[str, Any], to: str) -> float:
    """The quantity of a row in the unit `to`. Raises `Impossible`."""
    import pint

    try:
        found = _value(_tree(formula.of).body, table, row)
        found = found if isinstance(found, units().Quantity) else units().Quantity(found, "")
        number = float(found.to(unit(to)).magnitude)
    except (ArithmeticError, ValueError, TypeError) as error:
        if isinstance(error, pint.DimensionalityError):  # a TypeError; of the description, not of the row
            raise
        raise Impossible(str(error)) from error
    if not math.isfinite(number):
        raise Impossible(f"{formula.name} is {number}")
    return number


def check(table: Table, formula: Formula, where: str) -> None:
    """Raises `ConfigError` if the formula does not read, or its units do not fit, with 1 for every column."""
    import pint

    for column in table.columns.values():
        if column.unit is not None:
            try:
                unit(column.unit)
            except ConfigError as error:
                raise ConfigError(f"{where}, column {column.name}: {error}") from error
    row = {name: 2.0 + at for at, name in enumerate(table.columns)}
    try:
        for to in formula.units:
            compute(formula, table, row, to)
    except pint.DimensionalityError as error:
        raise ConfigError(f"{where}: formula {formula.name} = {formula.of} does not fit its units: {error}") from error
    except Impossible:
        pass  # with these numbers
    except ConfigError as error:
        raise ConfigError(f"{where}: formula {formula.name}: {error}") from error
    if not formula.units or not inputs(formula, table):
        raise ConfigError(f"{where}: formula {formula.name} needs `units` and at least one column.")


@functools.cache
def _tree(text: str) -> ast.Expression:
    try:
        if len(text) > 500:
            raise ValueError("longer than 500 characters")
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{text[:80]!r} is no formula: {error}") from error


def _value(node: ast.AST, table: Table, row: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return _named(name, table, row)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, table, row)
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(op, _value(left, table, row), _value(right, table, row))
        case ast.Call(func=ast.Name(id="sqrt"), args=[inner], keywords=[]):
            found = _value(inner, table, row)
            if getattr(found, "magnitude", found) < 0:
                raise Impossible("the root of a negative number")
            return found**0.5
    raise ConfigError(f"{ast.unparse(node)!r} has no place in a formula: columns, numbers, + - * / **, sqrt, constants")


def _named(name: str, table: Table, row: Mapping[str, Any]) -> Any:
    if name in table.columns:
        column = table.columns[name]
        if column.unit is None:
            raise ConfigError(f"column {name} has no unit, so it is no number")
        if row[name] is None:
            raise Impossible(f"{name} is missing")
        return units().Quantity(float(row[name]), unit(column.unit))
    if name in CONSTANTS:
        number, of = CONSTANTS[name]
        return units().Quantity(number, unit(of))
    return units().Quantity(1.0, unit(name))


def _combined(op: ast.operator, a: Any, b: Any) -> Any:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return a / b
        case ast.Pow():
            power = float(getattr(b, "magnitude", b))
            if abs(power) > 6:
                raise ConfigError(f"the power {power:g} is above 6")
            return a**power
    raise ConfigError(f"{type(op).__name__} has no place in a formula")
