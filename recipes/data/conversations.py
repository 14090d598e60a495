"""From the common shapes of chat records to one schema.

Read: OpenAI messages (with `tool_calls`, legacy `function_call`, arguments as text or mapping), ShareGPT
(`from`/`value`), Alpaca (`instruction`/`input`/`output`/`history`), prompt and completion; calls in the text as Hermes,
Qwen3-Coder or GLM-4.5 write them; reasoning in `<think>` or in fields of its own.

The schema is OpenAI's, with `reasoning_content` and `train`: messages of `role` (system, user, assistant, tool),
`content` (text), and where they apply `reasoning_content`, `tool_calls` (`arguments` as JSON text), `tool_call_id`,
`name`, `train`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rufus_plugins.recipes.data.conversation_calls import (
    call_of,
    calls_in_text,
    calls_of,
    id_text,
    link_results,
    merged_calls,
    parsed,
    read_tools,
    responses,
    several,
)
from rufus_plugins.recipes.data.records import Refused

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function_call": "call",
    "tool_call": "call",
}
"""Names of roles -> ours; `call` is an assistant message whose text is a call."""

REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
OVERRIDES = ("train", "loss", "loss_mask", "trainable", "weight")
"""Per-message supervision as it is found (verl#5316's loss_mask, OpenAI's weight): 0, 1, false or true."""
MEDIA = ("images", "image", "videos", "video", "audios", "audio")
_LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat")
_PAIRS = (("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("query", "response"))


def conversation(
    record: Mapping[str, Any], notes: Counter[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """(messages, tools). Raises `Refused`; `notes` counts what was changed."""
    if media := next((k for k in MEDIA if record.get(k)), None):
        raise Refused("media", f"the record has {media}")
    tools = read_tools(record.get("tools", record.get("functions")))
    given = _given(record)
    if not given:
        raise Refused("no_messages", "the conversation is empty")
    messages: list[dict[str, Any]] = []
    for i, message in enumerate(given):
        if not isinstance(message, Mapping):
            raise Refused("bad_message", f"message {i} is a {type(message).__name__}")
        messages += _message(i, message, tools, notes)
    messages = merged_calls(messages)
    link_results(messages, notes)
    if not any(m["role"] == "assistant" for m in messages):
        raise Refused("no_assistant", "no message is the assistant's")
    return messages, tools


def _given(record: Mapping[str, Any]) -> list[Any]:
    """The messages as the record has them, a system prompt of its own first."""
    found: list[Any] | None = None
    for key in _LISTS:
        value = record.get(key)
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = parsed(value, "bad_messages", key)
        if isinstance(value, (list, tuple)):
            found = list(value)
            break
    if found is None:
        found = _pair(record)
    system = _text_field(record, "system") or _text_field(record, "system_prompt")
    if system.strip():
        if not any(_role_of(m) == "system" for m in found[:1]):
            found.insert(0, {"role": "system", "content": system})
        elif system.strip() != _content(0, found[0])[0].strip():
            raise Refused("two_systems", "the record has a system prompt in a field and another one in its messages")
    return found


def _pair(record: Mapping[str, Any]) -> list[Any]:
    if "instruction" in record and ("output" in record or "response" in record):
        history = record.get("history") or []
        if not all(isinstance(turn, (list, tuple)) and len(turn) == 2 for turn in history):
            raise Refused("bad_history", "history is no list of [request, answer]")
        asked = "\n\n".join(filter(None, (_text_field(record, "instruction"), _text_field(record, "input"))))
        turns = [*history, (asked, record.get("output", record.get("response")))]
        return [{"role": r, "content": t} for turn in turns for r, t in zip(("user", "assistant"), turn, strict=True)]
    for asked, answered in _PAIRS:
        if asked in record and answered in record:
            made: list[Any] = []
            for role, value in (("user", record[asked]), ("assistant", record[answered])):
                made += list(value) if isinstance(value, (list, tuple)) else [{"role": role, "content": value}]
            return made
    raise Refused("unknown_shape", f"no known conversation field among {', '.join(map(str, record)) or 'no fields'}")


def _text_field(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refused("bad_content", f"{key} is a {type(value).__name__}")
    return value


def _role_of(message: Any) -> str | None:
    if not isinstance(message, Mapping):
        return None
    name = _first(message, "role", "from")
    return ROLES.get(name.strip().lower()) if isinstance(name, str) else None


def _first(holder: Mapping[str, Any], *keys: str) -> Any:
    """The first of these fields that is not null: Parquet fills the fields of other shapes with nulls."""
    return next((holder[key] for key in keys if holder.get(key) is not None), None)


def _message(i: int, message: Mapping[str, Any], tools: Any, notes: Counter[str]) -> list[dict[str, Any]]:
    role = _role_of(message)
    if role is None:
        raise Refused("unknown_role", f"message {i} is from {_first(message, 'role', 'from')!r}")
    content, thought = _content(i, message)
    train = _override(i, message)
    if role in ("system", "user"):
        if role == "user" and (results := responses(content)) is not None:
            notes["results_in_user_messages"] += 1
            return [{"role": "tool", "content": text} for text in results]
        made = {"role": role, "content": content}
        if train:
            raise Refused("override_not_assistant", f"message {i} ({role}) asks to be trained on")
        return [made]
    if role == "tool":
        results = responses(content)
        name, call_id = message.get("name"), id_text(message.get("tool_call_id"))
        made = {"role": "tool", "content": content if results is None or len(results) != 1 else results[0]}
        if results is not None and len(results) > 1:
            return [{"role": "tool", "content": text} for text in results]
        if call_id:
            made["tool_call_id"] = call_id
        if isinstance(name, str) and name:
            made["name"] = name
        return [made]
    made = _assistant(i, role, message, content, thought, tools, notes)
    if train is not None:
        made["train"] = train
    return [made]


def _assistant(
    i: int, role: str, message: Mapping[str, Any], content: str, thought: str | None, tools: Any, notes: Counter[str]
) -> dict[str, Any]:
    inline, content = _split_thinking(i, content)
    if inline is not None and thought and inline.strip() != thought.strip():
        raise Refused("two_reasonings", f"message {i} has reasoning in a field and another one in <think>")
    thought = thought if thought else inline
    calls = calls_of(i, message)
    if role == "call":
        calls = calls or [call_of(i, c) for c in several(parsed(content, "bad_arguments", f"message {i}"))]
        content = ""
    elif "<tool_call>" in content:
        read, content = calls_in_text(i, content, tools)
        if calls and read != [c["function"] for c in calls]:
            raise Refused("two_calls", f"message {i} has calls in a field and other ones in its text")
        calls = calls or [{"type": "function", "function": f} for f in read]
        notes["calls_from_text"] += 1
    made: dict[str, Any] = {"role": "assistant", "content": content}
    if thought and thought.strip():
        made["reasoning_content"] = thought.strip("\n")
    if calls:
        made["tool_calls"] = calls
    if not content.strip() and not calls and "reasoning_content" not in made:
        raise Refused("empty_assistant", f"message {i} says nothing")
    return made


def _content(i: int, message: Mapping[str, Any]) -> tuple[str, str | None]:
    """(text, reasoning of a field or part)."""
    thoughts = [t for k in REASONING if isinstance(t := message.get(k), str) and t.strip()]
    if odd := next((k for k in REASONING if isinstance(message.get(k), (list, tuple, Mapping)) and message[k]), None):
        raise Refused("bad_content", f"{odd} of message {i} is a {type(message[odd]).__name__}")
    value = _first(message, "content", "value", "text")
    if _role_of(message) == "tool" and isinstance(value, (list, tuple)) and not all(map(_is_part, value)):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        texts = []
        for part in value:
            if isinstance(part, str):
                texts.append(part)
                continue
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("text", "input_text", "output_text", "refusal") and isinstance(
                text := part.get("text", part.get(kind)), str
            ):
                texts.append(text)
            elif kind in ("thinking", "reasoning") and isinstance(text := part.get(kind, part.get("text")), str):
                thoughts.append(text)
            else:
                media = any(word in str(kind).lower() for word in MEDIA)
                raise Refused("media" if media else "bad_content", f"message {i} has a part of type {kind!r}")
        value = "".join(texts)
    if value is None:
        value = ""
    if not isinstance(value, str):
        if _role_of(message) == "tool":
            value = json.dumps(value, ensure_ascii=False)
        else:
            raise Refused("bad_content", f"the content of message {i} is a {type(value).__name__}")
    if len(set(t.strip() for t in thoughts)) > 1 and not isinstance(message.get("content"), (list, tuple)):
        raise Refused("two_reasonings", f"message {i} has two different reasonings")
    thought = "\n".join(dict.fromkeys(thoughts)) if thoughts else None
    return value, thought


def _is_part(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and isinstance(part.get("type"), str))


def _override(i: int, message: Mapping[str, Any]) -> bool | None:
    values = {k: message[k] for k in OVERRIDES if message.get(k) is not None}
    flags = set()
    for key, value in values.items():
        if value not in (0, 1):  # True == 1
            raise Refused("bad_override", f"{key} of message {i} is {value!r}; 0, 1, true or false is needed")
        flags.add(bool(value))
    if len(flags) > 1:
        raise Refused("bad_override", f"message {i} says two things: {values}")
    return flags.pop() if flags else None


def _split_thinking(i: int, text: str) -> tuple[str | None, str]:
    """(reasoning, the rest): a block at the start, or one whose start the chat template had written."""
    start, end = text.find("<think>"), text.find("</think>")
    if start < 0 and end < 0:
        return None, text
    if end < 0:
        if text[:start].strip():
            return None, text  # talks about the tag
        raise Refused("unclosed_thinking", f"the reasoning of message {i} does not end")
    if start > end or start < 0:
        return text[:end].strip("\n"), text[end + len("</think>") :].lstrip("\n")
    if text[:start].strip():
        return None, text
    return text[start + len("<think>") : end].strip("\n"), text[end + len("</think>") :].lstrip("\n")
