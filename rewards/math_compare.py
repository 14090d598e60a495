"""Whether two mathematical answers are the same. Runs in the jail (`compare`); `quick` decides the easy ones outside.

Own code takes the answers apart (numbers, percent, units, choices, words, lists, tuples, intervals, sets, matrices,
equations, inequalities) as *text*; what is left, single expressions, is read by latex2sympy2_extended, the parser of
math-verify, which builds SymPy trees from a grammar and evaluates no code. Two expressions are then compared as numbers
with 40 digits, at several points if they have variables; where that is not possible, math-verify decides.

What counts as the same, where people differ:

- A percent sign may be read as a unit or as 1/100: 12.5% is 0.125 and 12.5; without a sign nothing is divided by 100.
- A unit that one side leaves out is taken from the other; two units must agree after conversion (5 cm is not 5 m).
  A degree without its sign is also a number; 30 degrees is pi/6.
- A decimal equals an exact value from six significant digits on, if the value rounds to it: 0.333333 is 1/3, 0.33 not.
- Lists without brackets and sets have no order; tuples do; `1, 2` is (1,2) and {1,2}, but (1,2) is not {1,2}.
- Brackets of intervals count. `x<4` is (-oo,4). `x=5` is 5, but not `y=5` and not `2x=10`.
- An answer with `\\ldots` is a sequence, compared term by term.
"""

from __future__ import annotations

import re
from typing import Any

from rufus_plugins.rewards.math_canonical import canonical, split_top, too_large
from rufus_plugins.rewards.math_expressions import expressions_same, proportional, read
from rufus_plugins.rewards.math_moments import clocks, dates, residues
from rufus_plugins.rewards.math_numbers import number, numbers_same
from rufus_plugins.rewards.math_shapes import (
    NAME,
    RELATION,
    assigned,
    interval_of,
    shape_of,
    split_outside,
    values_of,
)
from rufus_plugins.rewards.math_units import unit_verdict, untexted

_LEFT_SIDE = re.compile(
    rf"^(?:{NAME}|(?:m?\s*\\(?:angle|triangle)\s*)?[A-Z]{{1,3}}|{NAME}\s*\(\s*{NAME}(?:\s*,\s*{NAME})*\s*\))$"
)
_LETTER = re.compile(r"^\(?\s*(?:\\text\{\s*\(?\s*)?([A-J])\s*\)?\s*\}?\s*\)?[.:]?$")
_CHOSEN = re.compile(
    r"^(?:\\text\{\s*)?(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?\(?\s*(?:\\text\{\s*\(?\s*)?([A-Ja-j])\s*(?:\)|\}|$|[.:](?:\s|$))\s*\)?\}?\)?(.*)$",
    re.DOTALL,
)
_EMPTY = {r"\emptyset", r"\{\}", r"\{ \}", "no solution", "no solutions", "none", "there are no solutions", "empty set"}
_REALS = {r"\mathbb{R}", r"(-\infty,\infty)", r"(-\infty, \infty)", "all real numbers", "all reals", r"x\in\mathbb{R}"}


def compare(item: dict[str, str]) -> dict[str, Any]:
    """Jail entry: `{"gold", "answer"}` -> `{"same", "why"}`."""
    gold, answer = canonical(item["gold"]), canonical(item["answer"])
    try:
        same = _same(gold, answer)
    except RecursionError:
        same = False
    return {"same": same, "why": f"{gold[:200]!r} and {answer[:200]!r} are {'the same' if same else 'different'}"}


def check_gold(item: dict[str, str]) -> dict[str, Any]:
    """Jail entry: whether a gold answer can be compared at all: it must at least equal itself."""
    gold = canonical(item["gold"])
    return {"readable": bool(gold) and read(gold) is not None}


def quick(gold: str, answer: str) -> bool | None:
    """The verdict where plain text or plain numbers settle it; None where it takes more."""
    gold, answer = canonical(gold), canonical(answer)
    if not answer:
        return False
    if _tight(gold) == _tight(answer):
        return True
    left, right = number(gold), number(answer)
    if left is not None and right is not None:
        return numbers_same(left, right)
    if _LETTER.match(gold):
        return _choice(gold, answer)
    if left is not None and too_large(answer):
        return False
    return None


# -- structure ---------------------------------------------------------------------------------------------------------


def _tight(text: str) -> str:
    """Text without the blanks that mean nothing."""
    text = re.sub(r"(?<=\d)\s+(?=\d)", "\x00", text)  # 1 2 is not 12
    text = re.sub(r"(\\[A-Za-z]+) (?=[A-Za-z])|\s+", lambda m: m.group(1) + " " if m.group(1) else "", text)
    return text.replace("\x00", " ")


def _same(gold: str, answer: str) -> bool:
    if not gold or not answer:
        return False
    if _tight(gold) == _tight(answer) or _tight(untexted(gold)) == _tight(untexted(answer)):
        return True
    left, right = number(gold), number(answer)
    if left is not None and right is not None:
        return numbers_same(left, right)
    for step in _STEPS:
        verdict = step(gold, answer)
        if verdict is not None:
            return verdict
    return expressions_same(gold, answer)


def _units(gold: str, answer: str) -> bool | None:
    return unit_verdict(gold, answer, _same)


_GROUPED_QUANTITY = re.compile(
    r"([$€£¥₹]?\s*[-+]?\s*)(\d{1,3}(?:,\d{3})+(?:\.\d+)?)(\s*(?:\\text\{.*|\\?%|\^\\circ.*|[A-Za-z].*)?)", re.DOTALL
)


def _grouped(gold: str, answer: str) -> bool | None:
    """Thousands separators in a quantity: `$1,234.50`, `1,234 \\text{ km}`."""
    sides = [
        m[1] + m[2].replace(",", "") + m[3] if (m := _GROUPED_QUANTITY.fullmatch(text)) and (m[1] or m[3]) else text
        for text in (gold, answer)
    ]
    return _same(*sides) if sides != [gold, answer] else None


def _cases(gold: str, answer: str) -> bool | None:
    """Piecewise definitions: the same values under the same conditions, in any order."""
    found = [re.fullmatch(r"(?:[^=&]*=)?\s*\\begin\{cases\}(.*)\\end\{cases\}", t, re.DOTALL) for t in (gold, answer)]
    if not all(found) or not all("&" in m[1] for m in found):
        return None
    tables = []
    for match in found:
        rows = [row.split("&") for row in match[1].split(r"\\") if row.strip()]
        if any(len(row) != 2 for row in rows):
            return None
        tables.append([[_WHERE.sub(" ", cell).strip(" ,.;") for cell in row] for row in rows])
    left = list(tables[1])
    for value, condition in tables[0]:
        match = next((r for r in left if _same(value, r[0]) and (_same(condition, r[1]) or condition == r[1])), None)
        if match is None:
            return False
        left.remove(match)
    return not left


_WHERE = re.compile(r"\\text\{\s*,?\s*(?:if|when|for|where)\s*\}|(?<![A-Za-z\\])(?:if|when|for)(?![A-Za-z])")


def _choice(gold: str, answer: str) -> bool | None:
    letter = _LETTER.match(gold)
    if not letter:
        one, other = _letters(gold), _letters(answer)
        return one == other if one and other and len(one) > 1 and ("," in gold + answer) else None
    chosen = _CHOSEN.match(answer)
    if not chosen:
        return (
            None if re.fullmatch(r"[\w\\{}^+\-*/() ]+=?.*", answer) and len(answer) > 1 and "(" not in gold else False
        )
    return chosen.group(1).upper() == letter.group(1) and not re.match(r"\s*[,;&]|\s*(?:and|or)\b", chosen.group(2))


def _letters(text: str) -> str:
    """The letters of a choice of several, sorted: `A, C`, `AC`, `A and C`."""
    bare = re.sub(r"[\s,;()&]|\\text|[{}]|\band\b", "", text)
    return "".join(sorted(bare)) if re.fullmatch(r"[A-J]{1,10}", bare) else ""


def _words(gold: str, answer: str) -> bool | None:
    """For a gold that is words, not mathematics."""
    one, other = _spoken(gold), _spoken(answer)
    for known in (_EMPTY, _REALS):
        if gold in known or one in known:
            return answer in known or other in known or _tight(answer) in map(_tight, known)
    if one is None:
        return False if other is not None and len(other) > 2 and number(gold) is not None else None
    return other is not None and one == other


def _spoken(text: str) -> str | None:
    """A text that is only words, normalised; None for mathematics (also for up to two bare letters)."""
    opened = untexted(text)
    if re.search(r"[\d=<>^_\\+*/|]", opened) or not re.search(r"[^\W\d_]", opened):
        return None
    words = re.sub(r"[^\w' -]", " ", opened).casefold().split()
    if not words or ("\\text" not in text and words != ["no"] and all(len(w) <= 2 for w in words)):
        return None
    if len(words) > 1 and words[0] in ("the", "a", "an"):
        words = words[1:]
    return " ".join(words)


def _approximately(gold: str, answer: str) -> bool | None:
    """`sqrt(2) \\approx 1.414`: the exact side, or the value if the other side is only a name."""
    sides = [_exact_side(t) for t in (gold, answer)]
    return _same(*sides) if sides != [gold, answer] else None


def _exact_side(text: str) -> str:
    parts = re.split(r"\\approx(?![A-Za-z])|\\simeq(?![A-Za-z])", text)
    if len(parts) == 1:
        return text
    first = parts[0].strip()
    return parts[-1].strip() if not first or _LEFT_SIDE.match(first) else first


def _bases(gold: str, answer: str) -> bool | None:
    """Numerals with a base: `1011_2`. A base that the answer leaves out is the gold's."""
    pattern = r"(?:\\text\{)?([0-9A-Fa-f]+)\}?_\{?(?:\\text\{)?(\d{1,2}|two|eight|ten|sixteen)\}*"
    one, other = re.fullmatch(pattern, gold), re.fullmatch(pattern, answer)
    if not one:
        return None
    digits, base = (other[1], other[2]) if other else (answer, one[2])
    return digits.lstrip("0").upper() == one[1].lstrip("0").upper() and base == one[2]


def _ratios(gold: str, answer: str) -> bool | None:
    one, other = (split_top(t, ":") for t in (gold, answer))
    if len(one) == 1 and len(other) == 1:
        return None
    if len(one) == len(other):
        return all(
            expressions_same(rf"({one[0]})\cdot({y})", rf"({other[0]})\cdot({x})")
            for x, y in zip(one[1:], other[1:], strict=True)
        )
    if max(len(one), len(other)) != 2:
        return False
    as_fraction = [rf"\frac{{{p[0]}}}{{{p[1]}}}" if len(p) == 2 else p[0] for p in (one, other)]
    return expressions_same(*as_fraction)


def _shapes(gold: str, answer: str) -> bool | None:
    one, other = shape_of(gold), shape_of(answer)
    one, other = interval_of(one, other, gold), interval_of(other, one, answer)
    kinds = (one.kind, other.kind)
    if kinds == ("scalar", "scalar"):
        return _same(one.parts[0], other.parts[0]) if (one.parts[0], other.parts[0]) != (gold, answer) else None
    if "scalar" in kinds:
        single, many = (one, other) if one.kind == "scalar" else (other, one)
        if many.kind in ("set", "list") and len(many.parts) == 1:
            return _same(*((single.parts[0], many.parts[0]) if single is one else (many.parts[0], single.parts[0])))
        if many.kind == "list" and single is one:  # 3/4 or 0.75
            return all(_same(single.parts[0], part) for part in many.parts)
        if len(split_outside(_EQUALS, single.parts[0])) > 1:
            return None
        if many.kind in ("matrix", "union") or r"\begin" in single.parts[0] or RELATION.search(single.parts[0]):
            return None
        return False
    for matrix, rows in ((one, other), (other, one)):
        if matrix.kind == "matrix" and rows.brackets == "[]" and (entries := _rows(rows.parts)):
            height, *cells = entries
            fits = matrix.brackets.startswith(f"{height}x") and len(cells) == len(matrix.parts)
            return fits and _in_order(*((matrix.parts, cells) if matrix is one else (cells, matrix.parts)))
    if len(one.parts) != len(other.parts):
        return False
    if kinds == ("list", "list") and assigned(one.parts) != assigned(other.parts):
        return _in_order(values_of(one.parts), values_of(other.parts))
    if kinds in (("set", "set"), ("list", "list"), ("set", "list"), ("list", "set"), ("union", "union")):
        return _unordered(one.parts, other.parts)
    if kinds == ("tuple", "tuple"):
        return one.brackets == other.brackets and _in_order(one.parts, other.parts)
    if kinds == ("matrix", "matrix"):
        return one.brackets == other.brackets and _in_order(one.parts, other.parts)
    if "matrix" in kinds and "tuple" in kinds:
        matrix, row = (one, other) if one.kind == "matrix" else (other, one)
        flat = matrix.brackets == f"1x{len(matrix.parts)}" or matrix.brackets.startswith(f"{len(matrix.parts)}x")
        return flat and row.brackets == "()" and _in_order(one.parts, other.parts)
    if "sequence" in kinds or ("tuple" in kinds and "list" in kinds):
        if {one.brackets, other.brackets} - {"", "()", *(["[]"] if len(one.parts) > 2 else [])}:
            return False  # [1,2] is an interval, [1,2,3] a list
        return _in_order(values_of(one.parts), values_of(other.parts))
    return False


def _rows(text: list[str]) -> list[str] | None:
    """The entries of `[[1,2],[3,4]]`, given as its rows, with the number of rows first."""
    rows = [shape_of(row) for row in text]
    if not all(row.kind == "tuple" and row.brackets == "[]" for row in rows):
        return None
    return [str(len(rows)), *(cell for row in rows for cell in row.parts)]


def _in_order(one: list[str], other: list[str]) -> bool:
    return all(_same(a, b) for a, b in zip(one, other, strict=True))


def _unordered(one: list[str], other: list[str]) -> bool:
    left = list(other)
    for a in one:
        match = next((b for b in left if _same(a, b)), None)
        if match is None:
            return False
        left.remove(match)
    return True


_EQUALS = re.compile(r"(?<![<>!=])=(?!=)")


def _relations(gold: str, answer: str) -> bool | None:
    """Equations. `x = 5` is an assignment; `2x + y = 3` is an equation, the same as a multiple of it."""
    one, other = (split_outside(_EQUALS, t) for t in (gold, answer))
    if len(one) == 1 and len(other) == 1:
        return None
    one, other = [[s.strip() for s in sides] for sides in (one, other)]
    if any(r"\text" in side for side in (*other[:-1], *(other[-1:] if len(other) > 2 else ()))):
        return False  # words between equations state nothing
    named = [len(s) > 1 and bool(_LEFT_SIDE.match(s[0])) for s in (one, other)]
    if len(one) == 1:
        return _same(gold, other[-1])  # the answer's last value
    if len(other) == 1:
        return _same(one[-1], answer) if named[0] else False
    lefts = {_tight(one[0]), _tight(other[0])}
    if (
        named[0]
        and named[1]
        and (len(lefts) == 1 or ("y" in lefts and any(re.fullmatch(r"[a-z]\(x\)", t) for t in lefts)))
    ):
        return _same(one[-1], other[-1])
    if named[0] and not re.search(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", re.sub(r"\\[A-Za-z]+", "", one[-1])):
        return named[1] is False and bool(_LEFT_SIDE.match(other[-1])) and _same(gold, f"{other[-1]}={other[0]}")
    return proportional((one[0], one[-1]), (other[0], other[-1]))


_STEPS = (
    _choice, _words, dates, clocks, _approximately, _bases, residues, _grouped, _cases, _shapes, _relations,
    _units, _ratios,
)  # fmt: skip
