"""IFBench `ratio:`: shares of words, kinds of sentences, overlap."""

from __future__ import annotations

from rufus_plugins.rewards.constraints.declare import constraint, percent, text
from rufus_plugins.rewards.constraints.reading import folded, words
from rufus_plugins.rewards.constraints.splitting import kind, sentences
from rufus_plugins.rewards.constraints.stop_words import is_stop_word


@constraint("ratio:stop_words", {"max_percent": "percentage"}, percentage=percent)
def stop_words(response: str, percentage: float) -> str | None:
    found = [folded(word) for word in words(response)]
    if not found:
        return "no words"
    share = 100 * sum(is_stop_word(word) for word in found) / len(found)
    return None if share <= percentage else f"{share:.1f} % stop words, at most {percentage:g} % are asked for"


@constraint("ratio:sentence_type")
def sentence_type(response: str) -> str | None:
    """Two statements for each question; other sentences do not count."""
    kinds = [kind(sentence) for sentence in sentences(response)]
    statements, questions = kinds.count("."), kinds.count("?")
    if questions and statements == 2 * questions:
        return None
    return f"{statements} statements and {questions} questions, not 2:1"


@constraint("ratio:sentence_balance")
def sentence_balance(response: str) -> str | None:
    kinds = [kind(sentence) for sentence in sentences(response)]
    numbers = [kinds.count(mark) for mark in ".?!"]
    if numbers[0] and len(set(numbers)) == 1:
        return None
    return "{} statements, {} questions, {} exclamations: not balanced".format(*numbers)


@constraint("ratio:overlap", {"reference": "reference_text"}, reference_text=text, percentage=percent)
def overlap(response: str, reference_text: str, percentage: float) -> str | None:
    """Share of the response's different word trigrams that occur in the reference, within 2 points."""
    own, reference = _trigrams(response), _trigrams(reference_text)
    if not own:
        return "fewer than three words"
    share = 100 * len(own & reference) / len(own)
    # a millionth of a point for the rounding of the division
    return None if abs(share - percentage) <= 2 + 1e-6 else f"{share:.1f} % overlap, {percentage:g} % is asked for"


def _trigrams(of: str) -> set[tuple[str, ...]]:
    found = [folded(word) for word in words(of)]
    return set(zip(found, found[1:], found[2:], strict=False))


@constraint("ratio:sentence_words")
def sentence_words(response: str) -> str | None:
    """Three sentences of one length in characters, in which no word comes twice."""
    found = sentences(response)
    if len(found) != 3:
        return f"{len(found)} sentences, not three"
    lengths = [len(sentence) for sentence in found]
    if len(set(lengths)) != 1:
        return f"{', '.join(map(str, lengths))} characters, not one length"
    used = [folded(word) for sentence in found for word in words(sentence)]
    twice = sorted({word for word in used if used.count(word) > 1}) if len(used) < 2000 else []
    return f"more than once: {', '.join(twice)}" if twice or len(set(used)) != len(used) else None
