"""Brackets in brackets, quotes in quotes. One pass each."""

from __future__ import annotations

from collections.abc import Iterator

_BRACKETS = {")": "(", "]": "[", "}": "{", "）": "（", "】": "【"}
_OPENERS = frozenset(_BRACKETS.values())
_DOUBLE = {'"', "“", "”", "„", "«", "»", "＂"}
_SINGLE = {"'", "‘", "’", "‚", "‹", "›"}


def deepest_brackets(text: str) -> int:
    """How many levels of brackets are closed around each other; one that closes another kind undoes what is open."""
    open_: list[tuple[str, int]] = []  # the bracket, the depth closed inside it
    deepest = 0
    for char in text:
        if char in _OPENERS:
            open_.append((char, 0))
        elif char in _BRACKETS and open_:
            if open_[-1][0] != _BRACKETS[char]:
                open_.clear()
                continue
            depth = open_.pop()[1] + 1
            deepest = max(deepest, depth)
            if open_:
                open_[-1] = (open_[-1][0], max(open_[-1][1], depth))
    return deepest


def quote_marks(text: str) -> Iterator[tuple[int, str, bool, bool]]:
    """Position, kind (`"` or `'`), may open, may close: of each quotation mark that is no apostrophe."""
    for index, char in enumerate(text):
        kind = '"' if char in _DOUBLE else "'" if char in _SINGLE else ""
        if not kind:
            continue
        before, after = text[index - 1] if index else " ", text[index + 1] if index + 1 < len(text) else " "
        if kind == "'" and before.isalnum() and after.isalnum():
            continue
        opens = not after.isspace() and not before.isalnum() and char not in "”"
        closes = not before.isspace() and not after.isalnum() and char not in "„‚‘"
        if char == "“" and closes and not opens:
            closes = True
        yield index, kind, opens, closes


def deepest_quotes(text: str) -> int:
    """How many levels of quotes, double and single in turn, are closed around each other."""
    open_: list[tuple[str, int]] = []
    deepest = 0
    kinds = {'"': 0, "'": 0}
    for _, kind, opens, closes in quote_marks(text):
        if closes and kinds[kind] and (open_[-1][0] == kind or not opens):
            while open_[-1][0] != kind:  # opened and never closed: an apostrophe
                kinds[open_.pop()[0]] -= 1
            depth = open_.pop()[1] + 1
            kinds[kind] -= 1
            deepest = max(deepest, depth)
            if open_ and open_[-1][0] != kind:
                open_[-1] = (open_[-1][0], max(open_[-1][1], depth))
        elif opens:
            open_.append((kind, 0))
            kinds[kind] += 1
    return deepest


def quoted_phrases(text: str) -> list[tuple[int, int]]:
    """Begin and end of each outermost phrase in double quotes."""
    found: list[tuple[int, int]] = []
    begin: int | None = None
    depth = 0
    for index, char in enumerate(text):
        if char not in _DOUBLE:
            continue
        directed = char in "“„«" or char in "”»"
        if begin is None:
            if char not in "”»":
                begin, depth = index, 1
        elif directed and char in "“„«" and text[begin] != '"':
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                found.append((begin, index + 1))
                begin = None
    return found
