"""From a conversation to token ids and loss mask, as the chat template and the tokenizer write it.

The ids are the template's own rendering of the whole conversation. Supervised is what the model would have to
generate: from the end of the generation prompt to the token that ends the turn, both exact; what else the template
writes (headers, line breaks after the end, results of tools) is not. A token that reaches over a bound is not
supervised, for the model could not generate it after that prompt.

A conversation or template of which this cannot be said is refused with the reason, never guessed.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.masks import last_user, policy, supervised_turns
from rufus_plugins.recipes.data.pieces import InPieces, Pieces, Whole
from rufus_plugins.recipes.data.records import Refused
from rufus_plugins.recipes.data.template_trace import render
from rufus_plugins.recipes.data.template_turns import Headers, after_thinking, probe, template_messages

if TYPE_CHECKING:
    import numpy as np


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
        state = backend.to_str()
        self.digest = hashlib.sha256(state.encode()).hexdigest()
        """Of the tokenizer, without its chat template."""
        self._pieces = Pieces(_without_post_processor(state, backend.encode_special_tokens))
        self._special = dict(self.tokenizer.special_tokens_map)
        self._stops = self._stop_texts()
        self._closers = tuple({*self._stops, *map(str, self.tokenizer.all_special_tokens)})
        self._headers: dict[str, Headers] = {}

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
                start = after_thinking(text, start, end, said[i])
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
            return self.encoded_all([rendered])[0]
        except TypeError as error:  # half a surrogate pair
            raise Refused("bad_text", str(error)) from error

    def encoded_all(self, rendered: Sequence[Rendered]) -> list[Tokens]:
        """As `encoded`, on all cores if TOKENIZERS_PARALLELISM allows it."""
        encoded = self._pieces.encode([r.text for r in rendered])
        return [_masked(e, r) for e, r in zip(encoded, rendered, strict=True)]

    # ---- where a turn begins and ends

    def _body(self, text: str, start: int, end: int, headers: Headers, before: str | None) -> tuple[int, int, bool]:
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

    def _headers_of(self, template: str, variables: Mapping[str, Any]) -> Headers:
        key = template + json.dumps(variables, sort_keys=True, default=repr)
        if key not in self._headers:
            self._headers[key] = probe(template, lambda prompt: self._variables(None, variables, prompt))
        return self._headers[key]

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
        known = self.tokenizer.get_vocab() if self.stop_tokens else {}
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


def _masked(encoded: Whole | InPieces, rendered: Rendered) -> Tokens:
    import numpy as np

    mask = np.zeros(len(encoded.ids), dtype=bool)
    supervised = 0
    for start, end, closed in rendered.ranges:
        first = encoded.before(start, False)
        # an end token that swallows the white space around it (Phi's) reaches over the bound and counts
        last = encoded.before(end, not closed)
        mask[first:last] = True
        supervised += last > first
    if len(mask):
        mask[0] = False  # nothing predicts the first token; verl's roll would let the last token of a batch do it
    return Tokens(encoded.ids, mask, rendered.turns, supervised)


def _without_post_processor(state: str, encode_special_tokens: bool) -> Any:
    """A copy of the tokenizer whose offsets are not trimmed and that neither pads nor truncates: the same ids for
    `add_special_tokens=False`, for then a post-processor only shortens offsets."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(state)
    copy.post_processor = None
    copy.no_padding()
    copy.no_truncation()
    copy.encode_special_tokens = encode_special_tokens
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
