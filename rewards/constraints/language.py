"""IFEval `language:response_language`, and the language check behind `change_case`.

Three cues, none of them random, so that one text has one verdict:

1. script: most of the letters are in the scripts that the language is written in. Where a script has one language
   (Thai, Tamil, Hangul ...), that decides; kana tell Japanese from Chinese;
2. the commonest words of the language, which decide for a few words ("Hello world");
3. py3langid's naive Bayes n-gram model among the languages of that script.

A passage of a dozen words or more that is clearly in another language counts against the response if such passages
make up more than a tenth of it (ours). Code, links and tags are left out.
"""

from __future__ import annotations

import functools
from typing import Any

import regex

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.rewards.constraints.common_words import COMMON
from rufus_plugins.rewards.constraints.declare import constraint
from rufus_plugins.rewards.constraints.markup import fences, without_code_spans
from rufus_plugins.rewards.constraints.reading import folded, words

_SCRIPTS = {
    "Arabic": "ar fa ps ug ur", "Cyrillic": "be bg kk ky mk mn ru sr uk", "Devanagari": "hi mr ne",
    "Han": "zh ja", "Bengali": "bn as", "Hangul": "ko", "Hebrew": "he", "Greek": "el", "Thai": "th", "Tamil": "ta",
    "Telugu": "te", "Kannada": "kn", "Gujarati": "gu", "Gurmukhi": "pa", "Malayalam": "ml", "Georgian": "ka",
    "Armenian": "hy", "Khmer": "km", "Lao": "lo", "Oriya": "or", "Sinhala": "si", "Ethiopic": "am", "Tibetan": "dz",
}  # fmt: skip
_LATIN = (
    "af an az br bs ca cs cy da de en eo es et eu fi fo fr ga gl hr ht hu id is it ku la lb lt lv mg ms "
    "mt nb nl nn no oc pl pt qu ro rw se sk sl sq sv sw tl tr vi vo wa xh zu jv"
)
_SCRIPT_OF = {code: script for script, codes in _SCRIPTS.items() for code in codes.split()}
_SCRIPT_OF |= dict.fromkeys(_LATIN.split(), "Latin")
LANGUAGES = frozenset(_SCRIPT_OF)
"""ISO 639-1 codes that can be asked for."""
_LETTER = regex.compile(r"\p{L}")
_IN_SCRIPT = {
    script: regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}ー]" if script == "Han" else rf"\p{{{script}}}")
    for script in set(_SCRIPT_OF.values())
}
_KANA = regex.compile(r"[\p{Hiragana}\p{Katakana}]")
_NOISE = regex.compile(r"(?:https?://|www\.)\S++|(?<!\S)[^\s@]++@\S++|<[^<>\n]{1,200}>|\\[A-Za-z]++")
_CUT = regex.compile(r"(?<=[.!?。！？।؟])\s++|\n+")
_STRANGE = {
    "ru": "іїєґў", "uk": "ыэёъў", "bg": "ыэёіїєґў", "fa": "ٹڈڑےںھہيىكة", "ar": "پچژگکیٹڈڑےںھہ", "ur": "يكىة",
}  # fmt: skip
"""Letters of neighbours that share the script."""
_LEAST_SHARE = 0.7
"""Of the letters that must be in the script of the language: names and terms of others are normal. Ours."""
_FOREIGN_SHARE = 0.1
_FEW_WORDS = 8
_FEW_LETTERS = 20
_PASSAGE = 12
_LONGEST = 20_000
"""Characters that the n-gram model reads at a time: it is pure Python."""


def code(value: Any) -> str:
    """An ISO 639-1 code; a region after it ("zh-cn", "pt_BR") does not matter."""
    found = regex.split(r"[-_]", value.strip().lower())[0] if isinstance(value, str) else None
    found = {"iw": "he", "fil": "tl", "in": "id"}.get(found, found)
    if found not in LANGUAGES:
        raise DataError(f"needs an ISO 639-1 code, one of {', '.join(sorted(LANGUAGES))}; not {value!r}")
    return found


@constraint("language:response_language", None, ("repeat",), language=code)
def response_language(response: str, language: str) -> str | None:
    return not_in_language(response, language)


def not_in_language(text: str, language: str) -> str | None:
    """None if the text is in the language, else what it is instead."""
    prose = _NOISE.sub(" ", "\n".join(without_code_spans(line) for line in fences(text)[0].split("\n")))
    if not _LETTER.search(prose):
        prose = text
    letters = len(_LETTER.findall(prose))
    if not letters:
        return "no letters, so no language"
    script = _SCRIPT_OF[language]
    own = len(_IN_SCRIPT[script].findall(prose))
    if script == "Han":  # one character stands for about three letters
        own, letters = 3 * own, letters + 2 * own
    elif language == "ko":
        letters -= len(_IN_SCRIPT["Han"].findall(prose))
    if not own or own < _LEAST_SHARE * letters:
        return f"{100 * own // max(letters, 1)} % of the letters are in the script of {language!r}"
    if script == "Han":
        kana = len(_KANA.findall(prose))
        japanese = kana > 0.08 * len(_IN_SCRIPT["Han"].findall(prose))
        return None if japanese == (language == "ja") else f"looks like {'ja' if japanese else 'zh'}"
    if len(_languages_of(script)) == 1:
        return None
    strange = sum(prose.count(c) for c in _STRANGE.get(language, ""))
    if strange > 0.02 * letters:
        return f"{strange} letters that {language!r} does not have"
    found = _guess(prose, language, script)
    if found != language:
        return f"looks like {found!r}"
    return _foreign(prose, language, script)


def _foreign(prose: str, language: str, script: str) -> str | None:
    total = foreign = 0
    for passage in _CUT.split(prose):
        size = len(words(passage))
        total += size
        if size >= _PASSAGE and not _close(guess := _guess(passage, language, script, sure=True), language):
            foreign += size
            other = guess
    return f"passages look like {other!r}" if foreign > _FOREIGN_SHARE * total else None


_NEAR = [
    set(group.split())
    for group in (
        "bs hr sr sl", "nb nn no da", "id ms jv", "es gl an ca oc", "pt gl", "cs sk", "ru be", "bg mk", "hi mr ne",
        "zu xh", "af nl", "fa ps", "ar fa ur",
    )
]  # fmt: skip


def _close(one: str, other: str) -> bool:
    """Languages that one passage alone does not tell apart for sure."""
    return one == other or any(one in group and other in group for group in _NEAR)


def _guess(text: str, language: str, script: str, sure: bool = False) -> str:
    """The language of the text among those of the script; the one asked for unless something speaks against it."""
    found = words(text)
    hits = _hits(found)
    best = max(hits, key=lambda name: (hits[name], name == language), default=language)
    mine = hits.get(language, 0)
    if not sure and len(found) < _FEW_WORDS:
        if mine and mine > max((number for name, number in hits.items() if name != language), default=0):
            return language
        if hits and mine < hits[best]:
            return best
        # no word tells: the n-grams do if there are enough of them, with the benefit of the doubt for near languages
        near = [name for name, _ in _ranked(text, script)[: 1 if hits else 3]]
        return language if language in near or len("".join(found)) < _FEW_LETTERS else near[0]
    if hits and best != language and language in COMMON and hits[best] > 1.5 * mine + 1:
        return best
    ranked = _ranked(text, script)
    first = ranked[0][0]
    if first == language or _supported(language, mine, hits, len(found)):
        return language
    if sure and (hits.get(first, 0) <= mine or first not in COMMON):
        return language
    return first


def _supported(language: str, mine: int, hits: dict[str, int], size: int) -> bool:
    """Whether the common words alone speak for the language."""
    return mine >= max(hits.values(), default=0) and mine >= 0.15 * size and mine > 0


def _hits(found: list[str]) -> dict[str, int]:
    hits: dict[str, int] = {}
    for word in found:
        for name in _by_word().get(folded(word), ()):
            hits[name] = hits.get(name, 0) + 1
    return hits


@functools.cache
def _by_word() -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for name, listed in COMMON.items():
        for word in listed.split():
            table.setdefault(word, []).append(name)
    return table


@functools.cache
def _languages_of(script: str) -> frozenset[str]:
    return frozenset(name for name, of in _SCRIPT_OF.items() if of == script)


@functools.cache
def _model(script: str) -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise ConfigError("language constraints need py3langid: pip install 'rufus-plugins[instructions]'") from error
    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    model.set_languages(_languages_of(script) & set(model.labels))
    return model


def _ranked(text: str, script: str) -> list[tuple[str, float]]:
    if len(text) > _LONGEST:  # the beginning, the middle and the end
        part = _LONGEST // 3
        middle = len(text) // 2
        text = f"{text[:part]} {text[middle : middle + part]} {text[-part:]}"
    return _model(script).rank(text)
