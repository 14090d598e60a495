"""Tool calls, their results and tool schemas of chat records, from the common shapes to OpenAI's.

All functions raise `Refused` for what cannot be read.
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


def calls_of(i: int, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = message.get("tool_calls")
    if isinstance(given, str) and given.strip():
        given = parsed(given, "bad_arguments", f"tool_calls of message {i}")
    if given is not None and not isinstance(given, (list, tuple)) and not isinstance(given, str):
        raise Refused("bad_arguments", f"tool_calls of message {i} is a {type(given).__name__}")
    made = [call_of(i, call) for call in given or ()]
    legacy = message.get("function_call")
    if legacy:
        legacy = parsed(legacy, "bad_arguments", f"function_call of message {i}") if isinstance(legacy, str) else legacy
        made.append(call_of(i, legacy))
    return made


def call_of(i: int, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if isinstance(function, str):  # {"function": "name", "arguments": ...}
        function = {**call, "name": function}
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name.strip():
        raise Refused("bad_call", f"a call of message {i} has no name")
    arguments = function.get("arguments", function.get("parameters"))
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": _arguments(i, name, arguments)}}
    if own := id_text(call.get("id")):
        made = {"id": own, **made}
    return made


def id_text(value: Any) -> str | None:
    """An id of a call as text; some sources number their calls."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _arguments(i: int, name: str, arguments: Any) -> str:
    if isinstance(arguments, str):
        arguments = (
            parsed(arguments, "bad_arguments", f"arguments of {name!r} in message {i}") if arguments.strip() else {}
        )
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise Refused("bad_arguments", f"arguments of {name!r} in message {i} are a {type(arguments).__name__}")
    return json.dumps(arguments, ensure_ascii=False)


def calls_in_text(i: int, text: str, tools: Any) -> tuple[list[dict[str, Any]], str]:
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


def responses(text: str) -> list[str] | None:
    """The results, if the text is nothing but `<tool_response>` blocks."""
    if not text.lstrip().startswith("<tool_response>"):
        return None
    at, found = 0, []
    while match := _RESPONSE.match(text, at):
        found.append(match.group(1))
        at = match.end()
    return found if found and not text[at:].strip() else None


def merged_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def link_results(messages: list[dict[str, Any]], notes: Counter[str]) -> None:
    """Gives every call an id and every result the id and name of its call: by id, else by name, else in order."""
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
            free = [c for c in waiting if own is None or "id" not in c]
            call = call or next((c for c in free if c["function"]["name"] == message.get("name")), None)
            call = call or next(iter(free), None)
            if call is None:
                raise Refused("orphan_tool_result", f"message {i} is a tool result without a call before it")
            waiting = [c for c in waiting if c is not call]
            call["id"] = message["tool_call_id"] = call.get("id") or own or f"call_{next(numbers)}"
            message.setdefault("name", call["function"]["name"])
    for message in messages:
        for call in message.get("tool_calls", ()):
            if "id" not in call:
                call["id"] = f"call_{next(numbers)}"


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Schemas in the OpenAI format, `{"type": "function", "function": {...}}`."""
    if isinstance(value, str):
        value = parsed(value, "bad_tools", "tools") if value.strip() else None
    if isinstance(value, Mapping):
        value = [value]
    if not value:
        return None
    if not isinstance(value, (list, tuple)):
        raise Refused("bad_tools", f"tools is a {type(value).__name__}")
    made = []
    for tool in value:
        if isinstance(tool, str):
            tool = parsed(tool, "bad_tools", "a tool")
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refused("bad_tools", "a tool has no name")
        made.append({"type": "function", "function": dict(function)})
    return made


def several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def parsed(text: str, reason: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(reason, f"{what}: no JSON: {error}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is none of JSON's values")
