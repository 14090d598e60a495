"""IFEval `detectable_content:`: placeholders and postscripts."""

from __future__ import annotations

import regex

from rufus_plugins.rewards.constraints.declare import constraint, count, phrase

_PLACEHOLDER = regex.compile(r"(?<![\w\]])\[([^\[\]\n]*)\](?!\(|\[|:)")
_TASK = regex.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\[[ xX]\]", regex.M)
_LETTER = regex.compile(r"\p{L}")


@constraint("detectable_content:number_placeholders", num_placeholders=count)
def number_placeholders(response: str, num_placeholders: int) -> str | None:
    """`[address]`: letters in square brackets; no link, task box, footnote, citation number or index of an array."""
    found = [part for part in _PLACEHOLDER.findall(_TASK.sub("", response)) if _LETTER.search(part) and part[0] != "^"]
    if len(found) >= num_placeholders:
        return None
    return f"{len(found)} placeholders, at least {num_placeholders} are asked for"


@constraint("detectable_content:postscript", postscript_marker=phrase)
def postscript(response: str, postscript_marker: str) -> str | None:
    """The marker opens a line or follows a blank, and something follows it; case and blanks in it are free."""
    letters = [c for c in postscript_marker.casefold() if not c.isspace()]
    if letters and all(c.isalpha() or c == "." for c in letters):
        stops = r"\s?".join(r"\." if c == "." else regex.escape(c) for c in letters)
        ending = r"\.?" if letters[-1] != "." else ""
        body = stops + ending + r"(?!\p{L})"
    else:
        body = r"\s++".join(regex.escape(part) for part in postscript_marker.casefold().split())
    found = regex.compile(rf"(?:^|(?<=[\s*_>(\[\"“#]))(?<!(?:^|\W)p\.\s?){body}").finditer(response.casefold())
    for match in found:
        if regex.compile(r"[\p{L}\p{N}]").search(response.casefold(), match.end()):
            return None
        break
    return f"no postscript {postscript_marker!r}"
