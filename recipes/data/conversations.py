"""From the common shapes of chat records to one schema.

Read: OpenAI messages (with `tool_calls`, legacy `function_call`, arguments as text or mapping), ShareGPT
(`from`/`value`), Alpaca (`instruction`/`input`/`output`/`history`), prompt and completion; calls in the text as Hermes,
Qwen3-Coder or GLM-4.5 write them; reasoning in `<think>` or in fields of its own.

The schema is OpenAI's, with `reasoning_content` and `train`: messages of `role` (system, user, assistant, tool),
`content` (text), and where they apply `reasoning_content`, `tool_calls` (`arguments` as JSON text), `tool_call_id`,
`name`, `train`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.recipes.data.records import Refused
from rufus_plugins.rollouts import tool_calls as formats
from rufus_plugins.types import CallStatus

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
    messages = _merged_calls(messages)
    _link_results(messages, notes)
    if not any(m["role"] == "assistant" for m in messages):
        raise Refused("no_assistant", "no message is the assistant's")
    return messages, tools


def _given(record: Mapping[str, Any]) -> list[Any]:
    """The messages as the record has them, a system prompt of its own first."""
    found: list[Any] | None = None
    for key in _LISTS:
        value = record.get(key)
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = _json(value, "bad_messages", key)
        if isinstance(value, (list, tuple)):
            found = list(value)
            break
    if found is None:
        found = _pair(record)
    system = record.get("system") or record.get("system_prompt")
    if isinstance(system, str) and system.strip() and not any(_role_of(m) == "system" for m in found[:1]):
        found.insert(0, {"role": "system", "content": system})
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
    name = message.get("role", message.get("from"))
    return ROLES.get(name.strip().lower()) if isinstance(name, str) else None


def _message(i: int, message: Mapping[str, Any], tools: Any, notes: Counter[str]) -> list[dict[str, Any]]:
    role = _role_of(message)
    if role is None:
        raise Refused("unknown_role", f"message {i} is from {message.get('role', message.get('from'))!r}")
    content, thought = _content(i, message)
    train = _override(i, message)
    if role in ("system", "user"):
        if role == "user" and (results := _responses(content)) is not None:
            notes["results_in_user_messages"] += 1
            return [{"role": "tool", "content": text} for text in results]
        made = {"role": role, "content": content}
        if train:
            raise Refused("override_not_assistant", f"message {i} ({role}) asks to be trained on")
        return [made]
    if role == "tool":
        results = _responses(content)
        name, call_id = message.get("name"), message.get("tool_call_id")
        made = {"role": "tool", "content": content if results is None or len(results) != 1 else results[0]}
        if results is not None and len(results) > 1:
            return [{"role": "tool", "content": text} for text in results]
        if isinstance(call_id, str) and call_id:
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
    calls = _calls(i, message)
    if role == "call":
        calls = calls or [_call(i, c) for c in _several(_json(content, "bad_arguments", f"message {i}"))]
        content = ""
    elif "<tool_call>" in content:
        read, content = _calls_in_text(i, content, tools)
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
    value = message.get("content", message.get("value", message.get("text")))
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
                raise Refused("media" if kind else "bad_content", f"message {i} has a part of type {kind!r}")
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


# ---- calls


def _calls(i: int, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = message.get("tool_calls")
    if isinstance(given, str) and given.strip():
        given = _json(given, "bad_arguments", f"tool_calls of message {i}")
    if given is not None and not isinstance(given, (list, tuple)) and not isinstance(given, str):
        raise Refused("bad_arguments", f"tool_calls of message {i} is a {type(given).__name__}")
    made = [_call(i, call) for call in given or ()]
    legacy = message.get("function_call")
    if legacy:
        legacy = _json(legacy, "bad_arguments", f"function_call of message {i}") if isinstance(legacy, str) else legacy
        made.append(_call(i, legacy))
    return made


def _call(i: int, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if isinstance(function, str):  # {"function": "name", "arguments": ...}
        function = {**call, "name": function}
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name.strip():
        raise Refused("bad_call", f"a call of message {i} has no name")
    arguments = function.get("arguments", function.get("parameters"))
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": _arguments(i, name, arguments)}}
    if isinstance(call.get("id"), str) and call["id"]:
        made = {"id": call["id"], **made}
    return made


def _arguments(i: int, name: str, arguments: Any) -> str:
    if isinstance(arguments, str):
        arguments = (
            _json(arguments, "bad_arguments", f"arguments of {name!r} in message {i}") if arguments.strip() else {}
        )
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise Refused("bad_arguments", f"arguments of {name!r} in message {i} are a {type(arguments).__name__}")
    return json.dumps(arguments, ensure_ascii=False)


def _calls_in_text(i: int, text: str, tools: Any) -> tuple[list[dict[str, Any]], str]:
    """(calls, what is said besides), for calls in `<tool_call>` tags."""
    head = text.partition("<tool_call>")[2].lstrip()
    kind = "qwen3_coder" if head.startswith("<function=") else "hermes" if head[:1] in ("{", "[") else "glm-4.5"
    turn = formats.parse(kind, text, tools or ())
    for call in turn.calls:
        if call.status is not CallStatus.OK:
            raise Refused("malformed_call", f"a call in the text of message {i}: {call.problem}")
    calls = [{"name": c.name, "arguments": json.dumps(c.arguments, ensure_ascii=False)} for c in turn.calls]
    return calls, turn.content


_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)


def _responses(text: str) -> list[str] | None:
    """The results, if the text is nothing but `<tool_response>` blocks."""
    if not text.lstrip().startswith("<tool_response>"):
        return None
    at, found = 0, []
    while match := _RESPONSE.match(text, at):
        found.append(match.group(1))
        at = match.end()
    return found if found and not text[at:].strip() else None


def _merged_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """ShareGPT writes thought and call as two messages of the assistant; they are one turn."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        before = merged[-1] if merged else None
        bare = message["role"] == "assistant" and message.get("tool_calls") and not message["content"]
        bare = bare and "reasoning_content" not in message
        if bare and before and before["role"] == "assistant" and before.get("train") == message.get("train"):
            before["tool_calls"] = [*before.get("tool_calls", ()), *message["tool_calls"]]
        else:
            merged.append(message)
    return merged


def _link_results(messages: list[dict[str, Any]], notes: Counter[str]) -> None:
    """Gives every call an id and every result the id and name of its call, in order where the source has none."""
    numbers = itertools.count()
    waiting: list[dict[str, Any]] = []
    in_text = False
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            waiting = list(message.get("tool_calls", ()))
            in_text = not waiting
        elif message["role"] != "tool":
            waiting, in_text = [], False
        elif in_text:
            notes["results_of_calls_in_free_text"] += 1
        else:
            own = message.get("tool_call_id")
            call = next((c for c in waiting if own is not None and c.get("id") == own), None)
            call = call or next((c for c in waiting if own is None or "id" not in c), None)
            if call is None:
                raise Refused("orphan_tool_result", f"message {i} is a tool result without a call before it")
            waiting = [c for c in waiting if c is not call]
            call["id"] = message["tool_call_id"] = call.get("id") or own or f"call_{next(numbers)}"
            message.setdefault("name", call["function"]["name"])
    for message in messages:
        for call in message.get("tool_calls", ()):
            if "id" not in call:
                call["id"] = f"call_{next(numbers)}"


# ---- tools


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Schemas in the OpenAI format, `{"type": "function", "function": {...}}`."""
    if isinstance(value, str):
        value = _json(value, "bad_tools", "tools") if value.strip() else None
    if isinstance(value, Mapping):
        value = [value]
    if not value:
        return None
    if not isinstance(value, (list, tuple)):
        raise Refused("bad_tools", f"tools is a {type(value).__name__}")
    made = []
    for tool in value:
        if isinstance(tool, str):
            tool = _json(tool, "bad_tools", "a tool")
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refused("bad_tools", "a tool has no name")
        made.append({"type": "function", "function": dict(function)})
    return made


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _json(text: str, reason: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(reason, f"{what}: no JSON: {error}") from error
