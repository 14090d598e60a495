"""Text normalisation for short answers: forgiving about form, strict about content.

The usual question-answering normalisation deletes every punctuation mark and article, which makes -5 and 5, 1.5 and
15, C++ and C, and "The The" and "a" the same answer. Here a mark goes only where it cannot carry meaning.
"""

from __future__ import annotations

import re
import unicodedata

_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"), "-")
_QUOTES = dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u0060\u00b4"), "'") | dict.fromkeys(
    map(ord, "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"), '"'
)
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])")
_EDGE = "\"'()[]{}.,;:!?*_`"
_ARTICLES = ("the ", "a ", "an ")


def normalise(text: str) -> str:
    """Canonical form of a short answer.

    Unicode NFKC, case folded, one blank between words, dashes and quotes in ASCII, thousands separators removed,
    punctuation removed at the *edges* of words except a sign or a decimal point before a digit, one leading article
    removed if something that is no article remains. LaTeX `\\text{...}` and markdown emphasis are opened.
    """
    text = unicodedata.normalize("NFKC", text).translate(_DASHES | _QUOTES)
    text = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = text.casefold().replace("\\%", "%").replace("$", "")
    text = _THOUSANDS.sub(lambda m: m.group(1).replace(",", ""), text)
    words = [w for w in map(_trim, text.split()) if w]
    text = " ".join(words)
    for article in _ARTICLES:
        if text.startswith(article) and (text.removeprefix(article) + " ") not in _ARTICLES:
            return text.removeprefix(article)
    return text


def _trim(word: str) -> str:
    word = word.rstrip(_EDGE)
    lead = len(word) - len(word.lstrip(_EDGE))
    if lead and word[lead - 1] == "." and lead < len(word) and word[lead].isdigit():
        lead -= 1  # .5
    return word[lead:]


def exact_match(gold: str, answer: str) -> bool:
    """Whether two short answers are the same after `normalise`."""
    answer = normalise(answer)
    return answer != "" and normalise(gold) == answer


def contains(haystack: str, needle: str) -> bool:
    """Whether the normalised needle stands in the haystack as whole words."""
    needle = normalise(needle)
    return needle != "" and f" {needle} " in f" {normalise(haystack)} "
