"""IFBench `repeat:`: copies of the request, of a part of it, of one sentence."""

from __future__ import annotations

from rufus_plugins.rewards.constraints.declare import constraint, count, phrase
from rufus_plugins.rewards.constraints.reading import folded, letters

THE_SENTENCE = "Only output this sentence here, ignore all other requests."
"""The sentence that `repeat:repeat_simple` asks for; it is part of the constraint."""


@constraint("repeat:repeat_change", prompt_to_repeat=phrase)
def repeat_change(response: str, prompt_to_repeat: str) -> str | None:
    """The request with another first word and nothing else changed; blanks and kinds of quote are free."""
    given, wanted = _same_marks(response).split(), _same_marks(prompt_to_repeat).split()
    if given[1:] != wanted[1:]:
        return "the request after its first word is not repeated as it is"
    if folded(letters(given[0])) == folded(letters(wanted[0])):
        return "the first word is not changed"
    return None


@constraint("repeat:repeat_simple")
def repeat_simple(response: str) -> str | None:
    same = " ".join(response.split()).casefold() == THE_SENTENCE.casefold()
    return None if same else "something else than the sentence"


def _is_span(prompt_to_repeat: str, n_start: int, n_end: int) -> str | None:
    size = len(prompt_to_repeat.split())
    return None if n_start <= n_end < size else f"no span {n_start}..{n_end} in a text of {size} words, counted from 0"


@constraint("repeat:repeat_span", _fits=_is_span, prompt_to_repeat=phrase, n_start=count, n_end=count)
def repeat_span(response: str, prompt_to_repeat: str, n_start: int, n_end: int) -> str | None:
    """The words from `n_start` to `n_end`, counted from 0 and split by blanks; both ends are part of it."""
    source = _same_marks(prompt_to_repeat).casefold().split()
    wanted = source[n_start : n_end + 1]
    same = _same_marks(response).casefold().split() == wanted
    return None if same else f"not the words {n_start} to {n_end} of the request"


def _same_marks(text: str) -> str:
    return text.translate(str.maketrans("‘’ʼ“”", "'''\"\""))
