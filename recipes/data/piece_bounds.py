"""Tells of a tokenizer at which places a text may be cut without changing its ids.

Two kinds of bounds: BLANKS, between a letter, digit or ASCII mark and the blank after it; MARKS, between an ASCII
letter or digit and the ASCII mark (no apostrophe) or line break after it. Let a pre-tokenizer's pattern be
alternatives of atoms. If in no alternative an atom that can match the character before the bound can stand next to (or
repeats as) one that can match the character after it, no match reaches over a bound; if an alternative matches
whatever follows when it stands at the character after it, a match begins there, so that the text is split. Patterns
look ahead only after white space, and a piece whose end is a bound holds its white space whole. So the left piece is
split as it is with the right one after it, and the other way round, whatever they are. BPE works within the parts, and
NFC composes no ASCII character with what stands before it.

This is shown from the pattern itself, so that it holds for any in the manner of GPT-2, Llama 3, Qwen, GLM, DeepSeek or
gpt-oss. What is not understood (SentencePiece's prefix, tokens that swallow the white space around them) is not cut.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of `ByteLevel(use_regex=True)`."""

_ASCII = frozenset(map(chr, range(128)))
_WORDS = frozenset("é")
"""Stands for every letter, digit or mark beyond ASCII: what may match one has it."""
_SPACE = frozenset(" \t\n\v\f\r")
_ALNUM = frozenset(c for c in _ASCII if c.isalnum())
_PRINTED = frozenset(map(chr, range(33, 127)))
BLANKS = (_PRINTED | _WORDS, frozenset(" "))
MARKS = (_ALNUM, _PRINTED - _ALNUM - {"'"} | {"\n"})
"""Characters before the bound, and after it."""


def bounds(backend: Any) -> tuple[Any, ...]:
    """The kinds at which texts may be cut: (), (BLANKS,) or (BLANKS, MARKS). `backend`: a `tokenizers.Tokenizer`."""
    if type(backend.model).__name__ != "BPE" or getattr(backend.model, "dropout", None):
        return ()
    if backend.encode_special_tokens or backend.padding or backend.truncation or backend.post_processor is not None:
        return ()
    normalizes = backend.normalizer is not None
    for token in backend.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or token.single_word or (normalizes and token.normalized):
            return ()
    if normalizes and any(s.get("type") != "NFC" for s in _stages(backend.normalizer, "normalizers")):
        return ()
    if backend.pre_tokenizer is None:
        return ()
    stages = _stages(backend.pre_tokenizer, "pretokenizers")
    if not _all_split(stages, BLANKS):
        return ()
    return (BLANKS, MARKS) if _all_split(stages, MARKS) else (BLANKS,)


def _stages(part: Any, name: str) -> list[Mapping[str, Any]]:
    def flat(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [s for inner in state[name] for s in flat(inner)] if state.get("type") == "Sequence" else [state]

    return flat(json.loads(part.__getstate__()))


def _all_split(stages: Sequence[Mapping[str, Any]], kind: Any) -> bool:
    """No stage reaches over a bound, and one of them splits there."""
    splits = False
    for stage in stages:
        name = stage.get("type")
        if name == "ByteLevel" and not stage.get("add_prefix_space"):
            splits |= bool(stage.get("use_regex", True) and splits_at(GPT2, kind))
        elif name == "Split":
            pattern = (stage.get("pattern") or {}).get("Regex")
            found = None if pattern is None else splits_at(pattern, kind)
            kept = (stage["behavior"], stage["invert"]) == ("Isolated", False)
            if found is None or not (kept or (found and (stage["behavior"], stage["invert"]) == ("Removed", True))):
                return False
            splits |= found
        elif name != "Digits":
            return False
    return splits


def splits_at(pattern: str, kind: Any) -> bool | None:
    """None: a match may reach over a bound, or the pattern is not understood. Else whether one begins at each bound."""
    left, right = kind
    try:
        found, end = _alternatives(pattern, 0, False)
    except (_Unclear, IndexError):
        return None
    if end != len(pattern) or any(_reaches(atoms, left, right) for atoms in found):
        return None
    sure = (_surely_matched(atoms) for atoms in found)
    return right <= frozenset().union(*sure)


class _Unclear(Exception):
    pass


@dataclass(frozen=True)
class _Atom:
    chars: frozenset[str]
    """The ASCII characters that it matches, and `_WORDS` if it may match one of those."""
    many: bool = False
    optional: bool = False
    ahead: bool = False
    """Says what may follow."""
    group: bool = False
    """Its characters are those that it may match, not that it does."""


def _reaches(atoms: Sequence[_Atom], left: frozenset[str], right: frozenset[str]) -> bool:
    """Whether a match may hold a character of `left` before one of `right`, or look over the bound between them."""
    before = False
    for atom in atoms:
        if atom.ahead and any(other.chars & left for other in atoms):
            return True
        starts, ends = bool(atom.chars & right), bool(atom.chars & left)
        if starts and (before or (ends and atom.many)):
            return True
        before = ends or (before and (atom.optional or atom.ahead))
    return False


def _surely_matched(atoms: Sequence[_Atom]) -> frozenset[str]:
    """The characters with which a match begins whatever follows."""
    needed = [i for i, atom in enumerate(atoms) if not atom.optional]
    if len(needed) != 1 or atoms[needed[0]].group or any(atom.ahead for atom in atoms):
        return frozenset()
    return atoms[needed[0]].chars - frozenset().union(*(atom.chars for atom in atoms[: needed[0]])) - _WORDS


_QUANTIFIER = re.compile(r"([?*+]|\{\d+(?:,\d*)?\})(\+?)(\??)")
_ESCAPE = re.compile(r"\\(?:p\{([A-Z][a-z]?)\}|(.))", re.DOTALL)


def _alternatives(pattern: str, at: int, any_case: bool) -> tuple[list[list[_Atom]], int]:
    """Up to the end or an unpaired `)`."""
    found: list[list[_Atom]] = [[]]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            found.append([])
            at += 1
            continue
        atom, at = _atom(pattern, at)
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier:
            if quantifier[3] or atom.ahead:
                raise _Unclear  # lazy: how much it takes depends on what follows
            said, more = quantifier[1], quantifier[2]
            many = said not in ("?", "{1}", "{0,1}") or bool(more and said[0] == "{")  # ?+ is possessive, {1}+ repeats
            atom = replace(atom, many=many, optional=said[0] in "?*" or said.startswith("{0"))
            at = quantifier.end()
        if any_case:
            cases = {d for c in atom.chars for d in (c.lower(), c.upper())} & _ASCII
            atom = replace(atom, chars=atom.chars | cases | _WORDS)
        found[-1].append(atom)
    for atoms in found:
        if all(atom.optional or atom.ahead for atom in atoms):
            raise _Unclear  # may match nothing
        if any(atom.ahead for atom in atoms[:-1]):
            raise _Unclear
    return found, at


def _atom(pattern: str, at: int) -> tuple[_Atom, int]:
    if pattern.startswith(r"(?!\S)", at):
        return _Atom(frozenset(), ahead=True), at + 6
    c = pattern[at]
    if c == "$":
        return _Atom(frozenset(), ahead=True), at + 1
    if c == "[":
        return _class(pattern, at + 1)
    if c == "\\":
        return _escape(pattern, at)
    if c == "(":
        opening = re.compile(r"\((?:\?(i?):)?").match(pattern, at)
        if opening is None or pattern[opening.end()] == "?":
            raise _Unclear
        inner, end = _alternatives(pattern, opening.end(), bool(opening[1]))
        if pattern[end] != ")" or any(atom.ahead for atoms in inner for atom in atoms):
            raise _Unclear
        chars = frozenset().union(*(atom.chars for atoms in inner for atom in atoms))
        several = any(len(atoms) > 1 or atoms[0].many for atoms in inner)
        if several and chars & BLANKS[0] and chars & (BLANKS[1] | MARKS[1]):
            raise _Unclear  # its atoms would have to be looked at one by one
        return _Atom(chars, group=True), end + 1
    if c in ".^*+?{}]":
        raise _Unclear
    return _literal(c), at + 1


def _literal(c: str) -> _Atom:
    return _Atom(frozenset(c) if c in _ASCII else _WORDS)


def _escape(pattern: str, at: int) -> tuple[_Atom, int]:
    found = _ESCAPE.match(pattern, at)
    if found is None:
        raise _Unclear
    family, c = found[1], found[2]
    if family:
        if family[0] not in "LNMPS":
            raise _Unclear
        chars = frozenset(c for c in _ASCII if unicodedata.category(c).startswith(family))
        return _Atom(chars | _WORDS), found.end()
    named = {
        "s": _SPACE,
        "S": _ASCII - _SPACE | _WORDS,
        "d": frozenset("0123456789") | _WORDS,
        "w": _ALNUM | {"_"} | _WORDS,
        **{letter: frozenset(char) for letter, char in zip("rntfv", "\r\n\t\f\v", strict=True)},
    }
    if c in named:
        return _Atom(named[c]), found.end()
    if c.isalnum():
        raise _Unclear
    return _literal(c), found.end()


def _class(pattern: str, at: int) -> tuple[_Atom, int]:
    negated = pattern[at] == "^"
    chars, at = _items(pattern, at + negated)
    return _Atom((_ASCII - chars) | _WORDS if negated else frozenset(chars)), at


def _items(pattern: str, first: int) -> tuple[set[str], int]:
    chars: set[str] = set()
    at = first
    while pattern[at] != "]" or at == first:
        if pattern[at] == "[" or pattern.startswith("&&", at):
            raise _Unclear
        start = at
        item, at = _escape(pattern, at) if pattern[at] == "\\" else (_literal(pattern[at]), at + 1)
        chars |= item.chars
        if pattern[at] == "-" and pattern[at + 1] != "]":
            low, high = pattern[start], pattern[at + 1]
            if "\\" in (low, high) or low > high:
                raise _Unclear
            chars |= {c for c in _ASCII if low <= c <= high} | (_WORDS if high not in _ASCII else set())
            at += 2
    return chars, at + 1
