"""Whether a user's message, worded by a model, still says a constraint: every text and number of its kwargs, the
relation, and a word for what it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rufus_plugins.recipes.instruction_rl.catalog import Atomic
from rufus_plugins.rewards.text_match import contains

_ABOUT: dict[str, str] = {
    "keywords:existence": "use include mention work word contain",
    "keywords:frequency": "times",
    "keywords:forbidden_words": "not n't avoid forbid without never leave",
    "keywords:letter_frequency": "letter",
    "length_constraints:number_words": "word",
    "length_constraints:number_sentences": "sentence",
    "length_constraints:number_paragraphs": "paragraph",
    "length_constraints:nth_paragraph_first_word": "paragraph",
    "detectable_content:number_placeholders": "placeholder",
    "detectable_content:postscript": "postscript p.s p.p.s",
    "detectable_format:number_bullet_lists": "bullet",
    "detectable_format:number_highlighted_sections": "highlight emphasi",
    "detectable_format:multiple_sections": "section part",
    "detectable_format:json_format": "json",
    "detectable_format:title": "title",
    "combination:two_responses": "six ******",
    "startend:end_checker": "end finish close",
    "startend:quotation": "quotation quote",
    "change_case:english_capital": "capital uppercase upper-case caps",
    "change_case:english_lowercase": "lowercase lower-case",
    "change_case:capital_word_frequency": "capital uppercase caps",
    "punctuation:no_comma": "comma",
    "count:word_count_range": "word",
    "count:unique_word_count": "different unique distinct",
    "count:conjunctions": "conjunction",
    "count:person_names": "name people",
    "count:numbers": "number digit",
    "count:pronouns": "pronoun",
    "count:keywords_multiple": "word times",
    "format:parentheses": "bracket parenthes nest",
    "format:quotes": "quote",
    "format:emoji": "emoji",
    "format:list": "list item",
    "format:no_bullets_bullets": "bullet",
    "format:output_template": "template",
    "words:palindrome": "palindrome",
    "words:start_verb": "verb",
    "sentence:keyword": "sentence",
}
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()
_RELATIONS = {
    "at least": ("at least", "or more", "minimum", "no fewer", "no less", "not less", "not fewer"),
    "less than": ("less than", "fewer than", "under", "below"),
}
_ORDINALS = "zeroth first second third fourth fifth sixth".split()
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")


def lost(text: str, constraint: Atomic) -> str | None:
    """What of the constraint is not in the text, or None."""
    folded = text.casefold().replace("\u2019", "'")
    about = _ABOUT.get(constraint.id, "").split()
    if about and not any(word in folded for word in about):
        return f"no word about {constraint.id}"
    if constraint.id == "format:output_template":
        return next((f"{label!r} is missing" for label in _TEMPLATE if label.casefold() not in folded), None)
    if constraint.id in ("punctuation:no_comma",) and not re.search(r"\b(no|not|without|avoid|never)\b|n't\b", folded):
        return "the ban is missing"
    if constraint.id == "words:palindrome" and not _number(folded, 10):
        return "the number 10 is missing"
    for key, value in constraint.kwargs.items():
        if isinstance(value, str) and value in _RELATIONS:
            if not any(words in folded for words in _RELATIONS[value]):
                return f"{value!r} is missing"
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            if not _number(folded, value):
                return f"the number {value} is missing"
        else:
            for word in [value] if isinstance(value, str) else value:
                if not (contains(text, word) or word.casefold() in folded):
                    return f"{word!r} is missing ({key})"
    return None


def _number(folded: str, value: int) -> bool:
    spelled = [_NUMBERS[value]] if value < len(_NUMBERS) else []
    spelled += [_ORDINALS[value]] if value < len(_ORDINALS) else []
    spelled += {1: ["once", "a "], 2: ["twice"], 3: ["thrice"]}.get(value, [])
    # digits may carry an ordinal's ending
    return bool(re.search(rf"(?<![\d.]){value}(?:st|nd|rd|th)?(?![\d\w])", folded)) or any(w in folded for w in spelled)


def invented(text: str, known: Sequence[str]) -> str | None:
    """A number in the text that none of the known texts has, or None."""
    given = {n for part in known for n in re.findall(r"\d+", part)}
    return next((n for n in re.findall(r"\d+", text) if n not in given), None)
