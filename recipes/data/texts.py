"""The text of a record in any of the common shapes, as turns: what the screens read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

CONVERSATIONS = ("messages", "conversations", "conversation", "prompt")
"""Columns that may hold a list of turns; the first that does is the record's conversation."""
QUESTIONS = ("question", "problem", "prompt", "instruction", "query", "statement", "task", "goal", "input", "text")
"""Columns of a benchmark that may hold what is asked; the first that is there counts."""
SYSTEMS = ("system", "system_prompt")
"""Columns beside a conversation that are part of it."""
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant", "observation": "tool"}

Turn = tuple[str, str]
"""(role, text); the role of a plain column is its name."""


def turns_of(record: Mapping[str, Any], columns: Sequence[str] = ()) -> list[Turn]:
    """All that a record says. Without `columns`: its conversation if it has one, else every text column in order."""
    names: Sequence[str] = columns
    if not names:
        found = next((c for c in CONVERSATIONS if _listed(record.get(c))), None)
        names = [*(s for s in SYSTEMS if s in record), found] if found else list(record)
    turns: list[Turn] = []
    for name in names:
        value = _listed(record.get(name)) or record.get(name)
        if isinstance(value, str):
            turns.append((name, value))
        elif isinstance(value, (list, tuple)):
            turns += [turn for part in value for turn in _turn(part, name)]
        elif isinstance(value, Mapping) and columns:
            turns += _turn(value, name)
    return [turn for turn in turns if turn[1].strip()]


def missing(record: Mapping[str, Any], columns: Sequence[str]) -> str:
    """What to say of a record that has none of the named columns; "" if it has one, or none was named."""
    return (
        f"the record has none of --columns {' '.join(columns)}" if columns and not record.keys() & set(columns) else ""
    )


def _listed(value: Any) -> list[Any] | tuple[Any, ...] | None:
    """A list, also one of mappings that a column holds as JSON text; None for all else and what is empty."""
    if isinstance(value, str) and value.lstrip()[:1] == "[" and value.rstrip()[-1:] == "]" and "{" in value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, list) or not all(isinstance(part, Mapping) for part in value):
            return None
    return value if isinstance(value, (list, tuple)) and value else None


def _turn(part: Any, name: str) -> list[Turn]:
    if isinstance(part, str):
        return [(name, part)]
    if isinstance(part, (list, tuple)):  # Alpaca's history: pairs of request and answer
        return [(name, text) for text in part if isinstance(text, str)]
    if not isinstance(part, Mapping):
        return []
    role = part.get("role") or part.get("from") or name
    role = _ROLES.get(str(role), str(role))
    said = [text_of(part.get(key)) for key in ("reasoning_content", "content", "value", "text")]
    if isinstance(result := part.get("content"), Mapping):  # a tool's, as JSON
        said += _leaves(result)
    calls = part.get("tool_calls")
    for call in (*(calls if isinstance(calls, (list, tuple)) else ()), part.get("function_call")):
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                said.append(arguments)
                continue
        said += _leaves(arguments)
    text = "\n".join(filter(None, said))
    return [(role, text)] if text else []


def _leaves(value: Any) -> list[str]:
    """The texts within a JSON value, as they are, not as JSON escapes them."""
    todo, found = [value], []
    while todo:
        value = todo.pop()
        if isinstance(value, Mapping):
            todo += [part for pair in reversed(value.items()) for part in reversed(pair)]
        elif isinstance(value, (list, tuple)):
            todo += reversed(value)
        elif value is not None:
            found.append(str(value))
    return found


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        return "\n".join(
            part if isinstance(part, str) else str(part.get("text") or "") if isinstance(part, Mapping) else ""
            for part in content
        )
    return ""


def question_of(record: Mapping[str, Any], columns: Sequence[str] = ()) -> str | None:
    """What a benchmark's record asks; None if no column holds it."""
    if columns:
        said = [text for column in columns for _, text in turns_of(record, [column])]
        return "\n".join(said) or None
    for column in ("messages", *QUESTIONS):
        said = [text for _, text in turns_of(record, [column])] if record.get(column) else []
        if said:
            return "\n".join(said)
    return None


def id_of(record: Mapping[str, Any]) -> str:
    """The record's own id, "" if it has none that is short and printable."""
    for holder in (record, record.get("extra_info"), record.get("extra")):
        if not isinstance(holder, Mapping):
            continue
        for key in ("id", "task_id", "question_id", "problem_id", "uid", "uuid"):
            value = holder.get(key)
            if isinstance(value, (int, str)) and not isinstance(value, bool) and 0 < len(str(value)) <= 80:
                return str(value)
    return ""
