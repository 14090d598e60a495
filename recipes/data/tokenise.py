"""`rufus data tokenise`: conversations to token ids and loss masks, once instead of in every epoch."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.sft_tokens import Rendered, SFTTokenizer, Tokens
from rufus_plugins.recipes.data.template_turns import decoded_tools
from rufus_plugins.recipes.data.tool import RecordTool, SetAside

AT_ONCE = 32
"""Conversations per call of the tokenizer. Ours: its intermediate results take some 200 bytes a token."""


def schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("category", pa.string()),
            ("tokens", pa.int32()),
            ("supervised_tokens", pa.int32()),
            ("turns", pa.int32()),
            ("supervised_turns", pa.int32()),
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.uint8())),
        ]
    )


@dataclass
class Tokenise(RecordTool):
    """Output: input_ids, loss_mask and counts per conversation. Write .arrow to train from it without a copy."""

    tokenizer: str
    """Folder or hub name of a tokenizer with a chat template."""
    mask: Literal["rufus_air", "every_turn", "axion"] = "rufus_air"
    """Which turns are supervised: rufus_air (after the final user request, answered actions only), every_turn (the same
    in all turns, without earlier thinking) or axion (all that the assistant says)."""
    max_tokens: int = 131_072
    """Longer conversations are handled as --too-long says (Axion: 128K)."""
    too_long: Literal["set_aside", "cut"] = "set_aside"
    """set_aside, or cut: the end of the conversation is left out."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template."""
    enable_thinking: bool | None = None
    """Value of the template's enable_thinking, for records that have none of their own."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end a turn where the template closes none; default: those of the generation config."""
    messages_field: str = "messages"
    """Field of the record with its messages."""

    name: ClassVar[str] = "tokenise"
    schema: ClassVar[Any] = staticmethod(schema)
    formats: ClassVar[tuple[str, ...]] = ("parquet", "arrow")

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"--max-tokens is {self.max_tokens}; at least 1 is needed.")
        if self.too_long not in ("set_aside", "cut"):
            raise ConfigError(f"--too-long is {self.too_long!r}; set_aside or cut is needed.")
        self._writer = SFTTokenizer(self.tokenizer, self.mask, self.template_kwargs, self.stop_tokens)

    @classmethod
    def of(cls, tokenizer: Any, **fields: Any) -> Tokenise:
        """For a loaded tokenizer, such as the one that a trainer hands to its dataset."""
        made = cls(tokenizer, **fields)  # SFTTokenizer takes it as it is
        made.tokenizer = "(given)"  # its digest says which
        return made

    def identity(self) -> Mapping[str, Any]:
        tokenizer = self._writer.tokenizer
        parts = (
            self._writer.digest,
            json.dumps(tokenizer.chat_template, sort_keys=True),
            json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str),
            json.dumps(self._writer.stops),
        )
        return {"tokenizer_sha256": hashlib.sha256("\0".join(parts).encode()).hexdigest()}

    def start(self) -> None:
        import multiprocessing

        if multiprocessing.parent_process() is not None:  # one process per CPU already
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def batch(self, raws: Sequence[Raw]) -> Iterator[dict[str, Any] | SetAside]:
        for start in range(0, len(raws), AT_ONCE):
            some = raws[start : start + AT_ONCE]
            rendered = [self._rendered(raw) for raw in some]
            texts = [r for r in rendered if isinstance(r, Rendered)]
            tokens = iter(self._writer.encoded_all(texts))
            for raw, made in zip(some, rendered, strict=True):
                if isinstance(made, SetAside):
                    yield made
                    continue
                found = next(tokens)
                if raw is raws[0]:
                    self._compare(raw, found)
                yield self._row(raw, found)

    def _rendered(self, raw: Raw) -> Rendered | SetAside:
        record = raw.without_nulls()
        messages = record.get(self.messages_field)
        try:
            if not isinstance(messages, (list, tuple)):
                raise Refused("no_messages", f"{self.messages_field} is a {type(messages).__name__}")
            made = self._writer.rendered(messages, decoded_tools(record.get("tools")), self._thinking(record))
            made.text.encode("utf-8")
            return made
        except Refused as error:
            return SetAside(raw, error.reason, str(error))
        except UnicodeEncodeError as error:
            return SetAside(raw, "bad_text", f"half a surrogate pair: {error.reason}")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return SetAside(raw, "bad_messages", f"{type(error).__name__}: {error}")

    def _thinking(self, record: Mapping[str, Any]) -> bool | None:
        own = record.get("enable_thinking")
        return self.enable_thinking if own is None else bool(own)

    def _compare(self, raw: Raw, tokens: Tokens) -> None:
        """The first conversation of a chunk against transformers' own way: it must never differ."""
        record = raw.without_nulls()
        thinking, tools = self._thinking(record), decoded_tools(record.get("tools"))
        more = {} if thinking is None else {"enable_thinking": thinking}
        encoded = self._writer.tokenizer.apply_chat_template(
            self._writer.template_messages(record[self.messages_field], tools, thinking),
            tools=tools,
            return_dict=True,
            tokenizer_kwargs={"verbose": False},  # no word about the model's length: --max-tokens is the limit
            **{**self.template_kwargs, **more},
        )
        if list(encoded["input_ids"]) != tokens.ids.tolist():
            raise ConfigError(
                f"{raw.where}: this tokenizer's apply_chat_template gives other ids; it is not supported."
            )

    def _row(self, raw: Raw, tokens: Tokens) -> dict[str, Any] | SetAside:
        import numpy as np

        ids, mask = tokens.ids, tokens.mask
        if len(ids) > self.max_tokens:
            if self.too_long == "set_aside":
                return SetAside(raw, "too_long", f"{len(ids)} tokens")
            ids, mask = ids[: self.max_tokens], mask[: self.max_tokens]
            self.notes["cut"] += 1
        if not mask.any():
            return SetAside(raw, "nothing_supervised", f"{tokens.turns} turns, none of them supervised")
        self.notes["tokens"] += len(ids)
        self.notes["supervised_tokens"] += int(mask.sum())
        return {
            "id": str(raw.record.get("id") or ""),
            "category": str(raw.record.get("category") or ""),
            "tokens": len(ids),
            "supervised_tokens": int(mask.sum()),
            "turns": tokens.turns,
            "supervised_turns": tokens.supervised_turns,
            "input_ids": base64.b64encode(ids.astype("<i4").tobytes()).decode(),
            "loss_mask": base64.b64encode(np.packbits(mask).tobytes()).decode(),
        }

    def table(self, rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
        import numpy as np
        import pyarrow as pa

        ids = [np.frombuffer(base64.b64decode(r["input_ids"]), dtype="<i4") for r in rows]
        masks = [
            np.unpackbits(np.frombuffer(base64.b64decode(r["loss_mask"]), dtype=np.uint8), count=r["tokens"])
            for r in rows
        ]
        offsets = pa.array(np.cumsum([0, *map(len, ids)]).astype(np.int32))
        columns = [pa.array([r[n] for r in rows], schema.field(n).type) for n in schema.names[:-2]]
        for parts, kind in ((ids, np.int32), (masks, np.uint8)):
            values = np.concatenate(parts).astype(kind) if parts else np.empty(0, kind)
            columns.append(pa.ListArray.from_arrays(offsets, pa.array(values)))
        return pa.Table.from_arrays(columns, schema=schema)
