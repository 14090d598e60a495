"""IFEval `change_case:`."""

from __future__ import annotations

import unicodedata

import regex

from rufus_plugins.rewards.constraints.declare import constraint, count, holds, relation
from rufus_plugins.rewards.constraints.language import not_in_language
from rufus_plugins.rewards.constraints.reading import words

_POSSESSIVE = regex.compile(r"['’]s$")


def _cases(text: str) -> tuple[bool, bool]:
    """Whether there is a capital and whether there is a small letter."""
    kinds = {unicodedata.category(c) for c in set(text)}
    return bool(kinds & {"Lu", "Lt"}), "Ll" in kinds


@constraint("change_case:english_capital")
def english_capital(response: str) -> str | None:
    capital, small = _cases(response)
    if small or not capital:
        return "has small letters" if small else "has no capital letter"
    return not_in_language(response.lower(), "en")


@constraint("change_case:english_lowercase")
def english_lowercase(response: str) -> str | None:
    capital, small = _cases(response)
    if capital or not small:
        return "has capital letters" if capital else "has no small letter"
    return not_in_language(response, "en")


@constraint("change_case:capital_word_frequency", capital_frequency=count, capital_relation=relation)
def capital_word_frequency(response: str, capital_frequency: int, capital_relation: str) -> str | None:
    """Words whose letters are all capitals: "A" and "COVID-19" are, "42" is not; a possessive 's does not matter."""
    found = 0
    for word in words(response):
        capital, small = _cases(_POSSESSIVE.sub("", word))
        found += capital and not small
    return holds(found, capital_relation, capital_frequency, "words in capitals")
