"""IFEval `startend:`: the end phrase, the quotation marks around the whole."""

from __future__ import annotations

import unicodedata

from rufus_plugins.rewards.constraints.declare import constraint, phrase
from rufus_plugins.rewards.constraints.reading import CLOSERS, folded

_STRAIGHT = str.maketrans({"“": '"', "”": '"', "„": '"', "‟": '"', "＂": '"', "…": "..."})
_PAIRS = {'"': '"', "“": "”", "„": "“”", "”": "”", "«": "»", "»": "«", "＂": "＂"}


@constraint("startend:end_checker", end_phrase=phrase)
def end_checker(response: str, end_phrase: str) -> str | None:
    """Ends with the phrase; case, kind of quote and blanks are free, closing quotes and emphasis may follow."""
    wanted = " ".join(folded(end_phrase).translate(_STRAIGHT).split())
    tail = " ".join(folded(response[-(4 * len(end_phrase) + 400) :]).translate(_STRAIGHT).split())
    while True:
        if tail.endswith(wanted):
            before = tail[-len(wanted) - 1 : -len(wanted)]
            inside_word = (
                before and wanted[0].isalnum() and (before.isalnum() or unicodedata.category(before)[0] == "M")
            )
            spaced = "CJK" not in unicodedata.name(wanted[0], "")
            return "the end phrase is only the end of a word" if inside_word and spaced else None
        if not tail or tail[-1] not in CLOSERS + " ":
            return f"does not end with {end_phrase!r}"
        tail = tail[:-1]


@constraint("startend:quotation")
def quotation(response: str) -> str | None:
    """One pair of double quotes around everything: the first is not closed before the end."""
    text = response.strip()
    if len(text) < 3 or text[-1] not in _PAIRS.get(text[0], ""):
        return "not wrapped in double quotation marks"
    if not text[1:-1].strip():
        return "nothing between the quotation marks"
    opener, closers = text[0], _PAIRS[text[0]]
    depth = 1
    for index in range(1, len(text) - 1):
        char = text[index]
        if char != opener and char not in closers:
            continue
        before, after = text[index - 1], text[index + 1]
        opens = not after.isspace() and (before.isspace() or before in "([{—-")
        if char == opener and (opener not in closers or opens):
            depth += 1
        elif char in closers and (opener not in closers or not before.isspace() and not before.isdigit()):
            depth -= 1
            if depth == 0:
                return "the quotation is closed before the end"
    return None
