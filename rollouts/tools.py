"""Tools for environments: plain Python functions, and anything that looks like a `Tool`, behind JSON schemas.

A function's schema comes from its signature (types), its docstring (description, and `name: text` lines for the
parameters). What a model does wrong (an unknown tool, wrong arguments) and what a tool raises is a *result* that
the model reads; only `InfrastructureError` ends the rollout.
"""

from __future__ import annotations

import asyncio
import enum
import importlib
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.fields import Unfit, fitted
from rufus_plugins.types import CallStatus, Message, Task


@dataclass(frozen=True)
class ToolResult:
    text: str
    status: CallStatus = CallStatus.OK
    started: bool = True
    """False only if the call provably had no effect."""


class Tool(Protocol):
    """One tool of one episode."""

    schema: Mapping[str, Any]
    """In the OpenAI function format."""

    async def open(self, task: Task) -> None: ...
    async def call(self, arguments: Mapping[str, Any]) -> ToolResult: ...
    async def close(self) -> None: ...


class FunctionTool:
    """A plain function, sync (runs in a thread) or async. Its answer is a string, or anything JSON can write."""

    def __init__(self, function: Callable[..., Any], name: str | None = None):
        self.function = function
        self.schema = schema_of(function, name)

    async def open(self, task: Task) -> None: ...

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        properties = self.schema["function"]["parameters"]["properties"]
        required = self.schema["function"]["parameters"].get("required", [])
        unknown = [key for key in arguments if key not in properties]
        missing = [key for key in required if key not in arguments]
        if unknown or missing:
            wrong = f"no parameter {unknown[0]!r}" if unknown else f"{missing[0]!r} is missing"
            return ToolResult(f"{wrong}; parameters: {', '.join(properties) or 'none'}", CallStatus.ERROR, False)
        try:
            given = fitted(self.function, arguments)
        except Unfit as error:
            return ToolResult(str(error), CallStatus.ERROR, False)
        try:
            if inspect.iscoroutinefunction(self.function):
                answer = await self.function(**given)
            else:
                answer = await asyncio.to_thread(self.function, **given)
        except InfrastructureError:
            raise
        except Exception as error:
            return ToolResult(f"{type(error).__name__}: {error}", CallStatus.ERROR)
        return answer if isinstance(answer, ToolResult) else ToolResult(as_result(answer))

    async def close(self) -> None: ...


def as_result(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


@dataclass
class Toolbox:
    """The tools of one episode: answers the calls of a message, in their order."""

    tools: Sequence[Tool]
    timeout_s: float = 60.0
    """Deadline of one call. Ours."""
    max_chars: int = 20_000
    """Of one result; the middle is left out. Ours."""
    _opened: list[Tool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_name: dict[str, Tool] = {}
        for tool in self.tools:
            name = tool.schema["function"]["name"]
            if name in self._by_name:
                raise ConfigError(f"two tools have the name {name!r}: rename one of them")
            self._by_name[name] = tool

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        return [tool.schema for tool in self.tools]

    async def open(self, task: Task) -> None:
        for tool in self.tools:
            self._opened.append(tool)
            await tool.open(task)

    async def answer(self, message: Message) -> list[dict[str, Any]]:
        """One tool message per call."""
        return [await self._answer(call) for call in message.get("tool_calls") or ()]

    async def _answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        tool = self._by_name.get(name)
        if tool is None:
            known = ", ".join(self._by_name) or "none"
            result = ToolResult(f"there is no tool {name!r}; tools: {known}", CallStatus.ERROR, False)
        else:
            try:
                async with asyncio.timeout(self.timeout_s) as clock:
                    result = await tool.call(arguments)
            except TimeoutError:
                if not clock.expired():
                    raise
                result = ToolResult(f"no result within {self.timeout_s:g} s", CallStatus.ERROR)
        text = cut(result.text, self.max_chars)
        if result.status is CallStatus.ERROR:
            text = f"Error: {text}"
        return tool_message(call["id"], name, text, result.status, result.started)

    async def close(self) -> None:
        """Closes every tool that was opened, also when one of them fails; raises the first failure."""
        failure: Exception | None = None
        while self._opened:
            try:
                await self._opened.pop().close()
            except Exception as error:
                failure = failure or error
        if failure:
            raise failure


def tool_message(
    call_id: str, name: str, text: str, status: CallStatus = CallStatus.OK, started: bool = True
) -> dict[str, Any]:
    """A tool's answer as environments return it: `status` and `started` are for the rollout's record, not the model.

    Half a surrogate pair, which no server can be sent and no table can hold, becomes a question mark.
    """
    return {
        "role": "tool",
        "tool_call_id": call_id,
        "name": name,
        "content": text.encode("utf-8", "replace").decode(),
        "status": CallStatus(status),
        "started": started,
    }


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters: head and tail, with a note of what is missing between."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail :]}"


def load(path: str) -> Callable[..., Any]:
    """`package.module:function`. Raises `ConfigError`."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigError(f"{path!r} names no function: write package.module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the tool {path!r} does not load: {error}") from error
    if not callable(found):
        raise ConfigError(f"the tool {path!r} is a {type(found).__name__}, not a function")
    return found


def schema_of(function: Callable[..., Any], name: str | None = None) -> dict[str, Any]:
    """The function as a tool in the OpenAI format. Raises `ConfigError` for a parameter that JSON cannot give."""
    name = name or function.__name__
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise ConfigError(f"the types of tool {name!r} cannot be read: {error}") from error
    text = inspect.getdoc(function) or ""
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: the parameter {parameter.name!r} has no name that a model could give")
        schema = _json_type(hints.get(parameter.name, str), f"tool {name!r}, parameter {parameter.name!r}")
        told = re.search(rf"^\s*{re.escape(parameter.name)}(?:\s*\([^)]*\))?:\s*(.+)$", text, re.MULTILINE)
        if told:
            schema["description"] = told.group(1).strip()
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    description = re.split(r"\n\s*\n|\n\s*(?:Args|Parameters):", text)[0].strip()
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _json_type(hint: Any, where: str) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is Any:
        return {}
    if origin is typing.Literal:
        kinds = {_SCALARS.get(type(value)) for value in args}
        return {"enum": list(args)} | ({"type": kinds.pop()} if len(kinds) == 1 else {})
    if origin in (typing.Union, types.UnionType):
        some = [_json_type(a, where) for a in args if a is not type(None)]
        return some[0] if len(some) == 1 else {"anyOf": some}
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return {"type": "string", "enum": [member.value for member in hint]}
    kind = origin or hint
    if kind in (list, tuple, set, frozenset, Sequence):
        return {"type": "array", "items": _json_type(args[0], where) if args else {}}
    if kind in (dict, Mapping):
        return {"type": "object"}
    raise ConfigError(f"{where}: {hint!r} cannot come from JSON; use str, int, float, bool, list, dict or Literal")
