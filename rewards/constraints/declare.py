"""How a constraint is declared: `@constraint(id, kwarg=converter ...)` over a function of one response.

The function gets the cleaned response (`reading.clean`) and the converted kwargs; it returns None if the response
follows the constraint, else the reason why not, in words. A converter turns one raw value of a dataset into what the
function needs, or raises `DataError`; kwargs are all required, and a null counts as absent (datasets list every known
kwarg with null for those that do not apply).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.rewards.constraints.reading import clean

Check = Callable[..., str | None]
Converter = Callable[[Any], Any]

CONSTRAINTS: dict[str, Constraint] = {}
"""Every constraint by id; filled by importing the families."""


@dataclass(frozen=True)
class Constraint:
    id: str
    kwargs: Mapping[str, Converter]
    aliases: Mapping[str, str]
    """Other spellings of a kwarg -> the one the function takes."""
    ignored: tuple[str, ...]
    """Kwargs that are accepted and change nothing."""
    check: Check
    fits: Callable[..., str | None] | None = None
    """Of all converted kwargs: None, or why they do not go together."""

    def convert(self, raw: Mapping[str, Any] | None) -> dict[str, Any]:
        """The kwargs of `check`. Raises `DataError` that names what is wrong and what exists."""
        if raw is None:
            raw = {}
        if not isinstance(raw, Mapping):
            raise DataError(f"constraint {self.id!r}: kwargs must be a mapping, not {type(raw).__name__}")
        given = {self.aliases.get(str(k), str(k)): v for k, v in raw.items() if v is not None}
        takes = ", ".join(self.kwargs) or "none"
        for key in given:
            if key not in self.kwargs and key not in self.ignored:
                raise DataError(f"constraint {self.id!r} has no kwarg {key!r}; its kwargs: {takes}")
        converted = {}
        for key, converter in self.kwargs.items():
            if key not in given:
                raise DataError(f"constraint {self.id!r} needs the kwarg {key!r}; its kwargs: {takes}")
            try:
                converted[key] = converter(given[key])
            except DataError as error:
                raise DataError(f"constraint {self.id!r}, kwarg {key!r}: {error}") from None
        if self.fits and (problem := self.fits(**converted)):
            raise DataError(f"constraint {self.id!r}: {problem}")
        return converted


def constraint(
    name: str,
    /,
    _aliases: Mapping[str, str] | None = None,
    _ignored: tuple[str, ...] = (),
    _fits: Callable[..., str | None] | None = None,
    **kwargs: Converter,
) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CONSTRAINTS[name] = Constraint(name, kwargs, _aliases or {}, _ignored, check, _fits)
        return check

    return register


def unknown(name: str) -> DataError:
    """The error for an id that does not exist: the nearest one, else the ids of its family, else the families."""
    close = difflib.get_close_matches(name, CONSTRAINTS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    family = name.partition(":")[0]
    ids = [known for known in CONSTRAINTS if known.startswith(f"{family}:")]
    families = sorted({known.partition(":")[0] for known in CONSTRAINTS})
    exists = f"Ids of {family!r}: {', '.join(ids)}." if ids else f"Families: {', '.join(families)}."
    return DataError(
        f"there is no constraint {name!r}.{hint} {exists} (25 ids of IFEval and 58 of IFBench: docs/rewards.md)"
    )


# Converters


def count(value: Any) -> int:
    """A whole number >= 0; 5.0 and "5" count, since datasets write them so."""
    if isinstance(value, str) and value.strip().lstrip("+").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value in (float("inf"),):
        raise DataError(f"needs a whole number, not {value!r}")
    if value < 0 or int(value) != value:
        raise DataError(f"needs a whole number >= 0, not {value!r}")
    return int(value)


def ordinal(value: Any) -> int:
    number = count(value)
    if number < 1:
        raise DataError(f"counts from 1, not {value!r}")
    return number


def percent(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise DataError(f"needs a percentage 0..100, not {value!r}")
    return float(value)


def text(value: Any) -> str:
    cleaned = clean(value) if isinstance(value, str) else ""
    if not cleaned.strip():
        raise DataError(f"needs a text that is not blank, not {value!r}")
    return cleaned


def phrase(value: Any) -> str:
    """A text whose outer blanks do not matter."""
    return text(value).strip()


def phrases(value: Any) -> list[str]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise DataError(f"needs a list of texts, not {value!r}")
    return [phrase(item) for item in value]


def relation(value: Any) -> str:
    known = ("at least", "less than")
    found = " ".join(value.split()).lower() if isinstance(value, str) else value
    if found not in known:
        raise DataError(f"needs one of {', '.join(map(repr, known))}, not {value!r}")
    return found


def holds(number: int, relation_: str, threshold: int, what: str) -> str | None:
    """None if the relation holds, else the sentence that says what was found."""
    fits = number >= threshold if relation_ == "at least" else number < threshold
    return None if fits else f"{number} {what}, but {relation_} {threshold} are asked for"
