"""What the episode driver needs of its host: something that samples tokens, and a model family's chat format.

`rufus_plugins.hosts.verl` gives both for verl; a test or another host can give its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rufus_plugins.types import Message

if TYPE_CHECKING:
    import numpy as np

    from rufus_plugins.rollouts.tool_calls import ParsedTurn

UNTRUSTED_FROM = "untrusted_from"
"""Key of an opening message: from this character of its content on, special tokens are text (a carry-over)."""

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Sampled:
    """One answer of the engine."""

    ids: Sequence[int]
    finish: Literal["stop", "length", "abort"]
    logprobs: Sequence[float] | None = None
    routes: np.ndarray | None = None
    """`[prompt + sampled - 1, layers, top_k]`."""
    versions: tuple[int, int] | None = None
    """Weights of the first and the last token."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class Policy(Protocol):
    async def generate(self, prompt_ids: list[int], max_tokens: int) -> Sampled:
        """Samples after `prompt_ids`. An engine that fails may raise anything; it becomes `ENGINE_FAILED`."""
        ...


class Chat(Protocol):
    """Messages to ids, and sampled ids to a turn. Methods may run in a thread; none keeps state between calls."""

    def opening(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """The prompt of a segment, generation prompt included."""
        ...

    def following(
        self, tail: Sequence[int], called: Sequence[str], messages: Sequence[Message], tools: Tools
    ) -> list[int]:
        """Ids to append when `messages` (tool, user) follow a sampled turn, generation prompt included.

        Args:
            tail: the last ids of the segment, at least `TAIL` of them if there are as many.
            called: names of the tools that the sampled turn called; empty if it called none.

        Special tokens in the contents of `messages` arrive as text.
        """
        ...

    async def read(self, ids: Sequence[int], tools: Tools) -> ParsedTurn:
        """What a sampled turn says and calls. Never raises for what a model wrote."""
        ...


TAIL = 64
"""Tokens of the segment's end that a boundary may depend on. Ours: the longest known turn end has a dozen."""
