"""Clock times, dates, compound quantities and residues: answers that are numbers with their own rules.

Each function is a step of math_compare: True or False where it decides, None where it has nothing to say.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rufus_plugins.rewards.math_numbers import number
from rufus_plugins.rewards.units import parse_unit

_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))?(?::(\d\d))?\s*(?:([ap])\s*\.?\s*m\b\.?)?(?:\s*o'clock)?", re.IGNORECASE)
_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = "|".join(f"{name}|{name[:3]}\\.?" for name in _MONTHS)
_DATES = (
    re.compile(rf"(?P<month>{_MONTH}) (?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,? (?P<year>\d{{4}}))?", re.IGNORECASE),
    re.compile(
        rf"(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})(?:,? (?P<year>\d{{4}}))?",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"),
)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).replace("~", " ").split())


def clocks(gold: str, answer: str) -> bool | None:
    """`3:30 PM` is 15:30; a half of the day that one side leaves out is the other's. A bare 3:30 may be a ratio."""
    one, other = (_CLOCK.fullmatch(_plain(text)) for text in (gold, answer))
    marked = [m for m in (one, other) if m and (m[4] or any((part or "").startswith("0") for part in m.groups()[1:3]))]
    if not marked:
        return None
    if not (one and other and (one[2] or one[4]) and (other[2] or other[4])):
        return None if any(m[4] for m in marked) else False
    return bool(_minutes(one) & _minutes(other))


def _minutes(clock: re.Match[str]) -> set[tuple[int, int, int]]:
    hour, minute, second = int(clock[1]), int(clock[2] or 0), int(clock[3] or 0)
    if clock[4]:
        return {(hour % 12 + 12 * (clock[4].casefold() == "p"), minute, second)}
    return {(hour, minute, second)} | ({((hour + 12) % 24, minute, second)} if 1 <= hour <= 12 and clock[2] else set())


def dates(gold: str, answer: str) -> bool | None:
    """`July 4`, `4th of July`, `July 4, 1776`; a year that the answer adds is not held against it."""
    one, other = _date(gold), _date(answer)
    if one is None:
        return None
    return other is not None and one[:2] == other[:2] and (one[2] is None or one[2] == other[2])


def _date(text: str) -> tuple[int, int, int | None] | None:
    for pattern in _DATES:
        if found := pattern.fullmatch(_plain(text)):
            name, year = found["month"].casefold(), found["year"]
            month = int(name) if name.isdigit() else 1 + [m[:3] for m in _MONTHS].index(name[:3])
            return month, int(found["day"]), int(year) if year else None
    return None


_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\.?\s*(?:,|and\b|&)?\s*")


def one_quantity(text: str) -> str:
    """`2 hours 30 minutes` in its first unit; any other text as it is."""
    plain, at, parts = _plain(text), 0, []
    while part := _PART.match(plain, at):
        unit = parse_unit(part[2])
        if not unit or unit[2]:
            return text
        parts.append((Fraction(part[1]), unit, part[2]))
        at = part.end()
    if at != len(plain) or len(parts) < 2 or len({unit[0] for _, unit, _ in parts}) != 1:
        return text
    factors = [Fraction(unit[1]).limit_denominator(10**12) for _, unit, _ in parts]
    total = sum(value * factor for (value, _, _), factor in zip(parts, factors, strict=True)) / factors[0]
    return rf"\frac{{{total.numerator}}}{{{total.denominator}}} \text{{{parts[0][2]}}}"


_MODULO = re.compile(
    r"(?:^[A-Za-z]\s*\\equiv\s*)?(.+?)\s*(?:\\pmod|\(?\s*\\b?mod|\(?\s*\\text\{\s*mod\s*\})\s*\{?(\d+)\}?\)?"
)

_NAMED = re.compile(r"^[A-Za-z]\s*(?:\\equiv|=)\s*")


def residues(gold: str, answer: str) -> bool | None:
    """`x \\equiv 7 \\pmod{11}`; a modulus that one side leaves out is the other's."""
    found = [_MODULO.fullmatch(text) for text in (gold, answer)]
    if not any(found):
        return None
    values = [number(m[1] if m else _NAMED.sub("", t)) for m, t in zip(found, (gold, answer), strict=True)]
    if None in values:
        return None
    if all(found):
        modulus = int(found[0][2])
        return found[0][2] == found[1][2] and modulus > 0 and (values[0].value - values[1].value) % modulus == 0
    return values[0].value == values[1].value
