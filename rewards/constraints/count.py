"""IFBench `count:`: words, numbers, names, marks that are counted."""

from __future__ import annotations

import regex

from rufus_plugins.rewards.constraints.declare import constraint, count, ordinal, phrase
from rufus_plugins.rewards.constraints.reading import folded, keyword_count, tokens, words

NAMES = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia "
    "Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob "
    "Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora "
    "Andrew Aria Joseph Claire Ryan Stella Jonathan"
).split()
"""The names that the request lists."""
CONJUNCTIONS = frozenset("for and nor but or yet so".split())
PRONOUNS = frozenset(
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers "
    "herself it its itself they them their theirs themselves themself".split()
)
"""Personal, possessive and reflexive pronouns."""
_CONTRACTION = regex.compile(r"'(?:m|re|ve|ll|d|s)$")
_NUMBER = regex.compile(
    r"\d{4}-\d\d?-\d\d?(?!\d)"  # a date
    r"|\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?"  # 1,000,000.5
    r"|\d+(?:[.:/’'٫٬]\d+)*+"  # 3.14, 10:30, 1/2
)
_LETTERS = regex.compile(r"[\p{L}\p{M}]+")
_JAPANESE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}ー]")
_INTERROBANG = regex.compile(r"‽|[?？][!！]|[!！][?？]|⁈|⁉")
_MARKS = {".": ".。．", ",": ",，、", "!": "!！", "?": "?？", ";": ";；", ":": ":："}


def _is_range(min_words: int, max_words: int) -> str | None:
    return None if min_words <= max_words else f"min_words {min_words} is above max_words {max_words}"


@constraint("count:word_count_range", _fits=_is_range, min_words=count, max_words=count)
def word_count_range(response: str, min_words: int, max_words: int) -> str | None:
    found = len(words(response))
    return None if min_words <= found <= max_words else f"{found} words, {min_words} to {max_words} are asked for"


@constraint("count:unique_word_count", {"num_unique_words": "N"}, N=count)
def unique_word_count(response: str, N: int) -> str | None:
    found = len({folded(word) for word in words(response)})
    return None if found >= N else f"{found} different words, at least {N} are asked for"


@constraint("count:conjunctions", {"num_conjunctions": "small_n"}, small_n=count)
def conjunctions(response: str, small_n: int) -> str | None:
    found = CONJUNCTIONS.intersection(folded(word) for word in words(response))
    return (
        None if len(found) >= small_n else f"{len(found)} coordinating conjunctions, at least {small_n} are asked for"
    )


@constraint("count:person_names", {"num_names": "N"}, N=count)
def person_names(response: str, N: int) -> str | None:
    """Different names of the list, as whole words with a capital: "Mia" is not in "Miami"."""
    given = set(_LETTERS.findall(response))
    found = sum(1 for name in NAMES if name in given or name.upper() in given)
    return None if found >= N else f"{found} names of the list, at least {N} are asked for"


@constraint("count:numbers", {"num_numbers": "N"}, N=count)
def numbers(response: str, N: int) -> str | None:
    """Numbers in digits: 1,000 and 3.14 and 10:30 are one each, 3-5 is two, "1,2" is two."""
    found = len(_NUMBER.findall(response))
    return None if found == N else f"{found} numbers, {N} are asked for"


@constraint("count:punctuation")
def punctuation(response: str) -> str | None:
    """Each of . , ! ? ; : and an interrobang, which does not stand for the ! and ? it is made of."""
    if not _INTERROBANG.search(response):
        return "no interrobang"
    rest = response.replace("‽", "") if "‽" in response else _INTERROBANG.sub("", response, count=1)
    missing = [mark for mark, forms in _MARKS.items() if not any(form in rest for form in forms)]
    return f"missing: {' '.join(missing)}" if missing else None


@constraint("count:words_japanese", N=ordinal)
def words_japanese(response: str, N: int) -> str | None:
    """Every Nth of the parts between blanks holds Japanese characters, or is a number."""
    found = tokens(response)[N - 1 :: N]
    if not any(_JAPANESE.search(word) for word in found):
        return f"no {N}th word in Japanese"
    wrong = [word for word in found if not _JAPANESE.search(word) and not word.isdigit()]
    return f"not Japanese: {wrong[0]}" if wrong else None


@constraint("count:pronouns", {"num_pronouns": "N"}, N=count)
def pronouns(response: str, N: int) -> str | None:
    """All occurrences; the pronoun of a contraction ("I'm") counts."""
    found = 0
    for word in words(response):
        word = folded(word)
        found += (
            sum(part in PRONOUNS for part in word.split("-")) if "-" in word else _CONTRACTION.sub("", word) in PRONOUNS
        )
    return None if found >= N else f"{found} pronouns, at least {N} are asked for"


@constraint(
    "count:keywords_multiple", keyword1=phrase, keyword2=phrase, keyword3=phrase, keyword4=phrase, keyword5=phrase
)
def keywords_multiple(response: str, **keywords: str) -> str | None:
    """The five keywords exactly 1, 2, 3, 5 and 7 times, as whole words."""
    for (_, word), wanted in zip(sorted(keywords.items()), (1, 2, 3, 5, 7), strict=True):
        found = keyword_count(response, word)
        if found != wanted:
            return f"{found} times {word!r}, {wanted} are asked for"
    return None
