"""Values of which one or both have a unit: a step of math_compare, whose rules it follows."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rufus_plugins.rewards.math_canonical import canonical
from rufus_plugins.rewards.math_moments import one_quantity
from rufus_plugins.rewards.math_numbers import number
from rufus_plugins.rewards.units import parse_unit, plain

Same = Callable[[str, str], bool]


def untexted(text: str) -> str:
    return re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)


def _with_unit(text: str) -> tuple[str, Any]:
    """(value, unit): unit is None, `(dimensions, factor, offset)`, or "" for a word that is no known unit."""
    if money := re.match(r"([$€£¥₹]|\\text\{\s*(?:USD|EUR|GBP|JPY|INR|Rs\.?)\s*\})\s*(?=[\d.])", text):
        name = plain(money[1]).strip(" .")
        return text[money.end() :].strip(), parse_unit("INR" if name == "Rs" else name)
    if match := re.fullmatch(r"(.*[^\\\s])\s*\\?%", text, re.DOTALL):
        return match[1], ((), 0.01, 0.0)
    if match := re.fullmatch(r"(.*\S)\s*\^\\circ\s*(?:\\text\{\s*([CF])\s*\}|([CF]))?", text, re.DOTALL):
        scale = match[2] or match[3]
        if not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])", match[1]):
            return match[1], parse_unit(f"°{scale}" if scale else "°")
    for match in re.finditer(r"(?<=[\w})])\s*\\text\{", text):
        tail = text[match.start() :].strip()
        if not re.fullmatch(r"(?:\\text\{[^{}]*\}|\^\{?-?\d\}?|[/\s]|\\cdot)+", tail):
            continue
        words = re.sub(r"\s*\^\s*", "^", plain(tail)).strip()
        return text[: match.start()].strip(), parse_unit(words) or ""
    match = len(text) <= 200 and re.fullmatch(
        r"((?:\\frac\{[^{}]*\}\{[^{}]*\}|[-+,/ \d.])+)(?<= )([A-Za-z€£][A-Za-z/^{}\d\s-]*)", text
    )
    if match and number(match[1].strip()) is not None:
        unit = parse_unit(match[2].strip())
        if unit is not None or re.fullmatch(r"[A-Za-z]{3,}(?: [A-Za-z]+)*", match[2].strip()):
            return match[1].strip(), unit or ""
    return text, None


_HALF_DAY = re.compile(r"\d[\s{}]*([ap])\s*\.?\s*m\b", re.IGNORECASE)
"""`10:30 a.m.`; 10 p.m. is another time (and 10 pm is not 10 am as lengths either)."""


def unit_verdict(gold: str, answer: str, same: Same) -> bool | None:
    """For two values of which one has a unit; None if neither has."""
    gold, answer = one_quantity(gold), one_quantity(answer)
    halves = [_HALF_DAY.search(untexted(text)) for text in (gold, answer)]
    if halves[0] and halves[1] and halves[0][1].casefold() != halves[1][1].casefold():
        return False
    (g, gold_unit), (a, answer_unit) = _with_unit(gold), _with_unit(answer)
    if gold_unit is None and answer_unit is None:
        return None
    primes = [bool(re.fullmatch(r".*\d\s*'+", text)) for text in (g, a)]
    if primes[0] != primes[1] and any(unit and unit[0] == (("A", 1),) for unit in (gold_unit, answer_unit)):
        return False  # minutes of arc are no degrees
    known = [u for u in (gold_unit, answer_unit) if u]
    readings = [(g, a)] if gold_unit == answer_unit or len(known) < 2 else []
    if len(known) == 2 and gold_unit != answer_unit:
        if gold_unit[0] != answer_unit[0]:
            return False
        return _converted(g, gold_unit, a, answer_unit, same)
    if len(known) == 1:
        (dims, _, _), other = known[0], (a if gold_unit else g)
        value = g if gold_unit else a
        if dims == ():
            readings.append(_ordered(gold_unit, rf"\frac{{{value}}}{{100}}", other))
        elif dims == (("A", 1),):
            readings.append(_ordered(gold_unit, rf"\frac{{({value})\pi}}{{180}}", other))
    return any(same(canonical(x), canonical(y)) for x, y in readings)


def _ordered(gold_has_unit: Any, value: str, other: str) -> tuple[str, str]:
    return (value, other) if gold_has_unit else (other, value)


def _converted(g: str, gold_unit: Any, a: str, answer_unit: Any, same: Same) -> bool:
    one, other = number(canonical(g)), number(canonical(a))
    if one is None or other is None:
        ratio = Fraction(answer_unit[1]).limit_denominator(10**9) / Fraction(gold_unit[1]).limit_denominator(10**9)
        if gold_unit[2] or answer_unit[2]:
            return False
        return same(g, rf"\frac{{{ratio.numerator}({a})}}{{{ratio.denominator}}}")
    left = float(one.value) * gold_unit[1] + gold_unit[2]
    right = float(other.value) * answer_unit[1] + answer_unit[2]
    return abs(left - right) <= 1e-9 * max(abs(left), abs(right))
