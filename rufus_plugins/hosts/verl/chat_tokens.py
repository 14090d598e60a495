"""verl's Continuous Token builders as the episode driver's `Chat` (rollouts/turns.py).

What differs from verl's own agent loop (experimental/agent_loop/tool_agent_loop.py, utils/tokenizer/continuous_token.py
of 0.9.1):

- The builder sees the end of the segment and the new messages, never the history: a turn costs its own tokens.
  Synthetic prefixes are rendered, but only what follows them is tokenised.
- Nothing is taken away. Where a builder drops a sampled token that the next message also starts with (GLM's
  `<|observation|>`, continuous_token.py:621-650), the sampled one stays and is trained, and the other one is left out.
- A turn that stopped without its end token (a stop string) is closed as the chat template closes it.
- Special tokens in tool and user messages arrive as text (plain_text.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from verl.utils.tokenizer import chat_template
from verl.utils.tokenizer.continuous_token import Gemma4ContinuousTokenBuilder, GptOssContinuousTokenBuilder
from verl.utils.tokenizer.continuous_token_wiring import (
    get_continuous_token_builder_class,
    resolve_continuous_token_model_family,
)
from verl.utils.tokenizer.deepseek import DeepSeekV4ContinuousTokenBuilder

from rufus_plugins.errors import ConfigError
from rufus_plugins.rollouts import tool_calls
from rufus_plugins.rollouts.segment import TokensDiverged
from rufus_plugins.rollouts.tool_calls import ParsedCall, ParsedTurn, parse, split_thinking
from rufus_plugins.rollouts.turns import UNTRUSTED_FROM, Tools
from rufus_plugins.types import CallStatus, Message

from .plain_text import PlainText

FORMATS = {
    "glm4_moe": "glm-4.5",
    "glm4v_moe": "glm-4.5",
    "glm_moe_dsa": "glm-4.5",
    "qwen3_5": "qwen3_coder",
    "qwen3_5_moe": "qwen3_coder",
    "llama": "llama3_json",
    "mistral": "mistral",
    "mixtral": "mistral",
    "gpt_oss": "gpt-oss",
    "minimax_m2": "minimax",
    "kimi_k2": "kimi",
    "deepseek_v4": "deepseek_v4",
    "gemma4": "gemma4",
    "seed_oss": "seed",
}
"""`model_type` -> how the family writes calls; the others write Hermes'."""
ALIASES = {"glm": "glm-4.5"}
"""verl's name -> ours."""
_MARKUP = (
    "<tool_call> </tool_call> <think> </think> [TOOL_CALLS] [ARGS] [CALL_ID] <|python_tag|> [THINK] [/THINK]"
).split()
"""Special in some vocabularies, and yet part of what a turn says."""
_SAID = ("role", "content", "name", "tool_call_id", "reasoning_content", "tool_calls")


class _SuffixAlone:
    """Mixed into a builder of verl: tokenises what follows a prefix without tokenising the prefix."""

    def render_delta_token_id(
        self,
        prefix_messages: list[dict[str, Any]],
        appended_messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        def rendered(messages: list[dict[str, Any]], generation: bool) -> str:
            return chat_template.apply_chat_template(
                self.tokenizer, messages, tokenize=False, add_generation_prompt=generation, tools=tools,
                **self.chat_template_kwargs,
            )  # fmt: skip

        before = rendered(prefix_messages, False)
        after = rendered(prefix_messages + appended_messages, add_generation_prompt)
        if after.startswith(before) and self.tokenizer.starts_with_control(after[len(before) :]):
            return self.tokenizer.encode(after[len(before) :])
        if after == before:
            return []
        return super().render_delta_token_id(
            prefix_messages, appended_messages, add_generation_prompt=add_generation_prompt, tools=tools
        )


class ChatTokens:
    """The chat format of one model. Raises `ConfigError` for a format that nobody reads."""

    def __init__(
        self,
        tokenizer: Any,
        model_type: str | None,
        *,
        end_ids: Collection[int] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        tool_format: str | None = None,
    ):
        family = resolve_continuous_token_model_family("auto", hf_model_type=model_type)
        builder = get_continuous_token_builder_class(family)
        if builder.supports_multimodal():
            raise ConfigError(
                f"environments are text only, but model_type {model_type!r} is read by {builder.__name__}"
            )
        self._tokenizer = tokenizer
        self.plain = PlainText(tokenizer)
        self.builder = type(f"Suffix{builder.__name__}", (_SuffixAlone, builder), {})(
            self.plain, chat_template_kwargs=dict(template_kwargs or {})
        )
        self.end_ids = frozenset(end_ids) or _own_ends(tokenizer)
        self.tool_format = _known_format(tool_format or FORMATS.get(model_type or "", "hermes"))
        kept = {tokenizer.convert_tokens_to_ids(token) for token in _MARKUP} | self._format_ids()
        self._silent = frozenset(tokenizer.all_special_ids) - kept
        self._closings = self._find_closings()

    # ---- messages to ids

    def opening(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        said = [self._said(m, m[UNTRUSTED_FROM] if UNTRUSTED_FROM in m else None) for m in messages]
        return list(self.builder.build_initial_tokens(said, tools=list(tools) or None))

    def following(
        self, tail: Sequence[int], called: Sequence[str], messages: Sequence[Message], tools: Tools
    ) -> list[int]:
        known = {tool["function"]["name"] for tool in tools}
        said = [self._said(m, 0) for m in messages]
        for i, message in enumerate(said):
            if message["role"] == "tool":  # the name is the model's own text where it made one up
                message["name"] = message.get("name") if message.get("name") in known else "unknown_tool"
                message.setdefault("tool_call_id", f"call_{i}")
        assistant: dict[str, Any] = {"role": "assistant", "content": ""}
        answers = [m for m in said if m["role"] == "tool"]
        if answers:
            assistant["tool_calls"] = [
                {"id": m["tool_call_id"], "type": "function", "function": {"name": m["name"], "arguments": {}}}
                for m in answers
            ]
        previous = [{"role": "user", "content": "."}, assistant]
        prefix = [*tail, *self._closing(tail, bool(called))]
        merged = self.builder.merge_context_tokens(previous, previous + said, prefix, tools=list(tools) or None)
        keep = len(prefix) - merged.removed_prefix_token_count
        if list(merged.token_ids[:keep]) != prefix[:keep]:
            raise TokensDiverged(f"{type(self.builder).__name__} changed tokens of the segment")
        removed, new = prefix[keep:], list(merged.token_ids[keep:])
        if removed and new[: len(removed)] == removed:
            new = new[len(removed) :]
        return prefix[len(tail) :] + new

    def _said(self, message: Message, untrusted_from: int | None) -> dict[str, Any]:
        """The message as a template gets it: text, known keys, and shielded from `untrusted_from` on."""
        said = {key: message[key] for key in _SAID if message.get(key) is not None}
        content = text_of(message.get("content"))
        if untrusted_from is not None:
            content = content[:untrusted_from] + self.plain.shield(content[untrusted_from:])
        return said | {"content": content}

    # ---- boundaries

    def _closing(self, tail: Sequence[int], called: bool) -> list[int]:
        """What is missing at the end of a sampled turn: all of its closing, or what follows its end token."""
        closing = self._closings[called]
        for length in range(min(len(closing), len(tail)), 0, -1):
            if list(tail[-length:]) == closing[:length]:
                return closing[length:]
        return [] if tail and tail[-1] in self.end_ids else closing

    def _find_closings(self) -> dict[bool, list[int]]:
        """(with calls, without) -> how the family closes an assistant turn that something follows."""
        if isinstance(self.builder, DeepSeekV4ContinuousTokenBuilder):
            return {True: [], False: []}  # closes turns itself
        if isinstance(self.builder, GptOssContinuousTokenBuilder):
            return {True: self.plain.encode("<|call|>"), False: self.plain.encode("<|end|>")}
        plain = self._closing_of_text()
        if isinstance(self.builder, Gemma4ContinuousTokenBuilder):
            return {True: [], False: plain}  # results stand inside the model's turn
        return {True: plain, False: plain}

    def _closing_of_text(self) -> list[int]:
        """From the template: what is the same behind two different answers."""
        ask = {"role": "user", "content": "."}
        try:
            one, other = (
                chat_template.apply_chat_template(
                    self.plain, [ask, {"role": "assistant", "content": text}, ask], tokenize=False,
                    add_generation_prompt=False, **self.builder.chat_template_kwargs,
                ).rpartition(text)
                for text in ("aqzj", "vkwx")
            )  # fmt: skip
        except Exception as error:
            raise ConfigError(f"the chat template renders no user, assistant, user: {error}") from error
        end = one[2] if one[2] == other[2] else ""
        # the closing ends where the next message begins, which a render without it shows
        alone = chat_template.apply_chat_template(
            self.plain, [ask, {"role": "assistant", "content": "aqzj"}], tokenize=False, add_generation_prompt=False,
            **self.builder.chat_template_kwargs,
        ).rpartition("aqzj")[2]  # fmt: skip
        shared = next((n for n in range(min(len(end), len(alone)), 0, -1) if end[:n] == alone[:n]), 0)
        closing = end[:shared]
        return self.plain.encode(closing) if self.plain.starts_with_control(closing) else []

    # ---- ids to a turn

    async def read(self, ids: Sequence[int], tools: Tools) -> ParsedTurn:
        end = len(ids)
        while end and ids[end - 1] in self.end_ids:
            end -= 1
        said = [index for index in ids[:end] if index not in self._silent]
        text = self._tokenizer.decode(said, skip_special_tokens=False)
        if not tools:
            thinking, rest = split_thinking(text)
            return ParsedTurn((), rest.strip(), thinking)
        if self.tool_format in tool_calls.FORMATS:
            return parse(self.tool_format, text, tools)
        return await self._read_as_verl(ids[:end], text, tools)

    async def _read_as_verl(self, ids: Sequence[int], text: str, tools: Tools) -> ParsedTurn:
        """By one of verl's parsers; what makes it fail is a malformed call."""
        from verl.tools.schemas import OpenAIFunctionToolSchema

        thinking, rest = split_thinking(text)
        try:
            schemas = [OpenAIFunctionToolSchema.model_validate(tool) for tool in tools]
            content, found = await _verl_parser(self.tool_format, self._tokenizer).extract_tool_calls(
                list(ids), schemas
            )
        except Exception as error:
            broken = ParsedCall("", text, CallStatus.MALFORMED, f"{type(error).__name__}: {error}")
            return ParsedTurn((broken,), rest.strip(), thinking)
        calls = []
        for call in found:
            try:
                arguments = json.loads(call.arguments)
            except (ValueError, TypeError, RecursionError):
                arguments = None
            if isinstance(arguments, dict):
                calls.append(ParsedCall(call.name, arguments))
            else:
                problem = "the arguments are no JSON object"
                calls.append(ParsedCall(call.name, str(call.arguments), CallStatus.MALFORMED, problem))
        return ParsedTurn(tuple(calls), split_thinking(content or "")[1].strip(), thinking)

    def _format_ids(self) -> set[int]:
        """Special tokens that verl's parsers look for in the text."""
        if self.tool_format in tool_calls.FORMATS:
            return set()
        return set(self._tokenizer.all_special_ids)


def text_of(content: Any) -> str:
    """The text of a message's content; parts that are no text are left out."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, Sequence):
        return "".join(part if isinstance(part, str) else str(part.get("text") or "") for part in content)
    return str(content)


def asked_format(config: Any, rules: Any) -> str | None:
    """The tool format that a run's config names, None for that of the model family. Raises `ConfigError`."""
    named = config.actor_rollout_ref.rollout.multi_turn.get("format")
    name = rules.tool_format or (named if named != "hermes" else None)  # hermes is verl's default for all
    return None if name is None else _known_format(name)


def _known_format(name: str) -> str:
    from verl.experimental.agent_loop.tool_parser import ToolParser

    name = ALIASES.get(name, name)
    known = {*tool_calls.FORMATS, *ToolParser._registry}
    if name not in known:
        raise ConfigError(
            f"rufus.environment.tool_format={name!r}: nobody reads it. Known: {', '.join(sorted(known))}."
        )
    return name


@functools.lru_cache(maxsize=4)
def _verl_parser(name: str, tokenizer: Any) -> Any:
    from verl.experimental.agent_loop.tool_parser import ToolParser

    return ToolParser.get_tool_parser(name, tokenizer)


def _own_ends(tokenizer: Any) -> frozenset[int]:
    own = tokenizer.eos_token_id
    return frozenset(own if isinstance(own, list | tuple) else {own} - {None})
