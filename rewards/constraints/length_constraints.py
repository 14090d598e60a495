"""IFEval `length_constraints:`: words, sentences, paragraphs."""

from __future__ import annotations

import regex

from rufus_plugins.rewards.constraints.declare import constraint, count, holds, ordinal, phrase, relation
from rufus_plugins.rewards.constraints.reading import folded, only_punctuation, words
from rufus_plugins.rewards.constraints.splitting import paragraphs, sentences

_DIVIDER = regex.compile(r"(?:^|(?<=\s))\*[ \t]?\*[ \t]?\*(?=\s|$)")


@constraint("length_constraints:number_words", num_words=count, relation=relation)
def number_words(response: str, num_words: int, relation: str) -> str | None:
    if only_punctuation(response):
        return "nothing but punctuation"
    return holds(len(words(response)), relation, num_words, "words")


@constraint("length_constraints:number_sentences", num_sentences=count, relation=relation)
def number_sentences(response: str, num_sentences: int, relation: str) -> str | None:
    if only_punctuation(response):
        return "nothing but punctuation"
    return holds(len(sentences(response)), relation, num_sentences, "sentences")


@constraint("length_constraints:number_paragraphs", num_paragraphs=count)
def number_paragraphs(response: str, num_paragraphs: int) -> str | None:
    """Paragraphs between `***` dividers. A divider may open or close the response; between two there must be text."""
    parts = _DIVIDER.split(response)
    blank = [index for index, part in enumerate(parts) if not part.strip()]
    if any(0 < index < len(parts) - 1 for index in blank):
        return "an empty paragraph between two dividers"
    found = len(parts) - len(blank)
    return None if found == num_paragraphs else f"{found} paragraphs, {num_paragraphs} are asked for"


@constraint(
    "length_constraints:nth_paragraph_first_word", num_paragraphs=count, nth_paragraph=ordinal, first_word=phrase
)
def nth_paragraph_first_word(response: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> str | None:
    """Paragraphs between blank lines: the list that is counted is the list that is indexed."""
    found = paragraphs(response)
    if len(found) != num_paragraphs:
        return f"{len(found)} paragraphs, {num_paragraphs} are asked for"
    if nth_paragraph > len(found):
        return f"there is no paragraph {nth_paragraph}"
    wanted = [folded(word) for word in words(first_word)]
    first = [folded(word) for word in words(found[nth_paragraph - 1])[: len(wanted)]]
    if wanted and (first == wanted or [word.removesuffix("'s") for word in first] == wanted):
        return None
    return f"paragraph {nth_paragraph} starts with {' '.join(first)[:80]!r}"
