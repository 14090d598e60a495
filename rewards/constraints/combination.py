"""IFEval `combination:`: two responses, the request repeated."""

from __future__ import annotations

import regex

from rufus_plugins.rewards.constraints.declare import constraint, phrase
from rufus_plugins.rewards.constraints.reading import folded, words

_SIX = regex.compile(r"(?<!\*)\*{6}(?!\*)")
_WORDLIKE = regex.compile(r"[\p{L}\p{N}]")


@constraint("combination:two_responses")
def two_responses(response: str) -> str | None:
    """Two parts between six asterisks that differ in more than case, blanks and punctuation."""
    parts = _SIX.split(response)
    inner = parts[1:-1]
    if any(not part.strip() for part in inner):
        return "an empty response between two separators"
    kept = [part for part in parts if part.strip()]
    if len(kept) != 2:
        return f"{len(kept)} responses separated by six asterisks, not two"
    first, second = ([folded(word) for word in words(part)] or part.split() for part in kept)
    return "the two responses are the same" if first == second else None


@constraint("combination:repeat_prompt", prompt_to_repeat=phrase)
def repeat_prompt(response: str, prompt_to_repeat: str) -> str | None:
    """The response opens with the request, word for word (case and kind of blank are free), and an answer follows."""
    body = r"\s++".join(regex.escape(part) for part in folded(prompt_to_repeat).split())
    text = folded(response.strip())
    found = regex.compile(body).match(text)
    if not found:
        return "does not begin with the request"
    rest = text[found.end() :]
    if prompt_to_repeat[-1].isalnum() and rest[:1].isalnum():
        return "does not begin with the request"
    return None if _WORDLIKE.search(rest) else "no answer after the request"
