"""What a chat template writes around an assistant turn, and what it has to be given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Refused
from rufus_plugins.recipes.data.template_trace import render

_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
)
"""Around the thinking: DeepSeek, GLM and Qwen; Mistral; Cohere; gpt-oss; Gemma; Seed."""
_THINKING = re.compile(r"\s*(?:" + "|".join(f"{re.escape(a)}.*?{re.escape(b)}" for a, b in _TAGS) + r")\s*", re.DOTALL)
_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
_PROBES = {
    # what comes before an assistant turn -> the conversation that shows the generation prompt after it
    "user": [{"role": "user", "content": "x"}],
    "tool": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "x", "tool_call_id": "call00000", "name": "f"},
    ],
}


@dataclass(frozen=True)
class Headers:
    after_user: str
    """The generation prompt after a user message."""
    after_tool: str
    role: str
    """The part of it with which earlier assistant turns begin as well."""
    closing: str
    """With which an assistant turn ends."""
    text_arguments: bool
    """Whether calls need their arguments as text."""

    def prompt(self, before: str | None) -> str:
        return self.after_tool if before == "tool" else self.after_user


def probe(template: str, variables: Callable[[bool], Mapping[str, Any]]) -> Headers:
    """What a template writes around an assistant turn. `variables(prompt)` are its variables besides the messages.

    Raises `ConfigError` for what is no chat template.
    """
    prompts: dict[str, str] = {}
    text_arguments = False
    for before, as_text in (("user", False), ("tool", False), ("tool", True)):
        if before in prompts:
            continue
        try:
            said = template_messages(_PROBES[before], as_text)
            # what is written after the last message; some templates write the prompt within its pass
            text, spans = render(template, said, variables(False))
            prompted, _ = render(template, said, variables(True))
        except Refused:
            continue  # no tools in this template, or its arguments are text
        end = max((e for _, _, e in spans), default=len(text))
        if prompted.startswith(text[:end]):
            prompts[before], text_arguments = prompted[end:], as_text
    if "user" not in prompts:
        raise ConfigError("The chat template does not even write one user message; is it one?")
    turns = []
    for answer in ("A", "B"):
        said = [dict(m) for m in (*_PROBES["user"], {"role": "assistant", "content": answer}, *_PROBES["user"])]
        try:
            text, spans = render(template, said, variables(False))
        except Refused:
            turns.append("")
        else:
            turns.append("".join(text[start:end] for i, start, end in spans if i == 1))
    begins = _common_prefix(*turns) if turns[0] != turns[1] else ""
    if not prompts["user"] and begins.strip():  # a template that knows no generation prompt
        prompts = {before: prompt or begins for before, prompt in prompts.items()}
    role = _common_prefix(begins, prompts["user"])
    closing = _common_prefix(*(t[::-1] for t in turns))[::-1] if turns[0] != turns[1] else ""
    return Headers(prompts["user"], prompts.get("tool", prompts["user"]), role, closing, text_arguments)


def after_thinking(text: str, start: int, end: int, message: Mapping[str, Any]) -> int:
    """Start of what follows the thinking of a turn, which may be an empty pair of tags."""
    found = _THINKING.match(text, start, end)
    if found:
        return found.end()
    for opening, closing in _TAGS:  # opened by the generation prompt
        if text[:start].rstrip().endswith(opening) and (at := text.find(closing, start, end)) >= 0:
            rest = text[at + len(closing) : end]
            return end - len(rest.lstrip())
    thought = str(message.get("reasoning_content") or "").strip()
    at = text.find(thought, start, end) if thought else -1
    if at >= 0:
        raise Refused("untraceable_thinking", f"the thinking of an earlier turn stands without known tags: {at}")
    return start


def _common_prefix(a: str, b: str) -> str:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def template_messages(messages: Sequence[Mapping[str, Any]], text_arguments: bool = False) -> list[dict[str, Any]]:
    """What the template gets: without keys that are null and without ours, arguments of calls as mappings, or as JSON
    text for the templates (DeepSeek's) that take nothing else."""
    said = []
    for message in messages:
        made = {k: v for k, v in message.items() if v is not None and k != "train"}
        calls = made.get("tool_calls")
        if calls is not None:
            if len(calls):
                made["tool_calls"] = [_call(call, text_arguments) for call in calls]
            else:
                del made["tool_calls"]
        made.setdefault("content", "")
        said.append(made)
    return said


def _call(call: Mapping[str, Any], text_arguments: bool) -> dict[str, Any]:
    made = {k: v for k, v in call.items() if v is not None}
    function = made.get("function")
    if isinstance(function, Mapping):
        made["function"] = _with_arguments(function, text_arguments)
        return made
    return _with_arguments(made, text_arguments)


def _with_arguments(function: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    made = dict(function)
    arguments = made.get("arguments")
    if as_text and isinstance(arguments, Mapping):
        made["arguments"] = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        try:
            made["arguments"] = json.loads(arguments or "{}")
        except ValueError as error:
            raise Refused("bad_arguments", f"arguments of {made.get('name')!r} are no JSON: {error}") from error
    return made


def decoded_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools as a list, from JSON text or a list whose nulls Parquet has filled in. Raises `Refused`."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise Refused("bad_tools", f"tools are no JSON: {error}") from error
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)) or not all(isinstance(t, Mapping) for t in tools):
        raise Refused("bad_tools", "tools are no list of schemas")
    return list(tools) or None
