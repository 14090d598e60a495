"""IFBench `sentence:`: what sentences do one after the other."""

from __future__ import annotations

from itertools import pairwise

from rufus_plugins.rewards.constraints.declare import constraint, count, ordinal, phrase
from rufus_plugins.rewards.constraints.reading import initial, keyword_count, words
from rufus_plugins.rewards.constraints.splitting import sentences


@constraint("sentence:alliteration_increment")
def alliteration_increment(response: str) -> str | None:
    """The longest run of words with one initial grows from each sentence to the next (no two alike: a run of 0)."""
    found = [_longest_run(sentence) for sentence in sentences(response)]
    if len(found) < 2:
        return "fewer than two sentences"
    shrinks = [index for index, (one, other) in enumerate(pairwise(found)) if other <= one]
    return f"alliteration does not grow after sentence {shrinks[0] + 1}: {found[:20]}" if shrinks else None


def _longest_run(sentence: str) -> int:
    longest = run = 0
    last = ""
    for word in words(sentence):
        letter = initial(word)
        run = run + 1 if letter and letter == last else 1
        longest = max(longest, run)
        last = letter
    return longest if longest > 1 else 0


@constraint("sentence:keyword", {"keyword": "word", "nth_sentence": "N"}, word=phrase, N=ordinal)
def keyword(response: str, word: str, N: int) -> str | None:
    found = sentences(response)
    if len(found) < N:
        return f"{len(found)} sentences, so there is no sentence {N}"
    return None if keyword_count(found[N - 1], word) else f"{word!r} is not in sentence {N}"


@constraint("sentence:increment", {"increment": "small_n"}, small_n=count)
def increment(response: str, small_n: int) -> str | None:
    """Each sentence has exactly `small_n` more words than the one before."""
    found = [len(words(sentence)) for sentence in sentences(response)]
    if len(found) < 2:
        return "fewer than two sentences"
    wrong = [index for index, (one, other) in enumerate(pairwise(found)) if other != one + small_n]
    return f"sentence {wrong[0] + 2} has {found[wrong[0] + 1]} words after {found[wrong[0]]}" if wrong else None
