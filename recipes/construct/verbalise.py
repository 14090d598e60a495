"""Words for a construction: a template, or a model that rewords it. Both are checked in the same way.

A wording is refused (`Unfit.reason`) if

- `lost`: a filter's value or column, the direction or the column of the selection, the quantity or the unit of the
  answer is not in it;
- `invented`: it has a number that the construction does not have;
- `entity_leak`: it names the entity;
- `answer_leak`: a number in it, with its unit, is the answer or an intermediate target within the tolerance.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Sequence

from rufus_plugins.recipes.construct.spec import Filter, Solved, Unfit
from rufus_plugins.recipes.construct.tables import Column, Table
from rufus_plugins.rewards.progress_chain import targets_of
from rufus_plugins.rewards.text_match import contains, normalise
from rufus_plugins.rewards.units import parse_unit, plain, quantities_in

_COMPARED = {
    "<": ("below", "less than"), "<=": ("at most",), ">": ("above", "greater than"), ">=": ("at least",),
    "=": ("equal to",), "!=": ("other than",),
}  # fmt: skip
_DIRECTIONS = {
    "max": "largest highest greatest most longest heaviest latest maximum biggest densest widest top".split(),
    "min": "smallest lowest least fewest shortest lightest earliest minimum tiniest".split(),
}
_LOWER = "below less under fewer at most smaller lower up to no more not exceeding maximum beneath".split()
_STOP = frozenset(
    "of the a an in at on as it its to from which was by per and one with for law that sphere circle".split()
)

INSTRUCTIONS = (
    "Reword the question so that it reads like one a curious person would ask. Keep every condition, every number with "
    "its unit, every name in it, the direction (largest, smallest ...), the quantity asked for and the unit of the "
    "answer. Add no condition and no number. Do not solve it, and do not say which {noun} is meant. Reply with the "
    "question only."
)


def template(solved: Solved, table: Table, rng: random.Random) -> str:
    """The question, plainly."""
    spec, singular, plural = solved.spec, *table.noun
    ranked, formula = table.columns[spec.column], table.formulas[spec.formula]
    conditions = " and ".join(condition(f, table.columns[f.column], rng) for f in spec.filters)
    direction = ranked.most if spec.extreme == "max" else ranked.least
    among = f"{plural} {conditions}" if conditions else plural
    opening = rng.choice(
        (
            f"Of all {among}, take the one with the {direction} {ranked.words}.",
            f"Consider the {plural} {conditions}. Find the one with the {direction} {ranked.words}."
            if conditions
            else f"Find the {singular} with the {direction} {ranked.words}.",
            f"Among the {among}, one has the {direction} {ranked.words}.",
        )
    )
    asked = rng.choice(("What is {words}, in {unit}?", "Give {words} in {unit}.", "How large is {words}, in {unit}?"))
    return f"{opening} {asked.format(words=formula.words, unit=spec.unit)}"


def condition(f: Filter, column: Column, rng: random.Random | None = None) -> str:
    if column.filter and f.op == "=":
        value = f"{f.value:g}" if isinstance(f.value, float) else f.value
        return column.filter.format(value=value)
    if isinstance(f.value, str):
        return f"whose {column.words} is {'not ' if f.op == '!=' else ''}{f.value}"
    words = _COMPARED[f.op]
    number = f"{f.value:.12g}"
    chosen = (rng or random.Random(0)).choice(words)
    return f"whose {column.words} is {chosen} {number}{' ' + column.unit if column.unit else ''}"


def prompt(question: str, table: Table) -> list[dict[str, str]]:
    """What a model is asked, to reword a question."""
    asked = INSTRUCTIONS.format(noun=table.noun[0])
    return [{"role": "user", "content": f"{asked}\n\n{question}"}]


def check(text: str, solved: Solved, table: Table) -> None:
    """Raises `Unfit` if the wording lost, invented or gave away anything."""
    spec = solved.spec
    if not text.strip() or len(text) > 2_000:
        raise Unfit("lost", "the wording is empty or longer than 2,000 characters")
    text = plain(text)  # g/cm³ is g/cm^3
    folded = f" {normalise(text)} "
    numbers = quantities_in(text)
    for f in spec.filters:
        column = table.columns[f.column]
        if isinstance(f.value, str):
            if not _holds(text, f.value, column):
                raise Unfit("lost", f"{f.value!r} ({f.column}) is not in the wording")
            if f.op == "!=" and not re.search(r"\b(not|other than|except|excluding|n't)\b|n't\b", text, re.I):
                raise Unfit("lost", f"the negation of {f.value!r} is not in the wording")
            continue
        factor = (parse_unit(plain(column.unit)) or (None, 1.0, 0.0))[1] if column.unit else 1.0
        if not any(_same(q.value, f.value) or _same(q.value * q.factor, f.value * factor) for q in numbers):
            raise Unfit("lost", f"the number {f.value:g} ({f.column}) is not in the wording")
        if not _mentions(folded, column.words) and not column.filter:
            raise Unfit("lost", f"{column.words!r} is not in the wording")
        if f.op in ("<", "<=") and not any(f" {word}" in folded for word in _LOWER):
            raise Unfit("lost", f"the direction of the condition on {f.column} is not in the wording")
    ranked, formula = table.columns[spec.column], table.formulas[spec.formula]
    words = {*_DIRECTIONS[spec.extreme], ranked.most if spec.extreme == "max" else ranked.least}
    if not any(f" {word} " in folded for word in words):
        raise Unfit("lost", f"no word for the {spec.extreme} of {ranked.words} is in the wording")
    for what in (ranked.words, formula.words):
        if not _mentions(folded, what):
            raise Unfit("lost", f"{what!r} is not in the wording")
    if not re.search(rf"(?<![\w/^]){re.escape(spec.unit)}(?![\w/^])", text):
        raise Unfit("lost", f"the unit {spec.unit} is not in the wording")
    _invented(text, solved, table)
    _leaks(text, solved, table)


def _holds(text: str, value: str, column: Column) -> bool:
    # plural forms by the column's own wording: "classed as moons"
    return contains(text, value) or (
        column.filter != "" and contains(text, column.filter.format(value=value).split()[-1])
    )


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def _mentions(folded: str, words: str) -> bool:
    """Whether most of the content words stand in the text (a rewording may leave out a bracket)."""
    core = re.sub(r"\([^)]*\)", "", words)
    wanted = [w for w in normalise(core).split() if w not in _STOP] or normalise(core).split()
    stems = [w if len(w) < 6 else w[:5] for w in wanted]
    return sum(f" {stem}" in folded for stem in stems) * 3 >= 2 * len(stems)


def _invented(text: str, solved: Solved, table: Table) -> None:
    spec = solved.spec
    known = [str(f.value) if isinstance(f.value, str) else f"{f.value:.12g}" for f in spec.filters]
    columns = [*(table.columns[f.column] for f in spec.filters), table.columns[spec.column]]
    known += [column.words for column in columns]
    known += [table.formulas[spec.formula].words, spec.unit, *(c.unit or "" for c in columns), *table.noun]
    allowed = {abs(q.value) for part in known for q in quantities_in(part)}
    allowed |= {abs(q.value * q.factor) for part in known for q in quantities_in(part)}
    allowed |= {abs(float(n)) for part in known for n in re.findall(r"\d+(?:\.\d+)?", part)}
    for q in quantities_in(_without(text, [spec.unit, *(c.unit or "" for c in columns)])):
        if not any(_same(abs(q.value), a) or _same(abs(q.value * q.factor), a) for a in allowed):
            raise Unfit("invented", f"the number {q.value:g} is not in the construction")


def _without(text: str, units: Sequence[str]) -> str:
    for unit in sorted(filter(None, units), key=len, reverse=True):
        if re.search(r"\d", unit):
            text = re.sub(rf"(?<![\w/^]){re.escape(unit)}(?![\w/^])", " ", text)
    return text


def _leaks(text: str, solved: Solved, table: Table) -> None:
    plain_text = unicodedata.normalize("NFKC", text)
    names = [(solved.entity, re.IGNORECASE)]
    # symbols and codes: In is indium, in is a word
    names += [(str(solved.row[a]), re.NOFLAG) for a in table.aliases if solved.row[a] not in (None, "")]
    for name, flags in names:
        # whatever is put between the letters: "Rhea's", "Rhea-like", "R h e a" is left to a reader
        if re.search(rf"(?<!\w){re.escape(unicodedata.normalize('NFKC', name))}(?!\w)", plain_text, flags):
            raise Unfit("entity_leak", f"the wording names {name}")
    for target in targets_of({"answer": "", "targets": list(solved.targets)}):
        for q in quantities_in(text):
            if target.met_by(q):
                raise Unfit("answer_leak", f"{q.value:g} in the wording is the target {target.name}")
