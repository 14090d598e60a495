"""IFEval `keywords:`: words and phrases that must, or must not, occur; letters that must."""

from __future__ import annotations

from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.rewards.constraints.declare import constraint, count, holds, phrase, phrases, relation, text
from rufus_plugins.rewards.constraints.reading import keyword_count, only_punctuation


def letter(value: Any) -> str:
    """One character; "#" and "!" occur in the data set."""
    found = text(value).strip()
    if len(found) != 1:
        raise DataError(f"needs one character, not {value!r}")
    return found


@constraint("keywords:existence", keywords=phrases)
def existence(response: str, keywords: list[str]) -> str | None:
    missing = [word for word in keywords if not keyword_count(response, word)]
    return f"missing: {', '.join(missing)}" if missing else None


@constraint("keywords:frequency", keyword=phrase, frequency=count, relation=relation)
def frequency(response: str, keyword: str, frequency: int, relation: str) -> str | None:
    if only_punctuation(response):
        return "nothing but punctuation"
    return holds(keyword_count(response, keyword), relation, frequency, f"times {keyword!r}")


@constraint("keywords:forbidden_words", forbidden_words=phrases)
def forbidden_words(response: str, forbidden_words: list[str]) -> str | None:
    if only_punctuation(response):
        return "nothing but punctuation"
    found = [word for word in forbidden_words if keyword_count(response, word)]
    return f"forbidden: {', '.join(found)}" if found else None


@constraint("keywords:letter_frequency", letter=letter, let_frequency=count, let_relation=relation)
def letter_frequency(response: str, letter: str, let_frequency: int, let_relation: str) -> str | None:
    if only_punctuation(response) and letter.isalnum():
        return "nothing but punctuation"
    number = response.casefold().count(letter.casefold())
    return holds(number, let_relation, let_frequency, f"times {letter!r}")
