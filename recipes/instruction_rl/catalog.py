"""The atomic constraints that prompts are made of: how each is drawn and worded. Ids and kwargs are those of
`rewards/constraints`; 23 of IFEval and 16 of IFBench, those that an open request can carry.

The values drawn and the wordings are ours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KEYWORDS = (
    "harbour", "patience", "lantern", "bridge", "market", "silver", "orchard", "thunder", "journey", "copper", "meadow",
    "signal", "ladder", "compass", "timber", "captain", "blanket", "fountain", "puzzle", "winter",
)  # fmt: skip
FORBIDDEN = (
    "important", "amazing", "very", "really", "simply", "overall", "unique", "obviously", "basically", "literally",
    "however", "moreover", "nice", "good", "interesting",
)  # fmt: skip
END_PHRASES = (
    "Is there anything else I can help with?",
    "That is all for now.",
    "Thank you for reading.",
    "Now it is your turn.",
)
FIRST_WORDS = ("tomorrow", "suddenly", "gardens", "perhaps", "finally", "often")
SEPARATORS = ("...", "SEPARATOR", "!?!?", "--", "=>")


@dataclass(frozen=True)
class Atomic:
    """One constraint of a prompt."""

    id: str
    kwargs: Mapping[str, Any]
    text: str
    """How the prompt words it."""

    def as_rubric(self) -> dict[str, Any]:
        return {"id": self.id, "kwargs": dict(self.kwargs)}


@dataclass(frozen=True)
class Kind:
    id: str
    draw: Callable[[random.Random, str], dict[str, Any]]
    """(rng, request) -> kwargs"""
    wordings: tuple[str, ...]
    """Filled with the kwargs, and with what `shown` makes of them."""
    shown: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda kwargs: {}

    def make(self, rng: random.Random, request: str) -> Atomic:
        kwargs = self.draw(rng, request)
        return Atomic(self.id, kwargs, rng.choice(self.wordings).format(**kwargs, **self.shown(kwargs)))


def _relation(rng: random.Random) -> str:
    return rng.choice(("at least", "less than"))


def _words(rng: random.Random, _: str) -> dict[str, Any]:
    relation = _relation(rng)
    return {"relation": relation, "num_words": rng.randrange(40, 260, 10) if relation == "at least" else
            rng.randrange(90, 400, 10)}  # fmt: skip


def _sentences(rng: random.Random, _: str) -> dict[str, Any]:
    relation = _relation(rng)
    return {"relation": relation, "num_sentences": rng.randint(3, 14) if relation == "at least" else rng.randint(6, 16)}


def _letter(rng: random.Random, _: str) -> dict[str, Any]:
    relation = _relation(rng)
    if relation == "at least":
        return {"letter": rng.choice("abdgmpv"), "let_frequency": rng.randint(4, 20), "let_relation": relation}
    return {"letter": rng.choice("jqxz"), "let_frequency": rng.randint(1, 3), "let_relation": relation}


def _keyword_count(rng: random.Random, _: str) -> dict[str, Any]:
    relation = _relation(rng)
    return {"keyword": rng.choice(KEYWORDS), "frequency": rng.randint(2, 4), "relation": relation}


def _range(rng: random.Random, _: str) -> dict[str, Any]:
    low = rng.randrange(60, 240, 10)
    return {"min_words": low, "max_words": low + rng.randrange(20, 80, 10)}


def _capitals(rng: random.Random, _: str) -> dict[str, Any]:
    return {"capital_frequency": rng.randint(2, 6), "capital_relation": _relation(rng)}


def _nth(rng: random.Random, _: str) -> dict[str, Any]:
    number = rng.randint(2, 5)
    return {"num_paragraphs": number, "nth_paragraph": rng.randint(1, number), "first_word": rng.choice(FIRST_WORDS)}


def _multiple(rng: random.Random, _: str) -> dict[str, Any]:
    return {f"keyword{n}": word for n, word in enumerate(rng.sample(KEYWORDS, 5), 1)}


def _none(rng: random.Random, _: str) -> dict[str, Any]:
    return {}


def _number(name: str, low: int, high: int) -> Callable[[random.Random, str], dict[str, Any]]:
    return lambda rng, _: {name: rng.randint(low, high)}


def _listed(name: str) -> Callable[[Mapping[str, Any]], Mapping[str, str]]:
    return lambda kwargs: {"listed": ", ".join(f'"{word}"' for word in kwargs[name])}


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


KINDS: dict[str, Kind] = {
    kind.id: kind
    for kind in (
        Kind(
            "keywords:existence",
            lambda rng, _: {"keywords": sorted(rng.sample(KEYWORDS, rng.randint(1, 3)))},
            ("Use these words: {listed}.", "Work in each of these words: {listed}."),
            _listed("keywords"),
        ),
        Kind(
            "keywords:frequency",
            _keyword_count,
            (
                'The word "{keyword}" must appear {relation} {frequency} times.',
                'Use the word "{keyword}" {relation} {frequency} times.',
            ),  # noqa: E501
        ),
        Kind(
            "keywords:forbidden_words",
            lambda rng, _: {"forbidden_words": sorted(rng.sample(FORBIDDEN, rng.randint(2, 4)))},
            ("Do not use any of these words: {listed}.", "These words are forbidden: {listed}."),
            _listed("forbidden_words"),
        ),
        Kind(
            "keywords:letter_frequency",
            _letter,
            ('The letter "{letter}" must appear {let_relation} {let_frequency} times, in either case.',),
        ),
        Kind(
            "length_constraints:number_words",
            _words,
            ("Write {relation} {num_words} words.", "The whole answer must have {relation} {num_words} words."),
        ),
        Kind(
            "length_constraints:number_sentences",
            _sentences,
            (
                "Write {relation} {num_sentences} sentences.",
                "The number of sentences must be {relation} {num_sentences}.",
            ),
        ),
        Kind(
            "length_constraints:number_paragraphs",
            _number("num_paragraphs", 2, 5),
            ("Write exactly {num_paragraphs} paragraphs, separated by the divider ***.",),
        ),
        Kind(
            "length_constraints:nth_paragraph_first_word",
            _nth,
            (
                "Write exactly {num_paragraphs} paragraphs, separated by blank lines only. Paragraph {nth_paragraph} "
                'must start with the word "{first_word}".',
            ),
        ),
        Kind(
            "detectable_content:number_placeholders",
            _number("num_placeholders", 1, 5),
            ("Include at least {num_placeholders} placeholders in square brackets, such as [address].",),
        ),
        Kind(
            "detectable_content:postscript",
            lambda rng, _: {"postscript_marker": rng.choice(("P.S.", "P.P.S"))},
            ("At the end, add a postscript that starts with {postscript_marker}",),
        ),
        Kind(
            "detectable_format:number_bullet_lists",
            _number("num_bullets", 2, 6),
            ("Use exactly {num_bullets} bullet points in Markdown (* like this).",),
        ),
        Kind(
            "detectable_format:number_highlighted_sections",
            _number("num_highlights", 1, 4),
            ("Highlight at least {num_highlights} parts of the answer with Markdown, *like this*.",),
        ),
        Kind(
            "detectable_format:multiple_sections",
            lambda rng, _: {
                "section_spliter": rng.choice(("Section", "SECTION", "PART")),
                "num_sections": rng.randint(2, 4),
            },
            (
                "Divide the answer into {num_sections} sections. Mark the start of each one: {section_spliter} 1, "
                "{section_spliter} 2 and so on.",
            ),
        ),
        Kind(
            "detectable_format:json_format",
            _none,
            ("The whole answer must be one valid JSON text, without anything around it but perhaps a code block.",),
        ),
        Kind(
            "detectable_format:title",
            _none,
            ("Give the answer a title in double angular brackets, such as <<title>>.",),
        ),
        Kind(
            "combination:two_responses",
            _none,
            ("Give two different answers, separated by six asterisks: ******.",),
        ),
        Kind(
            "combination:repeat_prompt",
            lambda rng, request: {"prompt_to_repeat": request},
            ('First repeat this request word for word, then answer it: "{prompt_to_repeat}"',),
        ),
        Kind(
            "startend:end_checker",
            lambda rng, _: {"end_phrase": rng.choice(END_PHRASES)},
            ('End with exactly this phrase and nothing after it: "{end_phrase}"',),
        ),
        Kind("startend:quotation", _none, ("Put the whole answer in one pair of double quotation marks.",)),
        Kind("change_case:english_capital", _none, ("Answer in English and in capital letters only.",)),
        Kind(
            "change_case:english_lowercase",
            _none,
            ("Answer in English and in lowercase letters only. No capital letters are allowed.",),
        ),
        Kind(
            "change_case:capital_word_frequency",
            _capitals,
            ("Words in all capitals must appear {capital_relation} {capital_frequency} times.",),
        ),
        Kind("punctuation:no_comma", _none, ("Do not use any commas.", "Avoid commas altogether.")),
        Kind("count:word_count_range", _range, ("Write between {min_words} and {max_words} words.",)),
        Kind("count:unique_word_count", _number("N", 20, 70), ("Use at least {N} different words.",)),
        Kind(
            "count:conjunctions",
            _number("small_n", 2, 5),
            ("Use at least {small_n} different coordinating conjunctions (for, and, nor, but, or, yet, so).",),
        ),
        Kind(
            "count:person_names",
            _number("N", 2, 5),
            (
                "Mention at least {N} of these people by name: Emma, Liam, Sophia, Noah, Olivia, Lucas, Mia, Ethan, "
                "Grace, Owen.",
            ),
        ),
        Kind("count:numbers", _number("N", 1, 6), ("Use exactly {N} numbers, written in digits.",)),
        Kind("count:pronouns", _number("N", 3, 12), ("Use at least {N} personal or possessive pronouns.",)),
        Kind(
            "count:keywords_multiple",
            _multiple,
            (
                'Use the word "{keyword1}" once, "{keyword2}" twice, "{keyword3}" three times, "{keyword4}" five times '
                'and "{keyword5}" seven times.',
            ),
        ),
        Kind(
            "format:parentheses",
            _none,
            ("Nest brackets, round, square or curly ones, at least five levels deep somewhere.",),
        ),
        Kind(
            "format:quotes",
            _none,
            (
                "Include quotes within quotes within quotes, at least three levels deep, with double and single marks "
                "in turn.",
            ),
        ),
        Kind("format:emoji", _none, ("End every sentence with an emoji.",)),
        Kind(
            "format:list",
            lambda rng, _: {"sep": rng.choice(SEPARATORS)},
            ("Include a list of at least two items, each set off by {sep} instead of bullet points.",),
        ),
        Kind(
            "format:no_bullets_bullets",
            _none,
            ("Begin with at least two sentences that end in a period, then give at least two bullet points with *.",),
        ),
        Kind(
            "format:output_template",
            _none,
            ("Use this template exactly: My Answer: [answer] My Conclusion: [conclusion] Future Outlook: [outlook]",),
        ),
        Kind(
            "words:palindrome",
            _none,
            ("Include at least 10 different palindromes of five letters or more, each as a single word.",),
        ),
        Kind("words:start_verb", _none, ("Start the answer with a verb.",)),
        Kind(
            "sentence:keyword",
            lambda rng, _: {"word": rng.choice(KEYWORDS), "N": rng.randint(1, 5)},
            ('The {nth} sentence must contain the word "{word}".',),
            lambda kwargs: {"nth": _ordinal(kwargs["N"])},
        ),
    )
}
