"""Takes a canonical text apart: list, tuple, interval, set, union, matrix, or one expression."""

from __future__ import annotations

import re

from rufus_plugins.rewards.math_canonical import split_top
from rufus_plugins.rewards.math_numbers import GROUPED, number

NAME = r"(?:[A-Za-z]|\\(?:vec|overrightarrow|hat|bar|overline)\s*\{[^{}]*\}|\\[A-Za-z]+)(?:_(?:\{[^{}]*\}|\w))?'*"
RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<=|>=|<|>")


def split_outside(pattern: re.Pattern[str], text: str) -> list[str]:
    """`pattern.split`, but only where no bracket is open."""
    parts, start = [], 0
    for match in pattern.finditer(text):
        if _balanced(text[start : match.start()]):
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


_BUILDER = re.compile(rf"^\\\{{\s*{NAME}\s*(?:\\in\s*\\mathbb\{{R\}}\s*)?(?:\\mid|\||:)\s*(.*?)\s*\\\}}$", re.DOTALL)
"""`{x | condition}`."""


_NAMED_TUPLE = re.compile(rf"^\(\s*({NAME}(?:\s*,\s*{NAME})+)\s*\)\s*=\s*\((.*)\)$", re.DOTALL)
"""`(x,y) = (1,2)`."""


class Shape:
    """list (no order) | sequence | tuple | set | union | matrix | scalar, with its parts."""

    def __init__(self, kind: str, parts: list[str], brackets: str = ""):
        self.kind, self.parts, self.brackets = kind, parts, brackets


def shape_of(text: str) -> Shape:
    text = re.sub(rf"^{NAME}\s*\\in(?![A-Za-z])\s*", "", text)
    if not re.search(r"\\text\{\s*(?:if|when|for|where)", text):
        text = re.sub(r",?\s*(?:\\text\{\s*(?:,\s*)?(?:and|or)\s*\}|(?<![\w\\])(?:and|or)(?!\w))\s*", ", ", text)
    if match := _NAMED_TUPLE.match(text):
        names, values = split_top(match[1]), split_top(match[2])
        if len(names) == len(values):
            return Shape("list", [f"{name}={value}" for name, value in zip(names, values, strict=True)])
    if cases := re.fullmatch(r"\\begin\{cases\}(.*?)\\end\{cases\}", text, re.DOTALL):
        text = ", ".join(row.strip() for row in cases[1].split(r"\\") if row.strip())
    if builder := _BUILDER.match(text):
        text = builder[1]
    if matrix := _matrix(text):
        return matrix
    if text[:1] == "]" and text[-1:] == "[":
        text = f"({text[1:-1]})"  # the French way to write (a,b)
    union = [p for p in re.split(r"\\cup(?![A-Za-z])", text)]
    if len(union) > 1:
        return Shape("union", [p.strip() for p in union])
    if len(text) > 2 and r"\{" not in text and (text[0] == "]" or text[-1] == "[") and _balanced(text[1:-1]):
        text = ("(" if text[0] == "]" else text[0]) + text[1:-1] + (")" if text[-1] == "[" else text[-1])
    parts = split_top(text)
    if len(parts) > 1:
        parts = [p for p in parts if p]
        if any(r"\ldots" in p or p == "..." for p in parts):
            return Shape("sequence", [r"\ldots" if p == "..." else p for p in parts])
        if not GROUPED.match(text):
            return Shape("list", _plus_minus(parts))
        return Shape("scalar", [text])
    if text.startswith(r"\{") and text.endswith(r"\}") and _balanced(text[2:-2]):
        inner = text[2:-2].strip()
        if not re.search(r"\\mid(?![A-Za-z])|(?<!\|)\|(?!\|)|:", inner):
            return Shape("set", _plus_minus([*dict.fromkeys(p for p in split_top(inner) if p)]))
    if len(text) > 2 and text[0] in "([" and text[-1] in ")]" and _balanced(text[1:-1]):
        inner = split_top(text[1:-1])
        if len(inner) > 1:
            kind = "sequence" if any(r"\ldots" in p for p in inner) else "tuple"
            return Shape(kind, inner, text[0] + text[-1])
        if text[0] + text[-1] == "[]":
            return Shape("tuple", inner, "[]")
        if text[0] == "(" and text[-1] == ")":
            return shape_of(text[1:-1].strip())
    signs = _plus_minus([text])
    return Shape("list", signs) if len(signs) > 1 else Shape("scalar", [text])


def _balanced(text: str) -> bool:
    depth = 0
    for c in text.replace(r"\{", "{").replace(r"\}", "}"):
        depth += (c in "([{") - (c in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _plus_minus(parts: list[str]) -> list[str]:
    """Each part with one \\pm or \\mp becomes two."""
    out: list[str] = []
    for part in parts:
        if len(re.findall(r"\\[pm]{2}(?![A-Za-z])", part)) == 1:
            out += [re.sub(r"\\(?:pm|mp)(?![A-Za-z])\s*", sign, part) for sign in ("+", "-")]
        else:
            out.append(part)
    return [re.sub(r"^\+", "", p) for p in out]


def _matrix(text: str) -> Shape | None:
    match = re.fullmatch(
        r"[(\[]?\s*\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[^{}]*\})?(.*?)\\end\{\1\}\s*[)\]]?", text, re.DOTALL
    )
    if not match:
        return None
    rows = [row.strip() for row in match[2].split(r"\\") if row.strip()]
    cells = [[cell.strip() for cell in split_top(row, "&")] for row in rows]
    return Shape("matrix", [c for row in cells for c in row], f"{len(cells)}x{','.join(str(len(r)) for r in cells)}")


def assigned(parts: list[str]) -> bool:
    """Whether these are assignments to different names."""
    names = [m[0] for p in parts if (m := re.match(rf"{NAME}(?=\s*=(?!=))", p))]
    return len(names) == len(parts) and len(set(names)) > 1


def values_of(parts: list[str]) -> list[str]:
    return [re.sub(rf"^{NAME}\s*=(?!=)\s*", "", p) for p in parts]


def interval_of(shape: Shape, beside: Shape, text: str) -> Shape:
    """An inequality as the interval it means, where the other side is an interval, a union or an inequality too."""
    if shape.kind not in ("scalar", "list") or not (
        beside.kind in ("tuple", "union") or any(RELATION.search(p) for p in beside.parts)
    ):
        return shape
    intervals = [_solved(p) for p in shape.parts]
    if not all(intervals):
        return shape
    if len(intervals) == 2 and (both := _intersection(intervals, text)):
        return shape_of(both)
    return shape_of(intervals[0]) if len(intervals) == 1 else Shape("union", [i for i in intervals if i])


def _intersection(intervals: list[str], text: str) -> str | None:
    """`x > 1 and x < 5` is (1,5); so is `x > 1, x < 5`, whose union would be everything. None for a union."""
    if re.search(r"(?<![A-Za-z])or(?![A-Za-z])|\\cup", text):
        return None
    halves = sorted(intervals, key=lambda i: i.startswith(r"(-\infty"))
    if not (halves[0].endswith(r",\infty)") and halves[1].startswith(r"(-\infty,")):
        return None
    low, high = halves[0].removesuffix(r",\infty)"), halves[1].removeprefix(r"(-\infty,")
    ends = number(low[1:]), number(high[:-1])
    overlap = None not in ends and ends[0].value < ends[1].value
    if re.search(r"(?<![A-Za-z])and(?![A-Za-z])", text):
        return r"\emptyset" if None not in ends and ends[0].value > ends[1].value else f"{low},{high}"
    return f"{low},{high}" if overlap else None


def _solved(text: str) -> str | None:
    """`1 < x \\le 2` -> `(1,2]`, `x < 4` -> `(-\\infty,4)`; None if it is no chain around one bare variable."""
    signs = [s.replace("<=", r"\le").replace(">=", r"\ge") for s in RELATION.findall(text)]
    sides = [s.strip() for s in split_outside(RELATION, text)]
    if len(sides) != len(signs) + 1:
        return None
    absolute = re.fullmatch(rf"\|\s*({NAME})\s*\|", sides[0])
    if absolute and signs in (["<"], [r"\le"]) and number(sides[1]):
        return rf"{'[' if signs[0] != '<' else '('}-{sides[1]},{sides[1]}{']' if signs[0] != '<' else ')'}"
    if len(signs) == 1 and not sides[0]:
        sides[0] = "x"  # `\\ge 5`
    if not signs or r"\ne" in signs or not all(sides):
        return None
    up = {"<", r"\le"}
    if all(s not in up for s in signs):
        sides, signs = sides[::-1], [{">": "<", r"\ge": r"\le"}[s] for s in signs[::-1]]
    if any(s not in up for s in signs):
        return None
    variable = re.compile(rf"^(?!\\infty|\\pi){NAME}$")
    opener = "[" if signs[0] == r"\le" else "("
    closer = "]" if signs[-1] == r"\le" else ")"
    bare = [bool(variable.match(s)) for s in sides]
    if bare == [True, False]:
        return rf"(-\infty,{sides[1]}{closer}"
    if bare == [False, True]:
        return rf"{opener}{sides[0]},\infty)"
    if bare == [False, True, False]:
        return f"{opener}{sides[0]},{sides[2]}{closer}"
    return None
