"""`rufus data show-mask`: a conversation as the model sees it, what is supervised in colour."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Raw, Refused, read
from rufus_plugins.recipes.data.sft_tokens import SFTTokenizer, Tokens
from rufus_plugins.recipes.data.template_turns import decoded_tools

OPEN, CLOSE = "⟦", "⟧"
"""Around supervised runs where there is no colour."""


@dataclass
class ShowMask:
    """Prints conversations with the supervised tokens in colour; in a pipe or file, between ⟦ and ⟧."""

    input: str
    """JSONL or Parquet of conversations, a directory of them, or a hub dataset."""
    tokenizer: str
    """Folder or hub name of a tokenizer with a chat template."""
    mask: Literal["rufus_air", "every_turn", "axion"] = "rufus_air"
    """As in `rufus data tokenise`."""
    record: int = 0
    """Which conversation, counted from 0."""
    id: str | None = None
    """Which conversation, by its id."""
    count: int = 1
    """How many from there on."""
    enable_thinking: bool | None = None
    """As in `rufus data tokenise`."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """As in `rufus data tokenise`."""
    stop_tokens: tuple[str, ...] = ()
    """As in `rufus data tokenise`."""
    bounds: bool = False
    """Show the bounds of tokens as well."""

    def __call__(self) -> int:
        from rich.console import Console

        console = Console(soft_wrap=True, highlight=False)
        writer = SFTTokenizer(self.tokenizer, self.mask, self.template_kwargs, self.stop_tokens)
        shown = 0
        for raw in itertools.islice(self._from(), self.count):
            shown += 1
            record = raw.without_nulls()
            console.rule(f"{raw.where} {_visible(str(record.get('id') or ''))}".strip())
            try:
                thinking = record.get("enable_thinking")
                tokens = writer(
                    record.get("messages") or (),
                    decoded_tools(record.get("tools")),
                    self.enable_thinking if thinking is None else thinking,
                )
            except Refused as error:
                console.print(f"set aside, {error.reason}: {error}", style="bold red", markup=False)
                continue
            except (KeyError, TypeError, AttributeError) as error:
                console.print(f"set aside, bad_messages: {error!r} (see normalise)", style="bold red", markup=False)
                continue
            console.print(self.text(writer, tokens, plain=not console.is_terminal))
            share = int(tokens.mask.sum()) / len(tokens.mask)
            console.print(
                f"{len(tokens.ids)} tokens, {int(tokens.mask.sum())} supervised ({share:.1%}); "
                f"{tokens.turns} turns, {tokens.supervised_turns} supervised",
                style="bold",
            )
        if not shown:
            what = f"id {self.id!r}" if self.id is not None else f"record {self.record}"
            raise ConfigError(f"{self.input} has no {what}.")
        return 0

    def text(self, writer: SFTTokenizer, tokens: Tokens, plain: bool = False) -> Any:
        """The conversation as rich text."""
        from rich.text import Text

        made = Text()
        for supervised, ids in _runs(tokens):
            if self.bounds:
                said = "│".join(_visible(writer.tokenizer.decode([i])) for i in ids)
            else:
                said = _visible(writer.tokenizer.decode(ids))
            if supervised and plain:
                said = f"{OPEN}{said}{CLOSE}"
            made.append(said, style="bold black on green" if supervised else "dim")
        return made

    def _from(self) -> Iterator[Raw]:
        raws = (item for item in read(self.input) if isinstance(item, Raw))
        if self.id is not None:
            return itertools.dropwhile(lambda raw: str(raw.record.get("id")) != self.id, raws)
        return itertools.islice(raws, self.record, None)


def _runs(tokens: Tokens) -> Iterator[tuple[bool, list[int]]]:
    pairs = zip(tokens.mask.tolist(), tokens.ids.tolist(), strict=True)
    for supervised, run in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield supervised, [i for _, i in run]


def _visible(text: str) -> str:
    """Control characters as pictures, so that a corpus cannot steer the terminal."""
    return "".join(
        c if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) else chr(0x2400 + ord(c)) if ord(c) < 32 else "␡"
        for c in text
    )
