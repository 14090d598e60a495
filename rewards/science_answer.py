"""Science answers: fuzzy string match, numbers with units within a tolerance (Rufus-Air, Reasoning RL).

The final answer (`final_answer.py`, else the whole response after the thinking) is compared with the gold string, or
with each of a list of gold strings:

- a gold that is a choice letter (`B`, `(B)`) needs that letter;
- a gold that is a number or a fraction of numbers, with or without a unit, needs the same quantity within
  `relative_tolerance`; units are converted, a unit of another dimension is wrong, a missing unit is taken as the
  gold's;
- anything else is text: after `text_match.normalise`, rapidfuzz's ratio must reach `threshold`, and each word that
  differs must be a plain spelling variant: numbers, negations and pairs such as hyper-/hypo-, endo-/exo-,
  sulfate/sulfite are one letter apart and yet different answers. Word order is free only in an enumeration of items of
  one or two words: "A inhibits B" is not "B inhibits A".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.rewards.final_answer import final_answer, without_thinking
from rufus_plugins.rewards.text_match import normalise
from rufus_plugins.rewards.units import parse_quantity
from rufus_plugins.types import Score, Trajectory

_LETTER = re.compile(r"^\W*(?:option|choice|answer)?\W*([A-J])\W*$")
_CHOSEN = re.compile(r"^\W*(?:(?:option|choice|answer)\W+)?([A-Ja-j])(?:\W*$|\s*[).:\]]|\s*\}\s*[).:]?)", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:option|choice|answer)?\s*(?:\([A-Ja-j]\)|[A-Ja-j][).:])\s+", re.IGNORECASE)
"""A choice's letter in front of its text."""
_OPPOSITES = (
    ("hyper", "hypo"), ("endo", "exo"), ("inter", "intra"), ("macro", "micro"), ("pro", "anti"), ("increas", "decreas"),
    ("over", "under"), ("ante", "post"), ("pre", "post"), ("super", "sub"), ("cis", "trans"), ("para", "ortho"),
    ("up", "down"), ("in", "out"), ("homo", "hetero"), ("iso", "aniso"), ("ana", "cata"), ("oxid", "reduc"),
)  # fmt: skip
_NEGATIONS = ("un", "in", "im", "ir", "il", "non", "dis", "a", "anti", "de", "an")
_ENDINGS = ("ate", "ite", "ide", "ane", "ene", "yne", "ic", "ous", "ose", "ase", "ol", "al", "one", "yl", "ine", "ium")
_NEGATING = {"not", "no", "never", "without", "neither", "nor", "cannot", "except", "false", "true", "yes"}


@dataclass
class ScienceAnswer:
    """1 if the final answer matches the gold string: text fuzzily, numbers with units within a tolerance."""

    threshold: float = 0.9
    """Least rapidfuzz ratio (0..1) of texts. Ours."""
    relative_tolerance: float = 0.01
    """For numbers. Ours: two or three significant digits are the rule in science sets."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1 or not 0 <= self.relative_tolerance < 1:
            raise ConfigError("science_answer: threshold must be in (0, 1] and relative_tolerance in [0, 1)")

    async def __call__(self, trajectory: Trajectory) -> Score:
        golds = gold_strings(trajectory.task.ground_truth, "science_answer")
        response = without_thinking(trajectory.response)
        answer = None if response is None else final_answer(response) or _short(response)
        if answer is None:
            return Score(0.0, {"answered": False}, "no final answer")
        verdicts = [self.compare(gold, answer) for gold in golds]
        best = max(range(len(golds)), key=lambda i: verdicts[i][0])
        passed, ratio, why = verdicts[best]
        return Score(
            float(passed), {"answered": True, "ratio": ratio}, f"{answer[:200]!r} against {golds[best]!r}: {why}"
        )

    def compare(self, gold: str, answer: str) -> tuple[bool, float, str]:
        """(same, ratio, why)."""
        if letter := _LETTER.match(_opened(gold)):
            chosen = _CHOSEN.match(_opened(answer))
            same = bool(chosen) and chosen.group(1).upper() == letter.group(1)
            return same, float(same), "choice"
        wanted = parse_quantity(gold)
        if wanted is not None:
            found = parse_quantity(answer)
            same = found is not None and wanted.close_to(found, self.relative_tolerance)
            return same, float(same), "quantity" if found else "the answer is no quantity"
        items = re.split(r",|;|\band\b|&", gold)
        if not _LABEL.match(_opened(gold)):  # "(B) mitochondria", where the set has no letters
            answer = _LABEL.sub("", _opened(answer), count=1)
        return self._text(normalise(gold), normalise(answer), all(len(item.split()) <= 2 for item in items))

    def _text(self, gold: str, answer: str, any_order: bool) -> tuple[bool, float, str]:
        from rapidfuzz import fuzz

        if not gold or not answer:
            return False, 0.0, "empty after normalisation"
        if gold == answer:
            return True, 1.0, "same text"
        ratio = max(fuzz.ratio(gold, answer), fuzz.token_sort_ratio(gold, answer) if any_order else 0.0) / 100
        if ratio < self.threshold:
            return False, ratio, f"ratio {ratio:.2f} below {self.threshold:g}"
        differing = _differing(gold.split(), answer.split())
        if differing:
            return False, ratio, f"ratio {ratio:.2f}, but {differing} is no spelling variant"
        return True, ratio, f"ratio {ratio:.2f}"


def gold_strings(ground_truth: object, reward: str) -> list[str]:
    """The gold string, or the alternatives, of a record."""
    found = ground_truth if isinstance(ground_truth, Sequence) and not isinstance(ground_truth, str) else [ground_truth]
    strings = [str(g) for g in found if isinstance(g, (str, int, float)) and not isinstance(g, bool)]
    if not strings or len(strings) != len(found) or not all(s.strip() for s in strings):
        raise DataError(
            f"{reward}: ground_truth must be a non-empty string or a list of them, not {str(ground_truth)[:200]!r}"
        )
    if any(isinstance(g, float) and not math.isfinite(g) for g in found):
        raise DataError(f"{reward}: ground_truth is {ground_truth!r}, which is no answer but a missing value")
    if any("\ud800" <= c <= "\udfff" for s in strings for c in s):
        raise DataError(f"{reward}: ground_truth holds half a surrogate pair: {ground_truth!r:.200}")
    return strings


def _opened(text: str) -> str:
    return (
        re.sub(r"\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{([^{}]*)\}", r"\1", text).replace("$", "").replace("*", "")
    )


def _short(response: str) -> str | None:
    """A whole response that is short enough to be the answer itself."""
    text = response.strip()
    return text if text and len(text) <= 200 and "\n" not in text else None


def _differing(gold: list[str], answer: list[str]) -> str:
    """The first pair of words that makes two similar texts different answers; "" if there is none."""
    left, right = list(gold), list(answer)
    for word in gold:
        if word in right:
            left.remove(word)
            right.remove(word)
    if not left and not right:
        return ""
    fillers = {"the", "a", "an", "of", "in", "is", "and", "to", "by", "for", "its", "it"}
    left, right = [w for w in left if w not in fillers], [w for w in right if w not in fillers]
    if "".join(left).replace("-", "") == "".join(right).replace("-", ""):
        return ""  # only written apart
    for one, other in zip(left, right, strict=False):
        if not _variant(one, other):
            return f"{one!r}/{other!r}"
    extra = left[len(right) :] + right[len(left) :]
    return repr(extra[0]) if extra else ""


def _variant(one: str, other: str) -> bool:
    """Whether two words are spellings of the same word."""
    from rapidfuzz.distance import DamerauLevenshtein

    letters = (one + other).replace("-", "").replace("'", "")
    if not letters.isalpha() or not letters.isascii() or {one, other} & _NEGATING:  # digits, formulas, iron(III)
        return one == other
    for a, b in ((one, other), (other, one)):
        for p, q in _OPPOSITES:
            if a.startswith(p) and b.startswith(q) and not (a.startswith(q) and b.startswith(p)):
                return False
        if any(a == prefix + b or a == prefix + "-" + b for prefix in _NEGATIONS):
            return False
    endings = [max((e for e in _ENDINGS if w.removesuffix("s").endswith(e)), key=len, default="") for w in (one, other)]
    if endings[0] != endings[1] and all(endings):
        return False
    allowed = 0 if min(len(one), len(other)) < 5 else 1 if min(len(one), len(other)) < 9 else 2
    if one.rstrip("s") == other.rstrip("s"):
        return True
    return one[0] == other[0] and DamerauLevenshtein.distance(one, other) <= allowed
