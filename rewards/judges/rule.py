"""A judge without a model: 1 if the candidate's final answer is the reference, else 0. For tests and offline tries."""

from __future__ import annotations

from dataclasses import dataclass

from rufus_plugins.errors import DataError
from rufus_plugins.rewards.final_answer import final_answer, undress
from rufus_plugins.rewards.text_match import exact_match
from rufus_plugins.types import Score


@dataclass
class RuleJudge:
    """Exact match with the reference after normalisation; no model."""

    separator: str = "|||"
    """Separates alternatives in one reference string."""

    async def __call__(self, question: str, candidate: str, reference: str | None = None) -> Score:
        if not reference:
            raise DataError("the rule judge compares with a reference, and this record has none")
        answer = final_answer(candidate) or undress(candidate)
        golds = reference.split(self.separator) if self.separator else [reference]
        hit = next((gold for gold in golds if exact_match(gold, answer)), None)
        if hit is not None:
            return Score(1.0, explanation=f"{answer!r} matches {hit!r}")
        return Score(0.0, explanation=f"{answer[:200]!r} matches none of {golds!r}")
