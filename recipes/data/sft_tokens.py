"""From a conversation to token ids and loss mask, as the chat template and the tokenizer write it.

The ids are the template's own rendering of the whole conversation. Supervised is what the model would have to
generate: from the end of the generation prompt to the token that ends the turn, both exact; what else the template
writes (headers, line breaks after the end, results of tools) is not. A token that reaches over a bound is not
supervised, for the model could not generate it after that prompt.

A conversation or template of which this cannot be said is refused with the reason, never guessed.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.masks import last_user, policy, supervised_turns
from rufus_plugins.recipes.data.records import Refused
from rufus_plugins.recipes.data.template_trace import render

if TYPE_CHECKING:
    import numpy as np

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
class Tokens:
    """One conversation. Arrays are `[tokens]`."""

    ids: np.ndarray
    """int32"""
    mask: np.ndarray
    """bool: supervised"""
    turns: int
    """Messages besides the system's."""
    supervised_turns: int
    """Assistant messages of which at least one token is supervised."""


@dataclass
class SFTTokenizer:
    """Turns conversations into tokens; picklable after construction, so that processes can share the work."""

    tokenizer: Any
    """A fast transformers tokenizer with a chat template, or the folder or hub name of one."""
    mask: str = "rufus_air"
    """rufus_air, every_turn or axion (masks.py)."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template, such as enable_thinking."""
    stop_tokens: Sequence[str] = ()
    """Tokens that end a turn besides the tokenizer's own end token. Where the template closes no turn (GLM-4.5), the
    next message's first token counts as the end if it is one of these; default: the generation config's."""

    def __post_init__(self) -> None:
        self._rules = policy(self.mask)
        if isinstance(self.tokenizer, str):
            from transformers import AutoTokenizer

            try:
                self.tokenizer = AutoTokenizer.from_pretrained(self.tokenizer)
            except (OSError, ValueError) as error:
                raise ConfigError(f"The tokenizer {self.tokenizer} cannot be loaded: {error}") from error
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"{type(self.tokenizer).__name__} has no offsets; a fast tokenizer is needed.")
        if not self.tokenizer.chat_template:
            raise ConfigError(f"The tokenizer {self.tokenizer.name_or_path or ''} has no chat template.")
        self._backend = _without_post_processor(backend)
        self._special = dict(self.tokenizer.special_tokens_map)
        self._stops = self._stop_texts()
        self._closers = tuple({*self._stops, *map(str, self.tokenizer.all_special_tokens)})
        self._headers: dict[str, _Headers] = {}

    @property
    def stops(self) -> tuple[str, ...]:
        """Tokens that end a turn, longest first."""
        return self._stops

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
    ) -> Tokens:
        """`messages` in the schema of `normalise`, or any that the template takes. Raises `Refused`."""
        return self.encoded(self.rendered(messages, tools, enable_thinking))

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
    ) -> Rendered:
        if not len(messages):
            raise Refused("no_messages", "the conversation has no message")
        flags = supervised_turns(messages, self._rules)
        variables = dict(self.template_kwargs)
        if enable_thinking is not None:
            variables["enable_thinking"] = bool(enable_thinking)
        template = self._template(tools)
        headers = self._headers_of(template, variables)
        said = template_messages(messages, headers.text_arguments)
        text, spans = render(template, said, self._variables(tools, variables, False))
        parts: dict[int, list[tuple[int, int]]] = {}
        for message, start, end in spans:
            parts.setdefault(message, []).append((start, end))
        anchor = last_user(messages)
        ranges: list[tuple[int, int, bool]] = []
        owners: list[int] = []
        for i, flag in enumerate(flags):
            if not flag:
                continue
            found = parts.get(i, [])
            if len(found) != 1:
                why = "in several places" if found else "nowhere to be seen"
                raise Refused("untraceable", f"the template writes message {i} {why}")
            before = messages[i - 1]["role"] if i else None
            start, end, closed = self._body(text, *found[0], headers, before)
            if self._rules.masks_earlier_thinking and i < anchor:
                start = self._after_thinking(text, start, end, said[i])
            if start < end:
                ranges.append((start, end, closed))
                owners.append(i)
        return Rendered(text, ranges, owners, sum(m["role"] != "system" for m in messages))

    def template_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
    ) -> list[dict[str, Any]]:
        """What `apply_chat_template` has to be given for the same ids."""
        variables = {
            **self.template_kwargs,
            **({} if enable_thinking is None else {"enable_thinking": enable_thinking}),
        }
        return template_messages(messages, self._headers_of(self._template(tools), variables).text_arguments)

    def encoded(self, rendered: Rendered) -> Tokens:
        try:
            encoding = self._backend.encode(rendered.text, add_special_tokens=False)
        except TypeError as error:  # half a surrogate pair
            raise Refused("bad_text", str(error)) from error
        return _masked(encoding, rendered)

    def encoded_all(self, rendered: Sequence[Rendered]) -> list[Tokens]:
        """As `encoded`, on all cores if TOKENIZERS_PARALLELISM allows it."""
        encodings = self._backend.encode_batch([r.text for r in rendered], add_special_tokens=False)
        return [_masked(e, r) for e, r in zip(encodings, rendered, strict=True)]

    # ---- where a turn begins and ends

    def _body(self, text: str, start: int, end: int, headers: _Headers, before: str | None) -> tuple[int, int, bool]:
        """The characters of one assistant turn that the model generates, and whether an end token is their last."""
        prompt = headers.prompt(before)
        if before is None and prompt:  # the first pass may write a begin token or a default system message first
            start = max(start, text.find(prompt, start, end))
        for header in (prompt, headers.after_user, headers.role):
            if text.startswith(header, start) and start + len(header) <= end:
                start += len(header)
                break
        else:
            raise Refused(
                "unknown_header",
                f"an assistant turn begins with {text[start : start + 40]!r}, but the generation prompt is {prompt!r}; "
                f"is enable_thinking what these records need?",
            )
        written = text[start:end].rstrip()
        if written.endswith(self._closers):
            return start, start + len(written), True
        if headers.closing and text.startswith(headers.closing, end - len(headers.closing)):
            return start, end - len(headers.closing) + len(headers.closing.rstrip()), False
        following = next((s for s in self._stops if text.startswith(s, end)), "")
        return start, end + len(following), bool(following)

    def _after_thinking(self, text: str, start: int, end: int, message: Mapping[str, Any]) -> int:
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

    def _headers_of(self, template: str, variables: Mapping[str, Any]) -> _Headers:
        key = template + json.dumps(variables, sort_keys=True, default=repr)
        if key not in self._headers:
            self._headers[key] = self._probe(template, variables)
        return self._headers[key]

    def _probe(self, template: str, variables: Mapping[str, Any]) -> _Headers:
        prompts: dict[str, str] = {}
        text_arguments = False
        for before, as_text in (("user", False), ("tool", False), ("tool", True)):
            if before in prompts:
                continue
            try:
                said = template_messages(_PROBES[before], as_text)
                # what is written after the last message; some templates write the prompt within its pass
                text, spans = render(template, said, self._variables(None, variables, False))
                prompted, _ = render(template, said, self._variables(None, variables, True))
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
                text, spans = render(template, said, self._variables(None, variables, False))
            except Refused:
                turns.append("")
            else:
                turns.append("".join(text[start:end] for i, start, end in spans if i == 1))
        begins = _common_prefix(*turns) if turns[0] != turns[1] else ""
        if not prompts["user"] and begins.strip():  # a template that knows no generation prompt
            prompts = {before: prompt or begins for before, prompt in prompts.items()}
        role = _common_prefix(begins, prompts["user"])
        closing = _common_prefix(*(t[::-1] for t in turns))[::-1] if turns[0] != turns[1] else ""
        return _Headers(prompts["user"], prompts.get("tool", prompts["user"]), role, closing, text_arguments)

    # ---- the template's input

    def _template(self, tools: Any) -> str:
        return self.tokenizer.get_chat_template(None, tools)

    def _variables(self, tools: Any, more: Mapping[str, Any], prompt: bool) -> dict[str, Any]:
        """As in `apply_chat_template` (transformers/tokenization_utils_base.py, 5.10)."""
        return {
            **self._special,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": prompt,
            **more,
        }

    def _stop_texts(self) -> tuple[str, ...]:
        """Longest first."""
        texts = {*self.stop_tokens, *filter(None, [self.tokenizer.eos_token])}
        if not self.stop_tokens:
            texts |= set(_generation_ends(self.tokenizer))
        known = self.tokenizer.get_vocab()
        for token in self.stop_tokens:
            if token not in known:
                raise ConfigError(f"stop token {token!r} is not in the tokenizer's vocabulary.")
        return tuple(sorted(texts, key=lambda t: (-len(t), t)))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_headers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _headers={})


@dataclass(frozen=True)
class Rendered:
    """A rendered conversation, before tokenisation."""

    text: str
    ranges: list[tuple[int, int, bool]]
    """Supervised characters `(start, end, whether the last are an end token)`, ascending."""
    owners: list[int]
    """The message of each range."""
    turns: int


@dataclass(frozen=True)
class _Headers:
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


def _masked(encoding: Any, rendered: Rendered) -> Tokens:
    import numpy as np

    ids = np.asarray(encoding.ids, dtype=np.int32)
    mask = np.zeros(len(ids), dtype=bool)
    supervised = 0
    if rendered.ranges and len(ids):
        offsets = np.asarray(encoding.offsets, dtype=np.int64)
        starts, ends = offsets[:, 0], offsets[:, 1]
        for start, end, closed in rendered.ranges:
            first = int(np.searchsorted(starts, start, "left"))
            # an end token that swallows the white space around it (Phi's) reaches over the bound and counts
            last = int(np.searchsorted(starts, end, "left") if closed else np.searchsorted(ends, end, "right"))
            mask[first:last] = True
            supervised += last > first
    if len(mask):
        mask[0] = False  # nothing predicts the first token; verl's roll would let the last token of a batch do it
    return Tokens(ids, mask, rendered.turns, supervised)


def _common_prefix(a: str, b: str) -> str:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def _without_post_processor(backend: Any) -> Any:
    """A copy of the tokenizer whose offsets are not trimmed and that neither pads nor truncates: the same ids for
    `add_special_tokens=False`, for then a post-processor only shortens offsets."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(backend.to_str())
    copy.post_processor = None
    copy.no_padding()
    copy.no_truncation()
    copy.encode_special_tokens = backend.encode_special_tokens
    return copy


@functools.lru_cache(maxsize=16)
def _generation_config(folder: str) -> tuple[int, ...]:
    from pathlib import Path

    try:
        ends = json.loads((Path(folder) / "generation_config.json").read_text()).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(ends) if isinstance(ends, list) else (ends,) if isinstance(ends, int) else ()


def _generation_ends(tokenizer: Any) -> list[str]:
    """The end tokens that the generation config beside a local tokenizer names."""
    found = _generation_config(str(tokenizer.name_or_path or "."))
    return [t for t in tokenizer.convert_ids_to_tokens(list(found)) if t]
