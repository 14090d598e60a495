"""Texts as hashed words and n-grams, equal in every process: what decontamination and deduplication compare.

Normalisation: HTML's entities read, Unicode compatibility forms (NFKD), case folded, marks, invisible characters and
apostrophes dropped, digits of any script as ASCII, letters that look like Latin ones as these, everything that is no
letter or digit a blank. In scripts that write no blanks between
words (Han, kana, Thai, Lao, Khmer, Burmese) a character is a word.

A word is 64 bits of BLAKE2b, an n-gram the polynomial of its words modulo 2^64, computed for a whole batch at once.
"""

from __future__ import annotations

import hashlib
import html
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

BASE = 0x9E3779B97F4A7C15
"""Odd, so that no word is lost modulo 2^64. Ours."""
SEPARATOR = np.uint64(0xD1B54A32D192ED03)
"""Stands between streams as a word that no text has."""
MOST_WORDS = 1 << 20
"""Distinct words whose hashes are kept, some 150 MB; then the memory starts anew. Ours."""

_APOSTROPHES = "'\u2019\u2018\u02bc\u02b9\u2032"
_ASCII = bytes(
    ord(chr(c).lower()) if c < 128 and chr(c).isalnum() else 32 for c in range(256)
)  # fmt: skip
_ALIKE = dict(
    zip("аеорсухіјѕһԁԛԝвкмнтӏ" + "αεικνορτυχϲ" + "ı", "aeopcyxijshdqwbkmhtl" + "aeiknoptuxc" + "i", strict=True)
)
"""Cyrillic and Greek letters, folded, that stand in for Latin ones where somebody hides a text. It changes real Russian
and Greek on both sides alike. Ours."""
_UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0x20000, 0x3FFFF),
)  # fmt: skip


class _Letters(dict[int, str | None]):
    """What becomes of a character, found out once."""

    def __missing__(self, code: int) -> str | None:
        letter, kind = chr(code), unicodedata.category(chr(code))
        if letter in _ALIKE:
            made = _ALIKE[letter]
        elif letter in _APOSTROPHES or kind in ("Mn", "Me", "Cf"):
            made = None
        elif letter.isdecimal():
            made = str(unicodedata.decimal(letter))
        elif kind[0] not in "LN" and kind != "Mc":
            made = " "
        elif any(first <= code <= last for first, last in _UNSPACED):
            made = f" {letter} "
        else:
            made = letter
        self[code] = made
        return made


_LETTERS = _Letters()


def words(text: str) -> list[bytes]:
    """The normalised words of a text, in UTF-8."""
    if "&" in text:
        text = html.unescape(text)
    if text.isascii():
        return text.encode("ascii").translate(_ASCII, b"'").split()
    # folding can bring back composed letters (U+0390 and its like), hence twice
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return folded.translate(_LETTERS).encode("utf-8").split()


class _Words(dict[bytes, int]):
    def __missing__(self, word: bytes) -> int:
        if len(self) >= MOST_WORDS:
            self.clear()
        made = int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")
        if len(word) <= 64:  # longer ones are hardly seen twice
            self[word] = made
        return made


_WORDS = _Words()


def word_hashes(text: str) -> np.ndarray:
    """One `uint64` per word."""
    return hashes_of(words(text))


def hashes_of(found: Sequence[bytes]) -> np.ndarray:
    """The same for words that are at hand."""
    return np.fromiter(map(_WORDS.__getitem__, found), dtype=np.uint64, count=len(found))


def grams(hashes: np.ndarray, n: int) -> np.ndarray:
    """The hashes of all n-grams of a stream of words, `uint64[max(len - n + 1, 0)]`; doubling, not n passes."""
    count = len(hashes) - n + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    made: np.ndarray | None = None
    length, power, width = 0, hashes, 1
    while True:
        if n & 1:
            if made is None:
                made = power[:count]
            else:
                made = made * np.uint64(pow(BASE, width, 1 << 64)) + power[length : length + count]
            length += width
        n >>= 1
        if not n:
            return made
        power = power[:-width] * np.uint64(pow(BASE, width, 1 << 64)) + power[width:]
        width *= 2


def whole(hashes: np.ndarray) -> int:
    """The hash of all words of a text; that of an n-gram of its length."""
    return int(grams(hashes, len(hashes))[0]) if len(hashes) else 0


def mixed(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """A pseudo-random permutation of 64-bit values (the finaliser of SplitMix64); for sampling."""
    made = values + np.uint64((seed * BASE + BASE) % (1 << 64))
    made = (made ^ (made >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    made = (made ^ (made >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return made ^ (made >> np.uint64(31))


def digest(text: str) -> str:
    """Names a text without showing it: BLAKE2b of its normalised words."""
    return hashlib.blake2b(b" ".join(words(text)), digest_size=16).hexdigest()


def stream_of(turns: Sequence[np.ndarray], roles: Sequence[Any], n: int) -> list[np.ndarray]:
    """The streams in which n-grams of a conversation are looked for, separated by `SEPARATOR`.

    First the conversation as it stands: an n-gram may run over from one turn into the next. Then, for each role that
    speaks again after another, the ends of its turns joined: a question that the user asks in two turns with an answer
    in between is found where it was cut.
    """
    if len(turns) < 2:
        return list(turns)
    streams: list[np.ndarray] = [*turns]
    if len(turns) > 2:
        bar = np.array([SEPARATOR])
        for role in dict.fromkeys(roles):
            own = [i for i, other in enumerate(roles) if other == role]
            if len(own) < 2 or own[-1] - own[0] == len(own) - 1:
                continue
            for place, i in enumerate(own):
                turn = turns[i]
                if len(turn) < 2 * n:
                    streams.append(bar if not place else turn[:0])
                    streams.append(turn)
                else:
                    streams += [bar, turn[-(n - 1) :]] if not place else [turn[: n - 1], bar, turn[-(n - 1) :]]
    return streams
