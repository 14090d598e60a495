"""Writes a response that follows a given set of constraints: the proof that the set can be followed at all.

Nothing is assumed: what is written here counts only if every checker of the set accepts it. The text is nonsense made
of common English words; its number of sentences and their length are searched until everything fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rufus_plugins.recipes.instruction_rl.catalog import Atomic
from rufus_plugins.rewards import constraints
from rufus_plugins.rewards.constraints.count import _NUMBER as NUMBER
from rufus_plugins.rewards.constraints.count import NAMES
from rufus_plugins.rewards.constraints.splitting import sentences

_NOUNS = (
    "garden river window table morning house child story road stone letter kitchen shadow mountain voice village "
    "forest teacher paper boat summer door flower friend city planet animal island mirror music office island hill farm"
).split()
_ADJECTIVES = (
    "small old green warm bright little wooden gentle early long blue clever calm fresh empty tall dark soft wide "
    "brave deep golden plain hidden honest narrow silent steady tiny young"
).split()
_VERBS = (
    "finds holds reaches follows keeps shows meets leaves watches brings opens carries turns makes sees hears".split()
)
_PREPOSITIONS = "near under behind beside above through around with from into".split()
_PALINDROMES = "level radar civic rotor kayak refer madam tenet solos stats".split()
_CONJUNCTIONS = "and but or so yet nor for".split()
_PRONOUNS = "we they it you he she us them him her".split()
_LONGEST_SENTENCE = 36
_MOST_SENTENCES = 24


@dataclass
class _Plan:
    given: dict[str, dict]
    tokens: list[str] = field(default_factory=list)
    """Parts that stand inside the first sentence."""
    named: dict[int, list[str]] = field(default_factory=dict)
    """Sentence -> words that must be in it."""


def witness(wanted: Sequence[Atomic]) -> str | None:
    """A response that passes every checker, or None if the search found none."""
    checks = [constraints.bound(c.id, c.kwargs) for c in wanted]
    for text in _attempts({c.id: dict(c.kwargs) for c in wanted}):
        if all(check(text) is None for check in checks):
            return text
    return None


def _attempts(given: dict[str, dict]) -> Iterator[str]:
    plan = _Plan(given)
    _inline(plan)
    few = given.get("length_constraints:number_sentences", {})
    exact = few.get("num_sentences", 0)
    first = exact if few.get("relation") == "at least" else 1
    order = [first + n for n in range(_MOST_SENTENCES)]
    for size in (7, 5, 12, 3, 18, 9, 25, 4, _LONGEST_SENTENCE, 14, 21, 6, 30, 2, 60, 90):
        for count in order:
            yield _whole(plan, count, size)


def _inline(plan: _Plan) -> None:
    given, tokens = plan.given, plan.tokens
    for name, words in (
        ("keywords:existence", lambda g: g["keywords"]),
        ("keywords:frequency", lambda g: [g["keyword"]] * g["frequency"] if g["relation"] == "at least" else []),
        ("count:person_names", lambda g: NAMES[: g["N"]]),
        ("count:pronouns", lambda g: [_PRONOUNS[i % len(_PRONOUNS)] for i in range(g["N"])]),
        ("count:conjunctions", lambda g: _CONJUNCTIONS[: g["small_n"]]),
        ("words:palindrome", lambda g: _PALINDROMES),
        ("detectable_content:number_placeholders", lambda g: ["[address]"] * g["num_placeholders"]),
        ("detectable_format:number_highlighted_sections", lambda g: ["*warm garden*"] * g["num_highlights"]),
        ("detectable_format:title", lambda g: ["<<Warm Garden>>"]),
        ("format:parentheses", lambda g: ["(deep (very (far (down (below)))))"]),
        ("format:quotes", lambda g: ['"one \'two "three" two\' one"']),
        (
            "change_case:capital_word_frequency",
            lambda g: ["TODAY"] * g["capital_frequency"] if g["capital_relation"] == "at least" else [],
        ),
        (
            "keywords:letter_frequency",
            lambda g: [_WITH[g["letter"]]] * g["let_frequency"] if g["let_relation"] == "at least" else [],
        ),
        (
            "count:keywords_multiple",
            lambda g: [g[f"keyword{n}"] for n, many in enumerate((1, 2, 3, 5, 7), 1) for _ in range(many)],
        ),
    ):
        if name in given:
            tokens += words(given[name])
    if "sentence:keyword" in given:
        before = len(sentences(given.get("combination:repeat_prompt", {}).get("prompt_to_repeat", "")))
        plan.named[given["sentence:keyword"]["N"] - 1 - before] = [given["sentence:keyword"]["word"]]


_WITH = {"a": "banana", "b": "bubble", "d": "added", "g": "giggle", "m": "mammoth", "p": "puppet", "v": "vivid"}


def _sentence(at: int, size: int, tokens: Sequence[str], start: str = "") -> str:
    """A sentence of `size` words and the tokens; another `at` takes other words."""
    words: list[str] = [start] if start else []
    number = at * 7
    while len(words) < size:
        words += [
            "the",
            _ADJECTIVES[number % len(_ADJECTIVES)],
            _NOUNS[number % len(_NOUNS)],
            _VERBS[number % len(_VERBS)],
            "the",
            _NOUNS[(number + 11) % len(_NOUNS)],
            _PREPOSITIONS[number % len(_PREPOSITIONS)],
            "a",
            _ADJECTIVES[(number + 5) % len(_ADJECTIVES)],
            _NOUNS[(number + 5) % len(_NOUNS)],
            "of",
            "this",
        ]
        number += 1
    words = words[:size]
    words[4:4] = tokens  # after the opening: a first verb is judged by the word that follows it
    text = " ".join(words)
    return text[0].upper() + text[1:]


def _whole(plan: _Plan, count: int, size: int) -> str:
    text = _assembled(plan, count, size, 0)
    if "count:numbers" in plan.given:
        missing = plan.given["count:numbers"]["N"] - len(NUMBER.findall(text))
        text = _assembled(plan, count, size, max(0, missing))
    return text


def _assembled(plan: _Plan, count: int, size: int, digits: int) -> str:
    given = plan.given
    stop = ". \U0001f331" if "format:emoji" in given else "."
    tokens = [*plan.tokens, *(str(12 + n) for n in range(digits))]
    start = "Consider" if "words:start_verb" in given else ""
    body = []
    for at in range(count):
        inside = (tokens if at == 0 else []) + plan.named.get(at, [])
        body.append(_sentence(at, size, inside, start if at == 0 else "") + stop)
    tail = _tail(given, stop)
    text = _laid_out(given, body, tail)
    if "combination:repeat_prompt" in given:
        joint = "\n" if "length_constraints:nth_paragraph_first_word" in given else "\n\n"
        text = given["combination:repeat_prompt"]["prompt_to_repeat"] + joint + text
    if "startend:quotation" in given:
        text = f'"{text}"'
    if "detectable_format:json_format" in given:
        text = json.dumps({"answer": text.replace("\n", " ")})
    if "change_case:english_capital" in given:
        text = text.upper()
    if "change_case:english_lowercase" in given:
        text = text.lower()
    return text


def _tail(given: dict[str, dict], stop: str) -> list[str]:
    """Lines after the body: lists, postscript, end phrase."""
    lines = []
    if "detectable_format:number_bullet_lists" in given:
        number = given["detectable_format:number_bullet_lists"]["num_bullets"]
        lines += [f"* {_NOUNS[at]}{stop if stop != '.' else ''}" for at in range(number)]
    if "format:list" in given:
        sep = given["format:list"]["sep"]
        lines += [f"{sep} garden", f"{sep} river"]
    if "format:no_bullets_bullets" in given:
        lines += [f"* garden{stop}", f"* river{stop}"]
    if "detectable_content:postscript" in given:
        lines.append(f"{given['detectable_content:postscript']['postscript_marker']} water the garden{stop}")
    if "startend:end_checker" in given:
        lines.append(given["startend:end_checker"]["end_phrase"])
    return lines


def _laid_out(given: dict[str, dict], body: list[str], tail: list[str]) -> str:
    if "length_constraints:number_paragraphs" in given:
        parts = _spread(body, given["length_constraints:number_paragraphs"]["num_paragraphs"])
        return "\n***\n".join([" ".join(part) for part in parts]) + "".join(f"\n{line}" for line in tail)
    if "length_constraints:nth_paragraph_first_word" in given:
        wanted = given["length_constraints:nth_paragraph_first_word"]
        parts = [" ".join(part) for part in _spread(body, wanted["num_paragraphs"])]
        at, word = wanted["nth_paragraph"] - 1, wanted["first_word"].capitalize()
        if at < len(parts):
            # a verb must come first where both are asked for: then it is the search's task to fail
            parts[at] = f"{word} {parts[at][:1].lower()}{parts[at][1:]}"
        return "\n\n".join(parts) + "".join(f"\n{line}" for line in tail)
    if "detectable_format:multiple_sections" in given:
        wanted = given["detectable_format:multiple_sections"]
        parts = _spread(body, wanted["num_sections"])
        heads = [f"{wanted['section_spliter']} {n}\n{' '.join(part)}" for n, part in enumerate(parts, 1)]
        if "words:start_verb" in given:
            heads = [" ".join(body[:1]), *heads]
        return "\n".join([*heads, *tail])
    if "combination:two_responses" in given:
        half = max(1, len(body) // 2)
        return " ".join(body[:half]) + "\n******\n" + "\n".join([" ".join(body[half:]) or "Other words.", *tail])
    if "format:output_template" in given:
        parts = [*[" ".join(part) for part in _spread(body, 3)], "", "", ""][:3]
        first = f"My Answer: {parts[0]}\nMy Conclusion: {parts[1] or 'Yes.'}\nFuture Outlook: {parts[2] or 'Fine.'}"
        return "\n".join([first, *tail])
    return "\n".join([" ".join(body), *tail])


def _spread(body: list[str], parts: int) -> list[list[str]]:
    """The sentences over so many parts, none empty where there are enough; the first gets the rest."""
    size = max(1, len(body) // parts)
    cut = [body[at * size : (at + 1) * size] for at in range(parts)]
    cut[-1] += body[parts * size :]
    return [part for part in cut if part]
