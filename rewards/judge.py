"""The verdict of a judge on the response.

`rufus.reward.judge: {judge: openai_compatible, base_url: http://127.0.0.1:8000/v1, model: NAME, protocol: json_score}`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.protocols import Judge
from rufus_plugins.rewards.final_answer import without_thinking
from rufus_plugins.types import Message, Score, Trajectory


def build_judge(judge: Any) -> Judge:
    """The judge that a config names: a name, {judge: NAME, field: value ...}, or a judge object."""
    from rufus_plugins.plugins import registry

    if isinstance(judge, str):
        return registry().build("judge", judge)
    if isinstance(judge, Mapping):
        config = {str(k): v for k, v in judge.items()}
        name = config.pop("judge", "openai_compatible")
        return registry().build("judge", name, config)
    if callable(judge):
        return judge
    raise ConfigError(f"a judge is a name or a mapping {{judge: NAME, field: value}}, not {judge!r}")


def question_of(messages: Sequence[Message]) -> str:
    """What was asked: the user's text if there is one message, else the whole conversation with its roles."""
    shown = [(m.get("role", "?"), text_of(m)) for m in messages if m.get("role") != "system"]
    if len(shown) == 1:
        return shown[0][1]
    return "\n\n".join(f"{role}: {text}" for role, text in shown)


def text_of(message: Message) -> str:
    """The text of a message, its content being a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(p.get("text") or "" for p in content if isinstance(p, Mapping))
    return ""


@dataclass
class JudgeReward:
    """A judge's score in 0..1 for the response, without its thinking; ground_truth is the reference, if any."""

    judge: Any = field(default_factory=lambda: {"judge": "openai_compatible"})
    """The judge by name or as {judge, field: value ...}."""

    def __post_init__(self) -> None:
        self._judge = build_judge(self.judge)

    async def __call__(self, trajectory: Trajectory) -> Score:
        response = without_thinking(trajectory.response)
        if response is None or not response.strip():
            return Score(0.0, {"answered": False}, "no answer: the response is empty outside the thinking")
        gold = trajectory.task.ground_truth
        reference = None if gold in (None, "") else gold if isinstance(gold, str) else str(gold)
        score = await self._judge(question_of(trajectory.task.prompt), response, reference)
        return Score(score.value, {**score.metrics, "answered": True}, score.explanation)
