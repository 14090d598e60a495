"""Single expressions: read by latex2sympy2_extended, compared as numbers of 40 digits, else by math-verify.

The parser is a grammar that builds SymPy trees; it folds constants, so a text is looked at first (`too_large`).
Imported in the jail only, where a deadline holds.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from rufus_plugins.rewards.math_canonical import too_large

_MIXED = re.compile(
    r"(?<![\d.}\w])(\d+)\s*\\frac\{\s*(\d+)\s*\}\{\s*(\d+)\s*\}|(?<![\d./\w])(\d+) (\d+)/(\d+)(?![\d/])"
)


class Expression:
    """A SymPy tree that was read from LaTeX."""

    def __init__(self, tree: Any):
        self.tree = tree
        self.symbols = frozenset(str(s) for s in tree.free_symbols)

    def at(self, point: dict[str, Any]) -> Any:
        """The value (a complex mpmath number of 40 digits) with the symbols set; None if it is not finite."""
        import mpmath

        try:
            value = self.tree.subs({s: point[str(s)] for s in self.tree.free_symbols}).evalf(45, maxn=500)
            parts = value.as_real_imag()
            with mpmath.workprec(150):
                found = mpmath.mpc(*(mpmath.mpf(part._to_mpmath(150)) for part in parts))
        except Exception:  # no number: sums without an end, infinities, functions nobody defined
            return None
        return found if mpmath.isfinite(found) else None

    @property
    def rational(self) -> Any:
        """The exact value if it is a rational number without decimals; else None."""
        from sympy import Float

        try:
            value = self.tree.doit() if not self.symbols and not self.tree.has(Float) else None
        except Exception:
            return None
        return value if value is not None and value.is_Rational else None

    @property
    def digits(self) -> int | None:
        """Least significant digits of the decimals in it; None if it is exact."""
        from sympy import Float

        found = [len(str(f).replace(".", "").replace("-", "").strip("0")) for f in self.tree.atoms(Float)]
        return min(found) if found else None


_FILLER = re.compile(
    r"\\text\{\s*\(?(?:approx\w*\.?|about|exactly|units?|total|each|square|cubic|the|answer|final|value|is|:|=|\s)*\)?\s*\}",
    re.IGNORECASE,
)


@functools.lru_cache(maxsize=512)
def read(text: str) -> Expression | None:
    """None where the text is no expression, or one that must not be evaluated."""
    if not text or len(text) > 2000 or too_large(text):
        return None
    from latex2sympy2_extended import latex2sympy
    from sympy import Basic, Expr, I

    text = _MIXED.sub(lambda m: rf"({m[1] or m[4]}+\frac{{{m[2] or m[5]}}}{{{m[3] or m[6]}}})", text)
    text = re.sub(r"(\d)\s*[eE]([-+]?\d{1,4})(?![\w.])", r"\1\\cdot 10^{\2}", text)
    text = re.sub(r"(\d+(?:\.\d+)?|\([^()]*\))\s*\^\\circ(?![A-Za-z])", r"(\1\\cdot\\frac{\\pi}{180})", text)
    text = _FILLER.sub(" ", text)
    if r"\text" in text:
        return None  # words may change what the symbols mean: "not 5"
    complex_number = re.search(r"(?<![\\A-Za-z])i(?![A-Za-z])|\\sqrt\{\s*-|\\imath|\\arg|\\Re|\\Im", text)
    try:
        tree = latex2sympy(text, is_real=not complex_number, convert_degrees=False, normalization_config=None)
    except Exception:
        return None
    if not (isinstance(tree, Basic) and isinstance(tree, Expr)):
        return None
    return Expression(tree.subs({s: I for s in tree.free_symbols if str(s) == "i"}))


def points(symbols: frozenset[str]) -> list[dict[str, Any]]:
    """Fixed points, positive and negative, that no answer is written for."""
    from sympy import Rational

    grid = [(7, 13), (-11, 17), (29, 19), (-37, 23), (101, 31), (5, 41)]
    return [
        {s: Rational(p * (k + 3) + 2 * k, q + 5 * k + i) for k, s in enumerate(sorted(symbols))}
        for i, (p, q) in enumerate(grid)
    ]


def expressions_same(gold: str, answer: str) -> bool:
    """Whether two canonical texts are the same expression: equal at every point, or by math-verify's comparison."""
    one, other = read(gold), read(answer)
    if one is None or other is None:
        return _by_math_verify(gold, answer)
    other = _renamed(one, other) if r"\pi" in gold and r"\pi" in answer else other
    symbols = one.symbols | other.symbols
    exact = (one.rational, other.rational)
    if not symbols and None not in exact:
        return exact[0] == exact[1]
    values = [(one.at(p), other.at(p)) for p in (points(symbols) if symbols else [{}])]
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if any((a is None) != (b is None) for a, b in values):
        return False
    if len(known) < (3 if symbols else 1):
        return _by_math_verify(gold, answer)
    digits = [d for d in (one.digits, other.digits) if d is not None]
    return all(_close(a, b, min(digits) if digits else None) for a, b in known)


def _renamed(one: Expression, other: Expression) -> Expression:
    """`\\pi/2 + 2n\\pi` for `\\pi/2 + 2k\\pi`: the integer may have another name."""
    mine, theirs = one.symbols - other.symbols, other.symbols - one.symbols
    if not (len(mine) == len(theirs) == 1 and (mine | theirs) <= {"k", "n", "m"}):
        return other
    by_name = {str(s): s for tree in (one.tree, other.tree) for s in tree.free_symbols}
    return Expression(other.tree.subs({by_name[min(theirs)]: by_name[min(mine)]}))


def proportional(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two equations, each as (left side, right side), are multiples of each other."""
    left, right = (read(f"({a})-({b})") for a, b in (one, other))
    if left is None or right is None or not left.symbols or left.symbols != right.symbols:
        return False
    ratios = []
    for point in points(left.symbols):
        a, b = left.at(point), right.at(point)
        if a is None or b is None or abs(a) < 1e-20 or abs(b) < 1e-20:
            continue
        ratios.append(a / b)
    return len(ratios) >= 3 and all(abs(r - ratios[0]) < abs(ratios[0]) * 1e-25 for r in ratios)


def _close(one: Any, other: Any, digits: int | None) -> bool:
    size = max(abs(one), abs(other))
    if abs(one - other) <= size * 1e-12 * (1e-16 if digits is None else 1):
        return True
    if digits is None:
        return size < 1e-35
    return digits >= 6 and abs(one - other) <= size * 10.0 ** (1 - digits) / 2


def _by_math_verify(gold: str, answer: str) -> bool:
    """math-verify's own comparison, for what is no plain expression (sums, vectors, sets with conditions ...)."""
    if too_large(gold) or too_large(answer):
        return False  # equal texts were found equal before
    if _spoken(gold) != _spoken(answer):
        return False
    from math_verify import LatexExtractionConfig, parse, verify

    config = (LatexExtractionConfig(boxed_match_priority=0),)
    read = [
        parse(rf"\boxed{{{text}}}", config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (gold, answer)
    ]
    return bool(read[0] and read[1] and verify(read[0], read[1], timeout_seconds=None))


def _spoken(text: str) -> list[str]:
    return [" ".join(words.split()).casefold() for words in re.findall(r"\\text\{([^{}]*)\}", _FILLER.sub(" ", text))]
