"""Records as tasks, and what is known of a task's difficulty in the record.

Read are verl's RL rows (`prompt`, `reward_model.ground_truth`, `data_source`, `extra_info`), the JSONL of `rufus score`
(`prompt`, `ground_truth`, `extra`), SFT conversations (`messages`, up to the last user turn), and plain columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.texts import QUESTIONS, id_of, text_of
from rufus_plugins.types import Message, Task

ANSWERS = ("ground_truth", "answer", "solution", "expected_answer")
RATES = "solve_rate"
"""Key in a record's `extra_info` (or `extra`): label -> what the attempts came to."""


def task_of(raw: Raw, prompt: str = "", answer: str = "") -> Task:
    """The task of a record; `prompt` and `answer` name columns of other names. Raises `Refused` without a prompt."""
    record = raw.record
    asked = _prompt(record, prompt)
    if not asked:
        raise Refused("no_prompt", f"no prompt in {prompt or ', '.join(('messages', *QUESTIONS))}")
    model = record.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, Mapping) else None
    if answer or truth is None:
        name = answer or next((name for name in ANSWERS if record.get(name) is not None), None)
        truth = record.get(name) if name else None
    return Task(
        id=id_of(record) or raw.where,
        data_source=str(record.get("data_source") or "unknown"),
        prompt=asked,
        ground_truth=truth,
        extra=extra_of(record),
    )


def _prompt(record: Mapping[str, Any], column: str) -> list[Message]:
    for name in [column] if column else ["messages", *QUESTIONS]:
        value = record.get(name)
        if isinstance(value, str) and value.strip():
            return [{"role": "user", "content": value}]
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            if not all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in value):
                continue
            turns = [{k: v for k, v in m.items() if v is not None} for m in value]
            if name == "messages":  # a whole conversation: what comes after its last question is an answer
                last = max((i for i, m in enumerate(turns) if m["role"] == "user"), default=-1)
                turns = turns[: last + 1]
            if any(m["role"] == "user" and text_of(m.get("content")).strip() for m in turns):
                return turns
    return []


def extra_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record's `extra_info` or `extra`; JSON text is read."""
    for name in ("extra_info", "extra"):
        value = record.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, Mapping):
            return dict(value)
    return {}


def with_rates(record: Mapping[str, Any], label: str, rates: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the rates of one label beside those of others."""
    place = "extra" if "extra" in record and "extra_info" not in record else "extra_info"
    if place == "extra_info" and not {"extra_info", "reward_model"} & set(record):
        place = "extra"
    extra = extra_of(record)
    old = extra.get(RATES)
    known = {k: v for k, v in old.items() if v is not None} if isinstance(old, Mapping) else {}
    return {**record, place: {**extra, RATES: {**known, label: dict(rates)}}}


def rates_of(task: Task, label: str, attempts: int = 1) -> dict[str, Any]:
    """What `rufus data solve-rate --label LABEL` left. Raises `DataError` if it is missing or of too few attempts."""
    known = task.extra.get(RATES)
    known = {k: v for k, v in known.items() if v is not None} if isinstance(known, Mapping) else {}
    rates = known.get(label)
    if not isinstance(rates, Mapping) or not isinstance(rates.get("values"), Sequence):
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise DataError(f"no solve rate {label!r} ({there}): run `rufus data solve-rate --label {label}` first")
    values = [float(v) for v in rates["values"]]
    if len(values) < attempts:
        raise DataError(f"solve rate {label!r} is of {len(values)} attempts; {attempts} are needed")
    solved_at = float(rates.get("solved_at", 1.0))
    return {
        "values": values,
        "mean": sum(values) / len(values),
        "correct": sum(v >= solved_at for v in values),
        "attempts": len(values),
    }
