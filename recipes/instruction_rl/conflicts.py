"""Which constraints do not go together, and why. Three rules, in this order:

1. *slots*: two constraints that decide the same thing (the layout, the case, the number of words ...);
2. *pairs*: two that decide different things and yet exclude each other, each with its reason;
3. *amounts*: what all of them together need (words, sentences, a letter, a word that another forbids) against what one
   of them allows. The sum counts every demand by itself, so it may refuse what a clever answer could still do.

`conflict` says the first reason it finds. It may be too strict; that it is not too lax is proven for each prompt by a
witness (witness.py): a response that all of the prompt's checkers accept.
"""

from __future__ import annotations

from collections.abc import Sequence

from rufus_plugins.recipes.instruction_rl.catalog import Atomic
from rufus_plugins.rewards.constraints.reading import keyword_count, words
from rufus_plugins.rewards.constraints.splitting import sentences

SLOTS: dict[str, tuple[str, ...]] = {
    "the number of words": ("length_constraints:number_words", "count:word_count_range"),
    "the layout": (
        "length_constraints:number_paragraphs", "length_constraints:nth_paragraph_first_word",
        "detectable_format:multiple_sections", "detectable_format:json_format", "combination:two_responses",
        "format:output_template", "format:no_bullets_bullets",
    ),
    "the list": ("detectable_format:number_bullet_lists", "format:list", "format:no_bullets_bullets"),
    "the case": ("change_case:english_capital", "change_case:english_lowercase"),
    "how the answer begins": ("combination:repeat_prompt", "words:start_verb", "format:output_template",
                              "startend:quotation"),
    "what surrounds the answer": ("startend:quotation", "detectable_format:json_format"),
    "keywords and how often": (
        "keywords:existence", "keywords:frequency", "count:keywords_multiple", "sentence:keyword",
    ),
}  # fmt: skip
"""What is decided -> the ids that decide it: at most one of each. The last is more than logic asks: two wishes about
the same twenty keywords read as a contradiction too easily."""

_JSON = "detectable_format:json_format"
_MARKUP = (
    "detectable_content:postscript", "detectable_content:number_placeholders", "detectable_format:number_bullet_lists",
    "detectable_format:number_highlighted_sections", "detectable_format:title", "combination:repeat_prompt",
    "startend:end_checker", "format:parentheses", "format:quotes", "format:emoji", "format:list", "words:start_verb",
    "length_constraints:number_sentences", "sentence:keyword",
)  # fmt: skip
PAIRS: dict[frozenset[str], str] = {
    **{frozenset((_JSON, other)): "JSON has no place for it, or makes it a matter of taste" for other in _MARKUP},
    frozenset(("change_case:english_capital", "change_case:capital_word_frequency")): "every word is in capitals",
    frozenset(("change_case:english_lowercase", "change_case:capital_word_frequency")): "no word is in capitals",
    frozenset(("change_case:english_lowercase", "count:person_names")): "names need a capital",
    frozenset(("change_case:english_lowercase", "format:output_template")): "the template has capitals",
    frozenset(("change_case:english_capital", "format:output_template")): "the template has small letters",
    frozenset(("change_case:english_lowercase", "detectable_format:multiple_sections")): "the marker has capitals",
    frozenset(("change_case:english_capital", "detectable_format:multiple_sections")): "the marker may be small",
    frozenset(("change_case:english_lowercase", "format:list")): "the separator may have capitals",
    frozenset(("format:emoji", "startend:end_checker")): "the last sentence ends with the phrase, not with an emoji",
    frozenset(("format:emoji", "combination:repeat_prompt")): "the repeated request ends without an emoji",
    frozenset(("format:emoji", "detectable_content:postscript")): "the full stops of the marker end no sentence for "
    "some readers and one for others",
    frozenset(("startend:quotation", "format:quotes")): "inner double quotes close the outer ones",
    frozenset(("startend:quotation", "detectable_format:multiple_sections")): "the first line begins with the marker, "
    "not with a quotation mark",
    frozenset(("count:numbers", "detectable_format:multiple_sections")): "the sections' own numbers: counted or not?",
    frozenset(("format:list", "format:emoji")): "items of such a list are no sentences for some readers",
    frozenset(("format:list", "punctuation:no_comma")): "the wording of separators reads as a ban on commas anyway",
    frozenset(("format:list", "length_constraints:number_sentences")): "... and !?!? end sentences",
    frozenset(("format:list", "sentence:keyword")): "... and !?!? end sentences",
}  # fmt: skip
"""Ids -> why not."""


def conflict(constraints: Sequence[Atomic], request: str = "") -> str | None:
    """Why the constraints cannot all hold, or None."""
    ids = [c.id for c in constraints]
    if len(set(ids)) != len(ids):
        return "the same constraint twice"
    for slot, members in SLOTS.items():
        inside = [name for name in ids if name in members]
        if len(inside) > 1:
            return f"{' and '.join(inside)} both decide {slot}"
    for at, one in enumerate(ids):
        for other in ids[at + 1 :]:
            if why := PAIRS.get(frozenset((one, other))):
                return f"{one} and {other}: {why}"
    return _amounts(constraints, request)


def _amounts(constraints: Sequence[Atomic], request: str) -> str | None:
    by_id = {c.id: dict(c.kwargs) for c in constraints}
    required = [text for c in constraints for text in required_texts(c)]
    for word in by_id.get("keywords:forbidden_words", {}).get("forbidden_words", ()):
        if hit := next((text for text in required if keyword_count(text, word)), None):
            return f"{word!r} is forbidden and stands in {hit!r}, which is required"
    if "punctuation:no_comma" in by_id and (hit := next((text for text in required if "," in text), None)):
        return f"commas are forbidden and one stands in {hit!r}, which is required"
    letter = by_id.get("keywords:letter_frequency")
    if letter and letter["let_relation"] == "less than":
        needed = sum(text.casefold().count(letter["letter"]) for text in required)
        if needed >= letter["let_frequency"]:
            return f"what is required has {needed} times {letter['letter']!r}"
    rare = by_id.get("keywords:frequency")
    if rare and rare["relation"] == "less than":
        others = [text for c in constraints if c.id != "keywords:frequency" for text in required_texts(c)]
        if sum(keyword_count(text, rare["keyword"]) for text in others) >= rare["frequency"]:
            return f"what is required has {rare['keyword']!r} too often"
    few = by_id.get("change_case:capital_word_frequency")
    if few and few["capital_relation"] == "less than":
        capitals = sum(word.isupper() for text in required for word in words(text))
        if capitals >= few["capital_frequency"]:
            return f"what is required has {capitals} words in capitals"
    digits = by_id.get("count:numbers")
    if digits and sum(any(ch.isdigit() for ch in word) for text in required for word in words(text)) > digits["N"]:
        return "what is required has more numbers"
    opens = by_id.get("length_constraints:nth_paragraph_first_word", {}).get("nth_paragraph") == 1
    if opens and {"combination:repeat_prompt", "words:start_verb", "format:output_template"} & set(by_id):
        return "the first word is asked for twice"
    named, repeated = by_id.get("sentence:keyword"), by_id.get("combination:repeat_prompt")
    if named and repeated and named["N"] <= len(sentences(repeated["prompt_to_repeat"])):
        return f"sentence {named['N']} is the repeated request's own"
    least = sum(len(words(text)) for text in required) + sum(_other_words(c) for c in constraints)
    least = max([least, *(_least_words(c) for c in constraints)])
    most = min((_most_words(c) for c in constraints), default=10**9)
    if least > most:
        return f"at least {least} words are needed and at most {most} allowed"
    return _sentences(by_id, required)


def _sentences(by_id: dict[str, dict], required: list[str]) -> str | None:
    number = by_id.get("length_constraints:number_sentences")
    if not number or number["relation"] != "less than":
        return None
    least = max(
        1 + sum(len(sentences(text)) for text in required if len(words(text)) > 2),
        by_id.get("sentence:keyword", {}).get("N", 1),
        by_id.get("length_constraints:number_paragraphs", {}).get("num_paragraphs", 1),
        by_id.get("length_constraints:nth_paragraph_first_word", {}).get("num_paragraphs", 1),
        by_id.get("detectable_format:multiple_sections", {}).get("num_sections", 1),
        4 if "format:no_bullets_bullets" in by_id or "combination:two_responses" in by_id else 1,
    )
    return None if least < number["num_sentences"] else f"about {least} sentences are needed"


def required_texts(constraint: Atomic) -> list[str]:
    """The texts that an answer must contain word for word."""
    given = constraint.kwargs
    match constraint.id:
        case "keywords:existence":
            return list(given["keywords"])
        case "keywords:frequency":
            return [given["keyword"]] * given["frequency"] if given["relation"] == "at least" else []
        case "length_constraints:nth_paragraph_first_word":
            return [given["first_word"]]
        case "startend:end_checker":
            return [given["end_phrase"]]
        case "combination:repeat_prompt":
            return [given["prompt_to_repeat"]]
        case "sentence:keyword":
            return [given["word"]]
        case "count:keywords_multiple":
            times = (1, 2, 3, 5, 7)
            return [given[f"keyword{n}"] for n, many in enumerate(times, 1) for _ in range(many)]
        case "detectable_format:multiple_sections":
            return [f"{given['section_spliter']} {n}" for n in range(1, given["num_sections"] + 1)]
        case "detectable_content:postscript":
            return [given["postscript_marker"]]
        case "format:list":
            return [given["sep"]] * 2
        case "format:output_template":
            return ["My Answer:", "My Conclusion:", "Future Outlook:"]
    return []


def _other_words(c: Atomic) -> int:
    """Words that an answer needs beside the required texts; no two constraints count the same ones."""
    match c.id:
        case "detectable_content:number_placeholders":
            return c.kwargs["num_placeholders"]
        case "detectable_format:number_bullet_lists":
            return c.kwargs["num_bullets"]
        case "count:conjunctions":
            return c.kwargs["small_n"]
        case "count:person_names" | "count:numbers" | "count:pronouns":
            return c.kwargs["N"]
        case "change_case:capital_word_frequency":
            return c.kwargs["capital_frequency"] if c.kwargs["capital_relation"] == "at least" else 0
        case "words:palindrome":
            return 10
        case "format:parentheses" | "format:quotes":
            return 5
        case "keywords:letter_frequency":
            return c.kwargs["let_frequency"] // 3 if c.kwargs["let_relation"] == "at least" else 0
    return 0


def _least_words(c: Atomic) -> int:
    match c.id:
        case "length_constraints:number_words":
            return c.kwargs["num_words"] if c.kwargs["relation"] == "at least" else 0
        case "count:word_count_range":
            return c.kwargs["min_words"]
        case "count:unique_word_count":
            return c.kwargs["N"]
    return 0


def _most_words(c: Atomic) -> int:
    match c.id:
        case "length_constraints:number_words":
            return c.kwargs["num_words"] - 1 if c.kwargs["relation"] == "less than" else 10**9
        case "count:word_count_range":
            return c.kwargs["max_words"]
    return 10**9
