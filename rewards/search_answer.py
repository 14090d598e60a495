"""Search Agent reward (Rufus-Air, Search Agent stage): `R = s * (1 - 0.5 m)`.

`s` is the judge's score of the final answer, `m` the fraction of malformed calls among all calls (0 when no call was
made). A positive reward needs two successful calls. A budget that ends without an answer costs 0.1.

The paper audits *incidental* tool use: calls that were made, but whose results the answer does not rest on. The metric
`evidence` says whether the answer stands in a tool result that came before it (or in `artifacts["evidence"]`), and
`incidental` marks a rewarded answer for which it does not. Neither changes the reward.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.rewards.final_answer import final_answer, without_thinking
from rufus_plugins.rewards.judge import build_judge, question_of, text_of
from rufus_plugins.rewards.text_match import contains
from rufus_plugins.types import CallStatus, Fault, Score, Termination, ToolCall, Trajectory


def malformed_fraction(calls: Sequence[ToolCall]) -> float:
    """Malformed calls over all calls; 0.0 when there was none."""
    return sum(c.status is CallStatus.MALFORMED for c in calls) / len(calls) if calls else 0.0


def batch_malformed_fraction(rollouts: Iterable[Sequence[ToolCall]]) -> float:
    """All malformed calls of a batch over all its calls, so that a rollout without calls weighs nothing."""
    return malformed_fraction([call for calls in rollouts for call in calls])


@dataclass
class SearchAnswer:
    """Judge score times (1 - 0.5 malformed fraction); needs two successful tool calls; -0.1 for a spent budget."""

    judge: Any = field(default_factory=lambda: {"judge": "openai_compatible"})
    """The judge by name or as {judge, field: value ...}. ground_truth (a string, or a list of alternatives) is its
    reference."""
    malformed_weight: float = 0.5
    min_successful_calls: int = 2
    no_answer: float = -0.1
    """When a budget (tool calls, turns, context, length, time) ended the rollout without an answer."""

    def __post_init__(self) -> None:
        self._judge = build_judge(self.judge)

    async def __call__(self, trajectory: Trajectory) -> Score:
        ending = trajectory.termination
        if ending.fault is Fault.INFRASTRUCTURE:
            raise InfrastructureError(f"the rollout ended with {ending.value}: nothing to score", ending)
        calls = trajectory.tool_calls
        good = sum(c.status is CallStatus.OK for c in calls)
        m = malformed_fraction(calls)
        metrics: dict[str, Any] = {
            "tool_calls": len(calls),
            "tool_calls_ok": good,
            "tool_calls_malformed": sum(c.status is CallStatus.MALFORMED for c in calls),
            "malformed_fraction": m,
        }
        if ending.fault is Fault.BUDGET:
            return Score(self.no_answer, metrics | {"answered": False}, f"the budget ({ending.value}) ended, no answer")
        answer = without_thinking(trajectory.response)
        if ending is not Termination.ANSWERED or not answer or not answer.strip():
            return Score(0.0, metrics | {"answered": False}, f"no final answer ({ending.value})")
        golds = _alternatives(trajectory.task.ground_truth)
        verdict = await self._judge(question_of(trajectory.task.prompt), answer, " ||| ".join(golds) or None)
        value = verdict.value * (1.0 - self.malformed_weight * m)
        note = ""
        if value > 0 and good < self.min_successful_calls:
            value, note = 0.0, f"; only {good} successful tool calls, {self.min_successful_calls} are needed"
        evidence = _evidence(trajectory, answer, golds if verdict.value > 0 else ())
        metrics |= {
            "answered": True,
            "judge_score": verdict.value,
            "evidence": evidence,
            "incidental": value > 0 and not evidence,
            **{k: v for k, v in verdict.metrics.items() if k.startswith("judge_")},
        }
        return Score(value, metrics, f"judge {verdict.value:g}, malformed {m:.2f}{note}. {verdict.explanation}")


def _alternatives(gold: Any) -> list[str]:
    if gold is None or gold == "":
        return []
    if isinstance(gold, str) and gold.lstrip().startswith("["):
        try:
            gold = json.loads(gold)  # a Parquet column holds texts only
        except ValueError:
            pass  # an answer may begin with a bracket
    if isinstance(gold, Mapping):
        gold = gold.get("answer", gold.get("target", ""))
    return [str(g) for g in gold] if isinstance(gold, (list, tuple)) else [str(gold)]


def _evidence(trajectory: Trajectory, answer: str, golds: Sequence[str]) -> bool:
    """Whether the final answer, or a gold string that it contains, stands in what the model was shown before it.

    That is `artifacts["evidence"]` where the environment kept it, else the earlier tool results. What the model itself
    put into the call (`said`) is no evidence when it comes back.
    """
    kept = trajectory.artifacts.get("evidence")
    if kept is None:
        messages = list(trajectory.messages)
        last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=0)
        kept = [text_of(m) for m in messages[:last] if m.get("role") == "tool"]
    claimed = [a for a in (final_answer(answer), *golds) if a and contains(answer, a)]
    for item in [kept] if isinstance(kept, str) else kept:
        item = item if isinstance(item, Mapping) else {"text": item}
        text, said = str(item.get("text", "")), str(item.get("said", ""))
        if any(contains(text, claim) and not contains(said, claim) for claim in claimed):
            return True
    return False
