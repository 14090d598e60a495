"""Tells of a tokenizer whether it may be given a text in pieces that are cut before blanks.

A bound is the place between a letter, digit or ASCII punctuation mark X and the blank after it. Let a pre-tokenizer's
pattern be alternatives of atoms. If in no alternative an atom that can match an X stands before (or repeats as) one
that can match a blank, no match reaches over a bound; if one alternative is white space alone, a match begins at the
blank, so that the text is split there. Patterns look ahead only within runs of white space, and a piece that ends in X
holds its runs whole. So the left piece is split as it is with the right one after it, and the other way round,
whatever they are. BPE works within the parts, and NFC composes nothing with a blank that follows it.

This is shown from the pattern itself, so that it holds for any in the manner of GPT-2, Llama 3, Qwen, GLM, DeepSeek or
gpt-oss. What is not understood (SentencePiece's prefix, tokens that swallow the white space around them) is not cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BOUND = re.compile(r"(?<=[!-~\w])(?= )")

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of `ByteLevel(use_regex=True)`."""


def cuttable(backend: Any) -> bool:
    """Whether the ids of a text are those of its pieces, one after the other. `backend`: a `tokenizers.Tokenizer`."""
    if type(backend.model).__name__ != "BPE" or getattr(backend.model, "dropout", None):
        return False
    if backend.encode_special_tokens or backend.padding or backend.truncation or backend.post_processor is not None:
        return False
    normalizes = backend.normalizer is not None
    for token in backend.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or token.single_word or (normalizes and token.normalized):
            return False
        if BOUND.search(token.content):  # joined pieces could make one
            return False
    if normalizes and any(kind != "NFC" for kind in map(_type, _stages(backend.normalizer, "normalizers"))):
        return False
    if backend.pre_tokenizer is None:
        return False
    splits = False
    for stage in _stages(backend.pre_tokenizer, "pretokenizers"):
        kind = _type(stage)
        if kind == "ByteLevel" and not stage.get("add_prefix_space"):
            splits |= bool(stage.get("use_regex", True)) and splits_at_bounds(GPT2)
        elif kind == "Split":
            pattern = (stage.get("pattern") or {}).get("Regex")
            if pattern is None or (stage["behavior"], stage["invert"]) not in (("Isolated", False), ("Removed", True)):
                return False
            covers = splits_at_bounds(pattern)
            if covers is None or (stage["invert"] and not covers):
                return False
            splits |= covers
        elif kind != "Digits":
            return False
    return splits


def _type(stage: Mapping[str, Any]) -> str:
    return str(stage.get("type"))


def _stages(part: Any, name: str) -> list[Mapping[str, Any]]:
    state = json.loads(part.__getstate__())
    return _flat(state, name)


def _flat(state: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    if state.get("type") != "Sequence":
        return [state]
    return [stage for inner in state[name] for stage in _flat(inner, name)]


def splits_at_bounds(pattern: str) -> bool | None:
    """None: a match may reach over a bound, or the pattern is not understood. Else whether one begins at each bound."""
    try:
        found, end = _alternatives(pattern, 0)
        if end != len(pattern):
            return None
    except (_Unclear, IndexError):
        return None
    return any(len(atoms) == 1 and atoms[0].blanks_only and not atoms[0].optional for atoms in found)


class _Unclear(Exception):
    pass


@dataclass(frozen=True)
class _Atom:
    mark: bool
    """Can match an X; where False, certainly not."""
    blank: bool
    """Can match a blank; where False, certainly not."""
    many: bool = False
    optional: bool = False
    blanks_only: bool = False
    r"""\s or a blank: matches every blank."""
    ahead: bool = False
    """Says what may follow."""


_QUANTIFIER = re.compile(r"([?*+]|\{\d+(?:,\d*)?\})(\+?)(\??)")
_ESCAPE = re.compile(r"\\(?:p\{([A-Z][a-z]?)\}|(.))", re.DOTALL)


def _alternatives(pattern: str, at: int) -> tuple[list[list[_Atom]], int]:
    """Up to the end or an unpaired `)`. Raises `_Unclear` where a match could reach over a bound."""
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
            atom = _Atom(atom.mark, atom.blank, many, said[0] in "?*" or said.startswith("{0"), atom.blanks_only)
            at = quantifier.end()
        found[-1].append(atom)
    for atoms in found:
        _check(atoms)
    return found, at


def _check(atoms: Sequence[_Atom]) -> None:
    if not atoms:
        raise _Unclear  # matches nothing, anywhere
    marked = False
    for i, atom in enumerate(atoms):
        if atom.ahead and (marked or i == 0 or i + 1 < len(atoms)):
            raise _Unclear
        if atom.blank and (marked or (atom.mark and atom.many)):
            raise _Unclear
        marked |= atom.mark


def _atom(pattern: str, at: int) -> tuple[_Atom, int]:
    if pattern.startswith(r"(?!\S)", at):
        return _Atom(False, False, ahead=True), at + 6
    c = pattern[at]
    if c == "$":
        return _Atom(False, False, ahead=True), at + 1
    if c == "[":
        return _class(pattern, at + 1)
    if c == "\\":
        return _escape(pattern, at)
    if c == "(":
        opening = re.compile(r"\((?:\?i?:)?").match(pattern, at)
        if opening is None or pattern[opening.end()] == "?":
            raise _Unclear
        inner, end = _alternatives(pattern, opening.end())
        if pattern[end] != ")" or any(atom.ahead for atoms in inner for atom in atoms):
            raise _Unclear
        flat = [atom for atoms in inner for atom in atoms]
        return _Atom(any(a.mark for a in flat), any(a.blank for a in flat)), end + 1
    if c in ".^*+?{}]":
        raise _Unclear
    return _literal(c), at + 1


def _literal(c: str) -> _Atom:
    return _Atom(not c.isspace(), c == " ", blanks_only=c == " ")


def _escape(pattern: str, at: int) -> tuple[_Atom, int]:
    found = _ESCAPE.match(pattern, at)
    if found is None:
        raise _Unclear
    family, c = found[1], found[2]
    if family:
        if family[0] not in "LNMPS":
            raise _Unclear
        return _Atom(True, False), found.end()
    if c == "s":
        return _Atom(False, True, blanks_only=True), found.end()
    if c in "Sdw":
        return _Atom(True, False), found.end()
    if c in "rntfv":
        return _Atom(False, False), found.end()
    if c.isalnum():
        raise _Unclear
    return _literal(c), found.end()


def _class(pattern: str, at: int) -> tuple[_Atom, int]:
    negated = pattern[at] == "^"
    at += negated
    items: list[_Atom] = []
    first = at
    while pattern[at] != "]" or at == first:
        if pattern[at] == "[" or pattern.startswith("&&", at):
            raise _Unclear
        start = at
        item, at = _escape(pattern, at) if pattern[at] == "\\" else (_literal(pattern[at]), at + 1)
        items.append(item)
        if pattern[at] == "-" and pattern[at + 1] != "]":
            if pattern[start] == "\\" or pattern[at + 1] == "\\" or pattern[start] > pattern[at + 1]:
                raise _Unclear
            low, high = pattern[start], pattern[at + 1]
            items.append(_Atom(True, low <= " " <= high))
            at += 2
    blank = any(item.blank for item in items)
    if negated:
        return _Atom(True, not blank), at + 1
    return _Atom(any(item.mark for item in items), blank), at + 1
