"""How text is read: cleaning, words, keywords. All of it is linear in the length of the text.

Words: a maximal run of letters, marks and digits; apostrophes, hyphens, `_`, `@` and inner full stops join
("don't", "state-of-the-art", "e.g", "example.com" are one word each), dashes, slashes and blanks separate; each
character of Han, Hiragana and Katakana is a word, as word processors count them. Scripts without blanks that are not
written character by character (Thai, Khmer ...) cannot be split without a dictionary: a run is one word.
"""

from __future__ import annotations

import functools
import unicodedata

import regex

CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー々〆"
UNSPACED = CJK + r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
"""Scripts that put no blanks between words."""
APOSTROPHES = "'’ʼ＇‘`"
CLOSERS = "\"'”’»›)]}*_~`」』）】〉》＂＇“"
"""What may stand between the end of a sentence or phrase and the blank after it: `“` closes in German."""

_MARKS = regex.compile(r"(\p{M}{30})(?=\p{M})")
_INVISIBLE = regex.compile(r"[\u00ad\u200b\u2060\ufeff]|(?<=[A-Za-z])[\u200c\u200d]+(?=[A-Za-z])")
_NEWLINE = regex.compile(r"\r\n?|[\u0085\u2028\u2029]")
_JOIN = r"(?:['’ʼ＇\-‐‑_@]|(?<=\p{Lu})&(?=\p{Lu})|\.(?!(?<=\p{Ll}\.)\p{Lu}\p{L})|(?<=\d)[,:](?=\d))"
_W = rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{CJK}\ufe0f\u20e3]]"
_WORD = regex.compile(
    rf"(?:https?://|www\.)[^\s<>()\[\]]++|\d\ufe0f?\u20e3(*SKIP)(*FAIL)|[{CJK}]|{_W}++(?:{_JOIN}{_W}++)*+",
    regex.V1,
)
_CONTENT = regex.compile(r"[\p{L}\p{N}\p{S}]")
_TOKEN_EDGE = regex.compile(r"^[^\p{L}\p{M}\p{N}]++|[^\p{L}\p{M}\p{N}]++$")


def clean(text: str) -> str:
    """NFC, one kind of newline, without characters that cannot be seen.

    Runs of more than 30 marks are broken up first (the Stream-Safe Text Format of UAX 15): normalising one long run
    takes quadratic time.
    """
    text = _INVISIBLE.sub("", _NEWLINE.sub("\n", text))
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _MARKS.sub("\\1\u034f", text))


def only_punctuation(text: str) -> bool:
    """Whether there is no letter, digit, emoji or other symbol. A rule that forbids something then has no object."""
    return _CONTENT.search(text) is None


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def tokens(text: str) -> list[str]:
    """Parts between blanks, without the punctuation around them; parts without a letter or digit are left out."""
    return [token for part in text.split() if (token := _TOKEN_EDGE.sub("", part))]


def folded(word: str) -> str:
    """For comparing words: case, kind of apostrophe and kind of hyphen do not matter."""
    word = word.casefold()
    if word.isascii():
        return word
    for mark in "’ʼ＇‘":
        word = word.replace(mark, "'")
    return word.replace("‐", "-").replace("‑", "-")


def letters(word: str) -> str:
    """The letters, marks and digits of a word."""
    return word if word.isalnum() else "".join(c for c in word if c.isalnum() or unicodedata.category(c)[0] == "M")


def initial(word: str) -> str:
    """First letter or digit, lower case, without accents; "" if there is none."""
    for c in word:
        if c.isalnum():
            return unicodedata.normalize("NFKD", c)[0].casefold()[:1]
    return ""


def unaccented(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


@functools.lru_cache(512)
def _keyword(phrase: str, case: bool) -> regex.Pattern:
    parts = folded(phrase).split() if not case else phrase.split()
    body = r"\s++".join(
        "".join("[-‐‑]" if c == "-" else f"[{APOSTROPHES}]" if c == "'" else regex.escape(c) for c in part)
        for part in parts
    )
    word = rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]"
    free = regex.compile(rf"[{UNSPACED}\p{{Hangul}}]|[^\p{{L}}\p{{M}}\p{{N}}]", regex.V1)
    if not free.match(parts[0][0]):
        tail = rf"(?<!{word}['’])" if parts[0] in ("s", "t", "d", "m", "ll", "re", "ve") else ""
        body = rf"(?<!{word})(?<!{word}_){tail}{body}"
    if not free.match(parts[-1][-1]):
        body = rf"{body}(?!{word})(?!_{word})(?!['’]t(?!{word}))"
    elif parts[-1][-1].isalnum():
        body = rf"{body}(?!\p{{M}})"
    return regex.compile(body, regex.V1)


def keyword_count(text: str, phrase: str, case: bool = False) -> int:
    """How often a word or phrase occurs as such: "art" does not in "start", nor "can" in "can't".

    Case does not matter unless `case`; any blanks separate the words of a phrase. In scripts without blanks between
    words, and in Korean, whose particles are attached, any occurrence counts.
    """
    pattern = _keyword(phrase, case)
    return sum(1 for _ in pattern.finditer(text if case else folded_text(text)))


@functools.lru_cache(8)
def folded_text(text: str) -> str:
    return folded(text)
