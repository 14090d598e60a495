"""Reads the tool calls out of what a model wrote, per model format. Never raises: model text is data.

`parse(format, text, schemas)` gives a `ParsedTurn`: the calls in order, the content (what is said besides thinking and
calls) and the thinking. A call that cannot be read is kept in its place with status malformed and the reason, which an
environment answers with an error message; the other calls of the turn stay good. What stands inside a thinking block
is no call: the model only talks about it. A call block that is cut off is malformed, also where its JSON is whole:
verl reads no call there, and vLLM's parser for Hermes runs it. JSON is read strictly: what two readers could take
differently (a key given twice, NaN, 1e999, half a surrogate pair) is malformed.

Values are scanned by structure, not by the first end tag, so `</tool_call>` inside an argument is data, and blanks in
a string argument are kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.types import CallStatus, ToolCall


@dataclass(frozen=True)
class ParsedCall:
    """One call as the model wrote it."""

    name: str
    """"" where no name could be read."""
    arguments: Mapping[str, Any] | str
    """The raw text where `status` is malformed."""
    status: CallStatus = CallStatus.OK
    """ok or malformed; whether the tool exists and accepts the arguments is the environment's to say."""
    problem: str = ""
    """For the model: what is wrong with the call."""

    def as_tool_call(self, turn: int, status: CallStatus | None = None, started: bool | None = None) -> ToolCall:
        """The call as rewards count it. A malformed one never started."""
        status = status or self.status
        if started is None:
            started = status is not CallStatus.MALFORMED
        return ToolCall(self.name, self.arguments, status, turn, started)


@dataclass(frozen=True)
class ParsedTurn:
    calls: tuple[ParsedCall, ...]
    content: str
    thinking: str = ""

    @property
    def malformed_fraction(self) -> float:
        return sum(c.status is CallStatus.MALFORMED for c in self.calls) / len(self.calls) if self.calls else 0.0


MAX_CALLS = 128
"""Calls read in one turn; what follows is one malformed call. Ours: it bounds the time that a hostile text can take."""

Schemas = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""Tools in the OpenAI function format, or `{tool: {parameter: type}}`."""
_Types = dict[str, dict[str, str]]
_Read = tuple[list[ParsedCall], str]


def parse(format: str, text: str, schemas: Schemas = ()) -> ParsedTurn:
    """The calls, content and thinking of one assistant turn. Raises only `ConfigError` for an unknown format."""
    try:
        read = FORMATS[format]
    except KeyError:
        raise ConfigError(f"There is no tool-call format {format!r}. Known: {', '.join(sorted(FORMATS))}.") from None
    thinking, rest = split_thinking(text)
    calls, content = read(rest, parameter_types(schemas))
    if len(calls) > MAX_CALLS + 1:  # many in one block
        calls = [*calls[:MAX_CALLS], _too_many("")]
    return ParsedTurn(tuple(calls), content.strip(), thinking)


def split_thinking(text: str) -> tuple[str, str]:
    """(thinking, rest): the blocks that stand before the first call.

    A block that a chat template opened in the prompt has only its end; one that is cut off goes on to the end.
    """
    start, end = text.find("<think>"), text.find("</think>")
    if end >= 0 and (start < 0 or start > end):
        return text[:end].strip(), text[end + len("</think>") :]
    thinking: list[str] = []
    said = ""
    while (start := text.find("<think>")) >= 0 and _START not in text[:start]:
        end = text.find("</think>", start)
        said += text[:start]
        thinking.append(text[start + len("<think>") : end if end >= 0 else len(text)].strip())
        text = text[end + len("</think>") :] if end >= 0 else ""
    return "\n".join(thinking), said + text


def parameter_types(schemas: Schemas) -> _Types:
    """Tool -> parameter -> JSON type ("" if the schema names none, or several)."""
    if isinstance(schemas, Mapping):
        return {str(n): {str(p): _type_of(t) for p, t in dict(ps or {}).items()} for n, ps in schemas.items()}
    found: _Types = {}
    for tool in schemas:
        function = tool.get("function", tool)
        properties = (function.get("parameters") or {}).get("properties") or {}
        found[str(function.get("name", ""))] = {str(p): _type_of(s) for p, s in properties.items()}
    return found


def _type_of(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(kind, list):
        others = [k for k in kind if k != "null"]
        kind = others[0] if len(others) == 1 else None
    if kind is None and isinstance(schema, Mapping) and isinstance(schema.get("enum"), list):
        kind = "string" if all(isinstance(v, str) for v in schema["enum"]) else None
    return kind if isinstance(kind, str) else ""


def _malformed(name: str, raw: str, problem: str) -> ParsedCall:
    return ParsedCall(name, raw, CallStatus.MALFORMED, problem)


def _too_many(raw: str) -> ParsedCall:
    return _malformed("", raw, f"more than {MAX_CALLS} calls in one turn: the rest was not read")


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} is given twice")
        found[key] = value
    return found


_DECODER = json.JSONDecoder(
    strict=False,  # raw newlines inside strings are common and harmless
    object_pairs_hook=_object,
    parse_float=_number,
    parse_constant=_number,  # NaN and Infinity, which Python reads otherwise
)


def _decode(text: str, at: int) -> tuple[Any, int]:
    """One JSON value at a position. Raises ValueError."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _from_json(value: Any, raw: str, keys: tuple[str, ...] = ("arguments",)) -> ParsedCall:
    """The call that a JSON object states."""
    if not isinstance(value, dict):
        return _malformed("", raw, "a call is a JSON object with name and arguments")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return _malformed("", raw, "the call has no name")
    key = next((k for k in keys if k in value), None)
    arguments = value[key] if key else {}
    if key is None and set(value) - {"name", "id", "type"}:
        return _malformed(name, raw, f"the call has no {keys[0]!r} but {sorted(set(value) - {'name'})}")
    if isinstance(arguments, str):
        try:
            arguments, end = _decode(arguments.strip() or "{}", 0)
        except ValueError:
            return _malformed(name, raw, f"{key} is a string that holds no JSON object")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return _malformed(name, raw, f"{key or keys[0]} must be a JSON object, not a {type(arguments).__name__}")
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return _malformed("", raw, "it holds half a surrogate pair")
    return ParsedCall(name.strip(), arguments)


_START, _END = "<tool_call>", "</tool_call>"


def _blocks(text: str, block: Callable[[int], tuple[list[ParsedCall], int]]) -> _Read:
    """The calls of every `<tool_call>` block and the text around them. `block(at)` reads one from behind its start."""
    calls: list[ParsedCall] = []
    said: list[str] = []
    at = 0
    while (start := text.find(_START, at)) >= 0:
        said.append(text[at:start])
        if len(calls) >= MAX_CALLS:
            return [*calls[:MAX_CALLS], _too_many(text[start:])], "".join(said)
        found, at = block(start + len(_START))
        calls += found
    said.append(text[at:])
    return calls, "".join(said)


def _broken(text: str, at: int, between: str) -> tuple[str, int, int]:
    """(what is wrong, where the call ends, where to go on) with a block in which `between` stands at `at`."""
    start = text.find(_START, at)
    end = text.find(_END, at, start if start >= 0 else len(text))
    if end >= 0:
        return between, end, end + len(_END)
    return (between, start, start) if start >= 0 else ("the call is cut off", len(text), len(text))


def _hermes(text: str, types: _Types) -> _Read:
    """Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; several objects in a block count."""

    def block(at: int) -> tuple[list[ParsedCall], int]:
        calls: list[ParsedCall] = []
        begin = at = _blank(text, at)
        while not text.startswith(_END, at):
            try:
                value, end = _decode(text, at)
            except ValueError as error:
                problem, end, after = _broken(text, at, f"the call is no valid JSON: {error}")
                raw = text[at:end].strip()
                if calls and not raw:  # all there but the end tag
                    whole, problem = text[begin:end].strip(), f"the call has no {_END}"
                    return [_malformed(call.name, whole, problem) for call in calls], after
                return [*calls, _malformed(_name_in(raw), raw, problem)], after
            calls += [_from_json(v, text[at:end]) for v in (value if isinstance(value, list) else [value])]
            at = _blank(text, end)
            if at < len(text) and text[at] in ",;":
                at = _blank(text, at + 1)
        return calls or [_malformed("", "", "the call is empty")], at + len(_END)

    return _blocks(text, block)


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _name_in(raw: str) -> str:
    found = re.search(r'"name"\s*:\s*"([^"\\]{1,100})"', raw)
    return found.group(1) if found else ""


_KEY = re.compile(r"\s*<arg_key>([^<>]*)</arg_key>\s*<arg_value>")
_NEXT_CALL = re.compile(r"<tool_call>[^<>]*<arg_key>[^<>]*</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")


def _glm(text: str, types: _Types) -> _Read:
    """GLM-4.5: `<tool_call>name`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` pairs, `</tool_call>`.

    A value of a string parameter is its text, blanks included; of another type its JSON; of an unknown parameter its
    JSON if it is any, else its text.
    """

    def block(at: int) -> tuple[list[ParsedCall], int]:
        begin = at
        head = re.compile(r"\s*([^<>\n]*)").match(text, at)
        name, at = head.group(1).strip(), head.end()
        arguments: dict[str, Any] = {}
        problem = "" if re.fullmatch(r"[\w.:/-]+", name) else f"{name[:80]!r} is no tool name"
        while key := _KEY.match(text, at):
            end = _VALUE_END.search(text, key.end())
            if end is None or _NEXT_CALL.search(text, key.end(), end.start()):
                problem, at = problem or "the value of an argument does not end", key.end()
                break
            problem = _take(arguments, key.group(1), text[key.end() : end.start()], types.get(name, {}), problem)
            at = end.end()
        return _closed(text, re.compile(r"\s*</tool_call>"), begin, at, name, arguments, problem)

    calls, said = _blocks(text, block)
    return calls, said.replace("<|observation|>", "")


def _take(arguments: dict[str, Any], label: str, raw: str, types: Mapping[str, str], problem: str) -> str:
    """Puts one written argument into `arguments`; returns the call's first problem so far."""
    label = label.strip()
    value, wrong = _typed(raw, types.get(label, ""))
    if not label or label in arguments:
        wrong = wrong or "it is empty or given twice"
    arguments[label] = value
    return problem or (f"argument {label!r}: {wrong}" if wrong else "")


def _closed(
    text: str, closing: re.Pattern[str], begin: int, at: int, name: str, arguments: dict[str, Any], problem: str
) -> tuple[list[ParsedCall], int]:
    """The call that was read from `begin` to `at`, where its `closing` is due."""
    if found := closing.match(text, at):
        end, at = text.rindex(_END, at, found.end()), found.end()
    else:
        wrong, end, at = _broken(text, at, "markup between the arguments")
        problem = problem or wrong
    return [_malformed(name, text[begin:end].strip(), problem) if problem else ParsedCall(name, arguments)], at


def _typed(raw: str, kind: str) -> tuple[Any, str]:
    """(value, problem) of an argument that is written as bare text."""
    if kind == "string":
        return raw, ""
    text = raw.strip()
    if kind == "boolean" and text in ("True", "False"):
        text = text.lower()
    if text == "None":
        text = "null"
    try:
        value, end = _decode(text, 0)
        if end != len(text):
            raise ValueError("text after the value")
    except ValueError:
        return raw, f"{text[:80]!r} is no JSON {kind}" if kind else ""
    wanted = {"integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}.get(kind)
    fits = wanted is None or value is None or isinstance(value, wanted)
    if kind in ("integer", "number") and isinstance(value, bool):
        fits = False
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value, fits = int(value), True
    return value, "" if fits else f"{text[:80]!r} is no {kind}"


_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n?")
_PARAMETER_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")


def _qwen_coder(text: str, types: _Types) -> _Read:
    """Qwen3-Coder: `<tool_call><function=name><parameter=k>\\nv\\n</parameter></function></tool_call>`."""

    def block(at: int) -> tuple[list[ParsedCall], int]:
        begin = at
        head = _FUNCTION.match(text, at)
        name, arguments, problem = "", {}, "" if head else "the block names no <function=...>"
        if head:
            name, at = head.group(1).strip(), head.end()
        while head and (key := _PARAMETER.match(text, at)):
            end = _PARAMETER_END.search(text, key.end())
            if end is None:
                break
            problem = _take(arguments, key.group(1), text[key.end() : end.start()], types.get(name, {}), problem)
            at = end.end()
        return _closed(text, re.compile(r"\s*</function>\s*</tool_call>"), begin, at, name, arguments, problem)

    return _blocks(text, block)


def _llama(text: str, types: _Types) -> _Read:
    """Llama 3: the whole turn is `{"name": ..., "parameters": {...}}`, several separated by `;`."""
    rest = text.strip().removeprefix("<|python_tag|>").removesuffix("<|eom_id|>").removesuffix("<|eot_id|>").strip()
    if not rest.startswith("{"):
        return [], text
    calls: list[ParsedCall] = []
    at = 0
    while at < len(rest):
        if len(calls) >= MAX_CALLS:
            return [*calls, _too_many(rest[at:])], ""
        try:
            value, end = _decode(rest, at)
        except ValueError as error:
            calls.append(_malformed(_name_in(rest[at:]), rest[at:], f"the call is no valid JSON: {error}"))
            break
        if not calls and (not isinstance(value, dict) or "name" not in value):
            return [], text  # an answer in JSON, no call
        calls.append(_from_json(value, rest[at:end], ("parameters", "arguments")))
        at = _blank(rest, end)
        while at < len(rest) and (rest[at] in ";," or rest[at].isspace()):
            at += 1
    return calls, ""


def _mistral(text: str, types: _Types) -> _Read:
    """Mistral: `[TOOL_CALLS]` and a JSON list of calls, or `[TOOL_CALLS]name[ARGS]{...}` per call."""
    said, mark, rest = text.partition("[TOOL_CALLS]")
    if not mark:
        return [], text
    calls: list[ParsedCall] = []
    at, end = 0, len(rest.removesuffix("</s>"))
    rest = rest[:end]
    while (at := _blank(rest, at)) < end:
        if rest.startswith("[TOOL_CALLS]", at):
            at += len("[TOOL_CALLS]")
            continue
        if len(calls) >= MAX_CALLS:
            return [*calls, _too_many(rest[at:])], said
        named = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\w*)?\s*(?:\[ARGS\])?\s*(?=\{)").match(rest, at)
        try:
            value, stop = _decode(rest, named.end() if named else at)
        except ValueError as error:
            stop = rest.find("[TOOL_CALLS]", at)
            stop = end if stop < 0 else stop
            name = named.group(1) if named else _name_in(rest[at:stop])
            calls.append(_malformed(name, rest[at:stop].strip(), f"the call is no valid JSON: {error}"))
        else:
            if named:
                value = {"name": named.group(1), "arguments": value}
            calls += [_from_json(v, rest[at:stop]) for v in (value if isinstance(value, list) else [value])]
        at = stop
    return calls, said


FORMATS: dict[str, Callable[[str, _Types], _Read]] = {
    "hermes": _hermes,
    "qwen": _hermes,
    "glm-4.5": _glm,
    "glm45": _glm,
    "glm47": _glm,
    "qwen3_coder": _qwen_coder,
    "qwen3_xml": _qwen_coder,
    "llama3_json": _llama,
    "mistral": _mistral,
}
"""Format name -> reader. verl's and vLLM's names where they have one."""
