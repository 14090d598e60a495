"""An episode over messages: rollouts/episode.py with a chat API in the place of a token engine.

For data, not for training on tokens: the driver's rules (budgets, malformed calls, deadlines, compaction, typed
endings) and the environments are the same, but the ids that it counts stand for tokens and are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.recipes.data.backends import Backend, Reply
from rufus_plugins.rollouts.tool_calls import ParsedTurn
from rufus_plugins.rollouts.turns import UNTRUSTED_FROM, Sampled, Tools
from rufus_plugins.types import Message

CHARS_PER_TOKEN = 4
"""Where the server does not count: context that it reads between turns. Ours."""


class Dialogue:
    """Both what samples and what knows the chat format, for one episode; turns follow each other."""

    def __init__(self, backend: Backend, seed: int, max_tokens: int):
        self.backend, self.seed, self.max_tokens = backend, seed, max_tokens
        self._asked: list[Message] = []
        """What the last answer was given to."""
        self._next: list[Message] = []
        self._tools: Tools = ()
        self._reply: Reply | None = None
        self._turns = 0
        self.opened: list[Message] | None = None
        """What the episode opened with, before any compaction."""

    def opening(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        self._next = [{k: v for k, v in message.items() if k != UNTRUSTED_FROM} for message in messages]
        self._tools = tools
        if self.opened is None:
            self.opened = self._next
        return [0] * _about(messages)

    async def generate(self, prompt_ids: list[int], max_tokens: int) -> Sampled:
        self._asked = self._next
        seed = self.seed + self._turns
        self._reply = await self.backend.reply(self._asked, self._tools, seed, min(self.max_tokens, max_tokens))
        self._turns += 1
        return Sampled([0] * max(self._reply.tokens, 1), "length" if self._reply.cut_off else "stop")

    async def read(self, ids: Sequence[int], tools: Tools) -> ParsedTurn:
        return self._reply.turn

    def following(
        self, tail: Sequence[int], called: Sequence[str], messages: Sequence[Message], tools: Tools
    ) -> list[int]:
        """The turn and what follows it; calls have the ids that their answers name."""
        turn = self._reply.turn
        said: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if turn.thinking:
            said["reasoning_content"] = turn.thinking
        answers = [m["tool_call_id"] for m in messages if m.get("role") == "tool" and m.get("tool_call_id")]
        if len(answers) == len(turn.calls) and answers:
            said["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for i, call in zip(answers, turn.calls, strict=True)
            ]
        self._next = [*self._asked, said, *messages]
        return [0] * _about(messages)


def _about(messages: Sequence[Mapping[str, Any]]) -> int:
    return 1 + sum(len(str(message.get("content") or "")) for message in messages) // CHARS_PER_TOKEN
