"""Plain data across a boundary of trust: nothing that is decoded can carry behaviour.

Inside, `encode` turns a value into a JSON tree by its *exact* type, or by the base type's own methods for subclasses,
so that no method of the program decides what is sent. Outside, `same` compares such a tree with an expected value
without building the program's sets and dicts (their hashes are the program's choice).
Scalars stand for themselves; everything else is `[tag, ...]`: l(ist) t(uple) s(et) f(rozenset) d(ict, keys and values
in turn) i(nteger beyond 64 bits, hexadecimal) b(ytes, hexadecimal) c(omplex) q (fraction) D(ecimal) o(paque: its type).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

_DEPTH = 200
"""Deeper nesting is refused. Ours."""


class NotPlain(TypeError):
    """The value has no plain form."""


def encode(value: Any, opaque=None, depth: int = _DEPTH) -> Any:
    """The tree of `value`. `opaque(value)` may give a tree for what is not plain; else it becomes `["o", type]`."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else ["i", hex(value)]
    if not depth:
        raise NotPlain(f"nested deeper than {_DEPTH}")
    if kind is list:
        return ["l", *[encode(item, opaque, depth - 1) for item in value]]
    if kind is tuple:
        return ["t", *[encode(item, opaque, depth - 1) for item in value]]
    if kind is dict:
        return ["d", *[encode(part, opaque, depth - 1) for pair in value.items() for part in pair]]
    if kind is set or kind is frozenset:
        return ["s" if kind is set else "f", *[encode(item, opaque, depth - 1) for item in value]]
    if kind is bytes or kind is bytearray:
        return ["b", value.hex()]
    if kind is complex:
        return ["c", value.real, value.imag]
    if kind is Fraction:
        return ["q", hex(value.numerator), hex(value.denominator)]
    if kind is Decimal:
        return ["D", str(value)]
    for base, plain in _BASES:
        if base in type.mro(kind):
            return encode(plain(value), opaque, depth - 1)
    if kind.__module__ == "numpy" and hasattr(kind, "tolist"):
        return encode(kind.tolist(value), opaque, depth - 1)
    if opaque is not None:
        return opaque(value)
    return ["o", str(kind.__name__)[:100]]


_BASES = (
    (int, lambda value: int.__add__(value, 0)),
    (float, lambda value: float.__pos__(value)),
    (str, lambda value: str.encode(value, "utf-8", "surrogatepass").decode("utf-8", "surrogatepass")),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (list, lambda value: [*list.__iter__(value)]),
    (tuple, lambda value: (*tuple.__iter__(value),)),
    (dict, lambda value: dict([*dict.items(value)])),
    (set, lambda value: {*set.__iter__(value)}),
    (frozenset, lambda value: frozenset([*frozenset.__iter__(value)])),
)


def decode(tree: Any, opaque=None) -> Any:
    """The value of a tree. Only where its hashes may cost what they like: in the jail."""
    if type(tree) is not list:
        return tree
    tag, *parts = tree
    if tag in "ltsf" and len(tag) == 1:
        return {"l": list, "t": tuple, "s": set, "f": frozenset}[tag](decode(part, opaque) for part in parts)
    if tag == "d":
        values = [decode(part, opaque) for part in parts]
        return dict(zip(values[::2], values[1::2], strict=True))
    if tag in ("i", "b", "c", "q", "D"):
        return _scalar(tree)
    if opaque is not None:
        return opaque(tree)
    raise NotPlain(f"no plain value: {tag}")


def _scalar(tree: Any) -> Any:
    if type(tree) is not list:
        return tree
    tag, *parts = tree
    if tag == "i":
        return int(parts[0], 16)
    if tag == "b":
        return bytes.fromhex(parts[0])
    if tag == "c":
        return complex(float(parts[0]), float(parts[1]))
    if tag == "q":
        return Fraction(int(parts[0], 16), int(parts[1], 16))
    if tag == "D":
        return Decimal(parts[0])
    raise NotPlain(tag)


def same(tree: Any, expected: Any, *, as_json: bool = False, tolerance: float = 0.0) -> bool:
    """Whether the tree a program sent equals `expected`, a value of ours.

    Python's `==` on plain data. `as_json`: as judges that compare JSON do: a tuple is a list, dict keys are strings,
    true is not 1, NaN equals NaN. `tolerance`: absolute or relative, between numbers of which one is a float.
    """
    try:
        return _same(tree, expected, as_json, tolerance)
    except (NotPlain, ValueError, TypeError, OverflowError, ArithmeticError, IndexError, RecursionError):
        return False


def _same(tree: Any, expected: Any, as_json: bool, tolerance: float) -> bool:
    tag = tree[0] if type(tree) is list else None
    if tag in ("l", "t"):
        kinds = (list, tuple) if as_json else (list,) if tag == "l" else (tuple,)
        if not isinstance(expected, kinds) or len(expected) != len(tree) - 1:
            return False
        return all(_same(part, item, as_json, tolerance) for part, item in zip(tree[1:], expected, strict=True))
    if tag in ("s", "f"):
        if not isinstance(expected, set | frozenset) or len(expected) != len(tree) - 1:
            return False
        left = set(expected)
        for part in tree[1:]:
            item = _shallow(part)
            if item not in left:
                return False
            left.discard(item)
        return not left
    if tag == "d":
        if not isinstance(expected, Mapping) or 2 * len(expected) != len(tree) - 1:
            return False
        left = dict(expected)
        for key, value in zip(tree[1::2], tree[2::2], strict=True):
            key = _shallow(key)
            if as_json and not isinstance(key, str):
                key = _json_key(key)
            if key not in left or not _same(value, left.pop(key), as_json, tolerance):
                return False
        return not left
    return _same_scalar(_scalar(tree), expected, as_json, tolerance)


def _same_scalar(value: Any, expected: Any, as_json: bool, tolerance: float) -> bool:
    if as_json and isinstance(value, bool) is not isinstance(expected, bool):
        return False
    numbers = isinstance(value, int | float) and isinstance(expected, int | float)
    if numbers and as_json and value != value and expected != expected:
        return True
    if numbers and tolerance and (isinstance(value, float) or isinstance(expected, float)):
        return value == expected or close(float(value), float(expected), tolerance)
    return bool(value == expected)


def close(value: float, expected: float, tolerance: float) -> bool:
    return math.isfinite(value) and abs(value - expected) <= tolerance * max(1.0, abs(expected))


def _shallow(tree: Any) -> Any:
    """A dict key or set item: scalars and tuples or frozensets of them."""
    if type(tree) is list and tree[0] == "t":
        return tuple(_shallow(part) for part in tree[1:])
    if type(tree) is list and tree[0] == "f":
        if len(tree) > 1000:
            raise NotPlain("a large set inside a set")
        return frozenset(_shallow(part) for part in tree[1:])
    return _scalar(tree)


def _json_key(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float):
        return repr(key)
    raise NotPlain("not a JSON key")
