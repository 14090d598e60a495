"""Difficulty filters: each reads what `rufus data solve-rate --label LABEL` left in a record, and keeps it or not.

Registered as data filters; `rufus data filter --filters NAME:field=value` applies them. A record without the rates that
a filter needs is set aside as such (`DataError`), never kept or dropped by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.task_records import rates_of
from rufus_plugins.types import Task


@dataclass
class TeacherCorrect:
    """Keeps what a teacher got a positive reward for at least once (Rufus-Air)."""

    label: str = "teacher"
    at_least: int = 1

    def __call__(self, task: Task) -> tuple[bool, str]:
        rates = rates_of(task, self.label)
        right = sum(value > 0 for value in rates["values"])
        return right >= self.at_least, f"the teacher got it {right} of {rates['attempts']} times"


@dataclass
class Learnable:
    """Keeps a mean reward in (low, high]: neither never nor nearly always solved (Rufus-Air, Reasoning RL)."""

    label: str = "policy"
    low: float = 0.0
    high: float = 0.8

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"learnable: low={self.low} must be below high={self.high}")

    def __call__(self, task: Task) -> tuple[bool, str]:
        from rufus_plugins.algos.group_filter import compare_mean  # the band of training, to the same edge

        rates = rates_of(task, self.label)
        mean, values = rates["mean"], rates["values"]
        inside = compare_mean(values, self.low) > 0 >= compare_mean(values, self.high)
        return inside, f"mean reward {mean:.3f}, band ({self.low:g}, {self.high:g}]"


@dataclass
class NotAll:
    """Drops what all warm-up attempts solved (Rufus-Air, Coding RL: all four)."""

    label: str = "policy"
    attempts: int = 4

    def __call__(self, task: Task) -> tuple[bool, str]:
        rates = rates_of(task, self.label, self.attempts)
        return rates["correct"] < rates["attempts"], f"solved {rates['correct']} of {rates['attempts']} times"


@dataclass
class Mixed:
    """Drops what no attempt or every attempt solved (Rufus-Air, Search Agent: 0/8 and 8/8)."""

    label: str = "policy"
    attempts: int = 8

    def __call__(self, task: Task) -> tuple[bool, str]:
        rates = rates_of(task, self.label, self.attempts)
        return 0 < rates["correct"] < rates["attempts"], f"solved {rates['correct']} of {rates['attempts']} times"


@dataclass
class ClosedBook:
    """Drops what is solved from memory alone (Axion): label it by a solve-rate run without tools or documents."""

    label: str = "closed_book"
    allowed: int = 0
    """Attempts that may be right."""

    def __call__(self, task: Task) -> tuple[bool, str]:
        rates = rates_of(task, self.label)
        return rates["correct"] <= self.allowed, f"solved from memory {rates['correct']} of {rates['attempts']} times"


@dataclass
class ToolFree:
    """Drops what is answerable without tools (Rufus-Air, Search Agent): label it by a run without an environment."""

    label: str = "tool_free"
    allowed: int = 0
    """Attempts that may be right."""

    def __call__(self, task: Task) -> tuple[bool, str]:
        rates = rates_of(task, self.label)
        return rates["correct"] <= self.allowed, f"solved without tools {rates['correct']} of {rates['attempts']} times"


@dataclass
class Axion:
    """Keeps at least one right answer and rewards that differ, of four attempts (Axion, RL)."""

    label: str = "policy"
    attempts: int = 4

    def __call__(self, task: Task) -> tuple[bool, str]:
        rates = rates_of(task, self.label, self.attempts)
        varied = max(rates["values"]) > min(rates["values"])
        spread = "differ" if varied else "are all the same"
        said = f"solved {rates['correct']} of {rates['attempts']} times, rewards {spread}"
        return rates["correct"] >= 1 and varied, said


FILTERS = {
    "teacher_correct": TeacherCorrect,
    "learnable": Learnable,
    "not_all": NotAll,
    "mixed": Mixed,
    "closed_book": ClosedBook,
    "tool_free": ToolFree,
    "axion": Axion,
}
