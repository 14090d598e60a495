"""IFBench `words:`: rules about each word, or about words one after the other."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import regex

from rufus_plugins.rewards.constraints.declare import constraint, count, ordinal, phrase
from rufus_plugins.rewards.constraints.reading import folded, initial, letters, unaccented, words
from rufus_plugins.rewards.constraints.splitting import paragraphs, sentences
from rufus_plugins.rewards.constraints.syllables import syllables
from rufus_plugins.rewards.constraints.verbs import starts_with_verb

_CLUSTER = regex.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
_PALINDROMES = 10
_PALINDROME_LENGTH = 5


@constraint("words:alphabet")
def alphabet(response: str) -> str | None:
    """Each word starts with the letter after that of the word before; A follows Z. Any letter may begin."""
    found = [initial(word) for word in words(response)]
    wrong = [letter for letter in found if not "a" <= letter <= "z"]
    if wrong or len(found) < 2:
        return f"a word starts with {wrong[0]!r}" if wrong else "fewer than two words"
    for index, (one, other) in enumerate(pairwise(found)):
        if (ord(other) - ord(one)) % 26 != 1:
            return f"word {index + 2} starts with {other!r} after {one!r}"
    return None


@constraint("words:vowel")
def vowel(response: str) -> str | None:
    """One paragraph (no blank line) with at most three of the vowels a, e, i, o, u, with or without accents."""
    if len(paragraphs(response)) != 1:
        return "more than one paragraph"
    found = set("aeiou").intersection(unaccented(response).lower())
    if not found:
        return "no vowels"
    return f"{len(found)} vowels: {' '.join(sorted(found))}" if len(found) > 3 else None


@constraint("words:consonants")
def consonants(response: str) -> str | None:
    """Each word has two consonants in a row; y is one."""
    found = words(response)
    if not found:
        return "no words"
    without = [word for word in found if not _CLUSTER.search(unaccented(word).lower())]
    return f"no consonant cluster: {without[0]}" if without else None


@constraint("words:palindrome")
def palindrome(response: str) -> str | None:
    """Ten different palindromes of five letters or more; "aaaaa" and "12321" are no words."""
    found = set()
    for word in words(response):
        word = folded(letters(word))
        if len(word) >= _PALINDROME_LENGTH and word == word[::-1] and word.isalpha() and len(set(word)) > 1:
            found.add(word)
    return None if len(found) >= _PALINDROMES else f"{len(found)} palindromes, {_PALINDROMES} are asked for"


@constraint("words:prime_lengths")
def prime_lengths(response: str) -> str | None:
    """The number of letters and digits of each word is prime; those of a hyphenated word are added up."""
    found = words(response)
    if not found:
        return "no words"
    for word in found:
        length = len(letters(word))
        if length < 2 or any(length % divisor == 0 for divisor in range(2, int(length**0.5) + 1)):
            return f"{word[:80]!r} has {length} letters"
    return None


@constraint("words:start_verb")
def start_verb(response: str) -> str | None:
    return None if starts_with_verb(response) else f"does not start with a verb: {response.split()[0][:80]!r}"


@constraint("words:repeats", {"max_repeats": "small_n"}, small_n=count)
def repeats(response: str, small_n: int) -> str | None:
    numbers = Counter(folded(word) for word in words(response))
    if not numbers:
        return "no words"
    word, number = numbers.most_common(1)[0]
    return None if number <= small_n else f"{number} times {word!r}, at most {small_n} are asked for"


@constraint("words:odd_even_syllables")
def odd_even_syllables(response: str) -> str | None:
    """Words with an odd and an even number of syllables take turns; a word that is said in two ways may be either."""
    parities = [{number % 2 for number in syllables(word)} for word in words(response)]
    if len(parities) < 2:
        return "fewer than two words"
    for first in (0, 1):
        if all((first + index) % 2 in parity for index, parity in enumerate(parities)):
            return None
    return "odd and even numbers of syllables do not alternate"


@constraint("words:last_first")
def last_first(response: str) -> str | None:
    """The last word of each sentence is the first of the next."""
    found = [words(sentence) for sentence in sentences(response)]
    found = [sentence for sentence in found if sentence]
    if len(found) < 2:
        return "fewer than two sentences"
    for one, other in pairwise(found):
        if folded(one[-1]) != folded(other[0]):
            return f"{other[0][:80]!r} begins the sentence after {one[-1][:80]!r}"
    return None


@constraint("words:paragraph_last_first")
def paragraph_last_first(response: str) -> str | None:
    """Each line with words ends with the word it began with, and has more than that one word."""
    found = [line for line in map(words, response.split("\n")) if line]
    if not found:
        return "no words"
    for index, line in enumerate(found):
        if len(line) < 2 or folded(line[0]) != folded(line[-1]):
            return f"paragraph {index + 1} begins with {line[0][:80]!r} and ends with {line[-1][:80]!r}"
    return None


@constraint("words:no_consecutive")
def no_consecutive(response: str) -> str | None:
    """No word has the initial of the word before, wherever a line or sentence ends."""
    found = words(response)
    if not found:
        return "no words"
    for one, other in pairwise(found):
        if initial(one) == initial(other):
            return f"{one[:80]} {other[:80]}"
    return None


@constraint("words:keywords_specific_position", keyword=phrase, n=ordinal, m=ordinal)
def keywords_specific_position(response: str, keyword: str, n: int, m: int) -> str | None:
    """The keyword is word `m` of sentence `n`."""
    found = sentences(response)
    if len(found) < n:
        return f"{len(found)} sentences, so there is no sentence {n}"
    line = words(found[n - 1])
    if len(line) < m:
        return f"sentence {n} has {len(line)} words"
    return None if _is(line, m - 1, keyword) else f"word {m} of sentence {n} is {line[m - 1][:80]!r}"


@constraint("words:words_position", keyword=phrase)
def words_position(response: str, keyword: str) -> str | None:
    """The keyword is the second word and the second to last."""
    found = words(response)
    if len(found) < 3:
        return "fewer than three words"
    if _is(found, 1, keyword) and _is(found, len(found) - 2, keyword):
        return None
    return f"the second words are {found[1][:80]!r} and {found[-2][:80]!r}"


def _is(found: list[str], index: int, keyword: str) -> bool:
    wanted = [folded(word) for word in words(keyword)] or [folded(keyword)]
    return [folded(word) for word in found[index : index + len(wanted)]] == wanted
