"""Exact numbers from canonical LaTeX: integers, (repeating) decimals, fractions, mixed and scientific notation."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

DECIMAL = r"\d+(?:\.\d*)?|\.\d+"
GROUPED = re.compile(r"^[-+]?\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?$")
"""An integer part with thousands separators."""


class Number:
    """An exact number, and how it was written."""

    def __init__(self, value: Fraction, digits: int | None = None):
        self.value = value
        self.digits = digits
        """Significant digits of a decimal; None for integers and fractions, which are exact."""


def numbers_same(one: Number, other: Number) -> bool:
    if one.value == other.value:
        return True
    digits = [n.digits for n in (one, other) if n.digits is not None]
    return bool(digits) and _agree(one.value, other.value, min(digits))


def _agree(one: Fraction, other: Fraction, digits: int) -> bool:
    """Whether two values are equal when rounded to that many significant digits (six at least)."""
    if digits < 6 or not one or not other or (one > 0) != (other > 0):
        return False
    scale = min(abs(one), abs(other))  # 1000000 does not round to 999999.9999
    magnitude = len(str(scale.numerator // scale.denominator)) if scale >= 1 else -_leading_zeros(scale)
    return abs(one - other) * 2 <= Fraction(10) ** (magnitude - digits)


def _leading_zeros(value: Fraction) -> int:
    zeros = max(0, len(str(value.denominator)) - len(str(value.numerator)) - 1)
    while value * 10 ** (zeros + 1) < 1:
        zeros += 1
    return zeros


@functools.lru_cache(maxsize=2048)
def number(text: str) -> Number | None:
    """The number that a canonical text is: integer, decimal, repeating decimal, fraction, mixed, scientific."""
    if len(text) > 120:
        return None
    sign = 1
    text = text.strip()
    while text[:1] in ("-", "+"):
        sign, text = (-sign if text[0] == "-" else sign), text[1:].lstrip()
    if text.startswith("(") and text.endswith(")") and "," not in text and text.count("(") == 1:
        inner = number(text[1:-1])
        return None if inner is None else Number(sign * inner.value, inner.digits)
    if GROUPED.match(text):
        text = re.sub("[, ]", "", text)
    found = _unsigned(text)
    return None if found is None else Number(sign * found.value, found.digits)


def _unsigned(text: str) -> Number | None:
    if re.fullmatch(DECIMAL, text):
        return Number(Fraction(text if text[-1] != "." else text[:-1]), _digits(text))
    if match := re.fullmatch(
        rf"({DECIMAL})(?:[eE]([-+]?\d+)|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{{\s*([-+]?\d+)\s*\}}|(-?\d)))", text
    ):
        exponent = match[2] or match[3] or match[4]
        if len(exponent) > 5:
            return None
        digits = _digits(match[1])
        return Number(Fraction(match[1].rstrip(".")) * Fraction(10) ** int(exponent), digits)
    if match := re.fullmatch(r"10\s*\^\s*(?:\{\s*([-+]?\d{1,4})\s*\}|(\d))", text):
        return Number(Fraction(10) ** int(match[1] or match[2]))
    if match := re.fullmatch(r"(\d*)\.(\d*)\s*\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))", text):
        return Number(_repeating(match[1], match[2], match[3] or match[4]))
    if match := re.fullmatch(r"(\d*)\.(\d*?)(\d{1,6}?)\3{2,}\s*(?:\\ldots|\.\.\.)", text):
        return Number(_repeating(match[1], match[2], match[3]))
    if match := re.fullmatch(r"(\d+)\s*\\frac\{\s*(\d+)\s*\}\{\s*(\d+)\s*\}|(\d+) (\d+)/(\d+)", text):
        whole, top, bottom = (int(g) for g in match.groups() if g is not None)
        return Number(whole + Fraction(top, bottom)) if bottom else None
    if match := re.fullmatch(r"\\frac\{([^{}]*)\}\{([^{}]*)\}|([^/{}]+)/([^/{}]+)", text):
        top, bottom = (number(g) for g in match.groups() if g is not None)
        if top is None or bottom is None or not bottom.value or not re.search(r"\d", text):
            return None
        digits = [d for d in (top.digits, bottom.digits) if d is not None]
        return Number(top.value / bottom.value, min(digits) if digits else None)
    return None


def _digits(text: str) -> int | None:
    """Significant digits of a decimal; None if it is an integer or written with few digits of its own."""
    if "." not in text or not text.split(".")[1]:
        return None
    return len(text.replace(".", "").lstrip("0")) or None


def _repeating(whole: str, start: str, block: str) -> Fraction:
    fixed = Fraction(int((whole or "0") + start or "0"), 10 ** len(start))
    return fixed + Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(start))
