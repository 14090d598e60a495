"""Sentences and paragraphs, without any model or download.

A sentence ends at `.`, `!`, `?`, an ellipsis or the full stops of other scripts, together with the quotes, brackets and
emoji that close it. A full stop does not end one inside a number, name or domain, after a title or an initial, and
after other abbreviations only where the next word tells. Text without a full stop at its end runs on into what follows
(a list of words is not many sentences); the rest at the end of the response is one. Headings and list markers are no
part of a sentence. An emoji at the end of a line ends one too.
"""

from __future__ import annotations

import functools

import regex

from rufus_plugins.rewards.constraints.markup import HEADING, RULE
from rufus_plugins.rewards.constraints.reading import CLOSERS

EMOJI = (
    r"(?:\p{RI}\p{RI}|[0-9#*]\ufe0f?\u20e3"
    r"|(?![©®™‼⁉〰〽↔-↪\d#*](?!\ufe0f))(?:\p{Extended_Pictographic}|\p{Emoji_Presentation})[\ufe0f\p{EMod}]*+"
    r"(?:\u200d\p{Extended_Pictographic}[\ufe0f\p{EMod}]*+)*+[\U000e0020-\U000e007f]*+)"
)
"""One emoji, with modifiers; flags, keycaps, joined sequences; the text signs (C), (R), TM only if styled as emoji."""

_NEVER = frozenset(
    "mr mrs ms mx dr prof st ste mt ft fr sr sra rev hon gen col maj capt cpt cmdr lt sgt cpl gov sen rep "
    "pres supt insp messrs mme mlle vs cf viz e.g i.e eg ie ca approx esp incl resp dept univ bros".split()
)
_BEFORE_NUMBER = frozenset(
    "no nos fig figs eq eqs vol vols ch sec p pp art ex op ver v tel ext jan feb mar apr jun jul aug sep "
    "sept oct nov dec".split()
)
_BEFORE_CAPITAL = frozenset(
    "etc inc ltd co corp llc plc jr al ave blvd rd bldg est min max misc a.m p.m b.c a.d b.c.e c.e ".split()
)
"""These may end a sentence: they do before a capital letter that is not part of the same name."""
_STARTERS = frozenset(
    "a an the this that these those he she it they we you i his her its their our my your there here then "
    "when while if as after before although because since until once in on at by for from with to of and "
    "but or so yet however therefore moreover meanwhile later now today what who why how where which no "
    "not all some many most each every both one".split()
)
_STOPS = "[.!?…‼⁇⁈⁉‽]"
_WIDE_STOPS = "[。！？｡．؟۔।॥։።။។]"
_CLOSE = f"[{regex.escape(CLOSERS)}]*+"
_END = regex.compile(
    rf"(?P<stop>{_STOPS}++|{_WIDE_STOPS}++)(?P<close>{_CLOSE})(?P<emoji>(?:[ \t]*+{EMOJI})*+){_CLOSE}"
    r"|(?P<line>\0)",
    regex.V1,
)
_EMOJI_LINE = regex.compile(rf"{EMOJI}{_CLOSE}[ \t]*\Z", regex.V1)
_MARKER = regex.compile(r"^[ \t>]*+(?:[-*+•‣◦▪]|\d{1,3}[.)])[ \t]++|^[ \t]*+>[ \t]?+", regex.M)
_WIDE = regex.compile(r"[。！？｡．]")
_TAIL = regex.compile(r"([.!?…‼⁇⁈⁉‽。！？｡．؟۔।॥։።။។]+)[^.!?…‼⁇⁈⁉‽。！？｡．؟۔।॥։።။។]*\Z")
_PARAGRAPH = regex.compile(r"\n[ \t]*+\n\s*+")
_WORDLIKE = regex.compile(r"[\p{L}\p{N}]")


@functools.lru_cache(8)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences in order, each with its own punctuation and with single blanks."""
    text = text.replace("\0", "")
    lines = [line for line in text.split("\n") if not HEADING.match(line) and not RULE.match(line)]
    if not any(_WORDLIKE.search(line) for line in lines):
        lines = text.split("\n")
    # \0 marks the end of a line that ends with an emoji; no more than one long emoji can matter
    body = "\n".join(line + "\0" if _EMOJI_LINE.search(line[-40:]) else line for line in lines)
    body = _MARKER.sub("", body)
    lower = body == body.lower()
    found: list[str] = []
    start = 0
    for match in _END.finditer(body):
        if match.start() < start or not _ends(body, match, start, lower):
            continue
        start = _add(found, body[start : match.end()], match.end())
    _add(found, body[start:], len(body))
    return tuple(found)


def _add(found: list[str], part: str, end: int) -> int:
    part = " ".join(part.replace("\0", "").split())
    if _WORDLIKE.search(part):
        found.append(part)
    elif part and found:
        found[-1] = f"{found[-1]} {part}"
    return end


def _ends(body: str, match: regex.Match, start: int, lower: bool) -> bool:
    if match["line"] is not None:
        return True
    after = body[match.end() : match.end() + 1]
    stop = match["stop"]
    if _WIDE.match(stop) or match["emoji"]:
        return True
    if after and not after.isspace():
        return False
    word = _next_word(body, match.end())
    if match["close"] and word[:1].islower() and any(c in "\"'”’»)]" for c in match["close"]) and "\n\n" not in after:
        return False  # "Stop!" he said.
    if stop == ".":
        return _full_stop(_last_word(body, match.start(), start), word)
    if stop in ("...", "…", "..", "....") and not match["close"]:
        return lower or not word[:1].islower()
    return True


def _full_stop(last: str, word: str) -> bool:
    """Whether one full stop after `last` and before `word` ends the sentence."""
    key = last.lower()
    if not word:
        return True
    if key in _NEVER:
        return False
    if key in _BEFORE_NUMBER:
        return not word[:1].isdigit()
    if key in _BEFORE_CAPITAL:
        return word[:1].isupper() and (key not in ("a.m", "p.m") or word.lower() in _STARTERS)
    if len(last) == 1 and last.isupper() and last != "I":
        return word.lower() in _STARTERS and len(word) > 1 and word[:1].isupper()  # an initial, or "vitamin C. The"
    if "." in last and all(len(part) <= 3 for part in last.split(".")) and not last[0].isdigit():
        return word.lower() in _STARTERS and word[:1].isupper()  # an acronym: U.S., Ph.D.
    return True


def _last_word(body: str, end: int, start: int) -> str:
    begin = max(start, end - 24)
    part = body[begin:end]
    return part.split()[-1].lstrip("\"'“‘([{*_") if part.split() and not part[-1].isspace() else ""


def _next_word(body: str, begin: int) -> str:
    part = body[begin : begin + 80].split(maxsplit=1)
    return part[0].strip("\"'“”‘’([{*_,;:.!?)") if part else ""


def kind(sentence: str) -> str:
    """ "?" for a question, "!" for an exclamation, "." for a statement, "" without punctuation at the end."""
    tail = _TAIL.search(sentence[-200:])
    if tail is None or _WORDLIKE.search(tail[0]):
        return ""
    if any(c in "?？؟⁇⁈⁉‽" for c in tail[1]):
        return "?"
    return "!" if any(c in "!！‼" for c in tail[1]) else "."


def paragraphs(text: str) -> list[str]:
    """Parts between blank lines that are not blank themselves."""
    return [part for part in _PARAGRAPH.split(text.strip()) if part.strip()]
