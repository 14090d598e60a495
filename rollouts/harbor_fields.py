"""Values of a task file, each as what it must be: a wrong one is a `DataError` that names it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.errors import DataError

_SIZE = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


def _number(value: Any) -> float:
    """nan for what is no number: Harbor's own reader takes numbers in quotes too."""
    try:
        return float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def seconds(table: Mapping[str, Any], key: str, default: float, what: str, least: float | None = None) -> float:
    """A finite time: above 0, or from `least` on."""
    given = table.get(key)
    value = default if given is None else _number(given)
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        raise DataError(f"{what}: {key} is {given!r}; it is a number of seconds")
    return value


def text_of(table: Mapping[str, Any], key: str, what: str) -> str | None:
    """A text, or a number as one (users are names or numbers)."""
    value = table.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DataError(f"{what}: {key} is {value!r}; it is a text")


def texts_of(table: Mapping[str, Any], key: str, what: str) -> tuple[str, ...]:
    value = table.get(key) or ()
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{what}: {key} is {value!r}; it is a list of texts")
    return tuple(value)


def env_of(table: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    value = table.get("env") or {}
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise DataError(f"{what}.env is {value!r}; it is a table of texts")
    return value


def least_reward(value: Any, what: str) -> float | dict[str, float] | None:
    """`min_reward`: a number, or one per reward."""
    if value is None:
        return None
    given = value if isinstance(value, Mapping) else {"": value}
    found = {str(key): _number(number) for key, number in given.items()}
    if not all(map(math.isfinite, found.values())):
        raise DataError(f"{what}: min_reward is {value!r}; it is a number, or a table of numbers")
    return found if isinstance(value, Mapping) else found[""]


def table_of(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise DataError(f"task.toml: {name} is {value!r}; it is a table")
    return value


def megabytes(environment: Mapping[str, Any], name: str, folder: Path) -> int | None:
    """`memory_mb`, or the older `memory = "2G"`."""
    what = f"{folder.name}: {name}"
    if environment.get(f"{name}_mb") is not None:
        given = environment[f"{name}_mb"]
        value = _number(given)
        if not math.isfinite(value) or value < 0 or value != int(value):
            raise DataError(f"{what}_mb is {given!r}; it is a whole number of megabytes")
        return int(value)
    text = environment.get(name)
    if text is None:
        return None
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([GMK])B?", str(text).strip().upper())
    if not found:
        raise DataError(f"{what} is {text!r}; write 2G, 512M or {name}_mb")
    return int(float(found[1]) * _SIZE[found[2]])
