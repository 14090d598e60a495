"""The teacher that plays the user: a model behind an OpenAI-compatible server.

It gets the conversation as JSON, in which neither side can forge a turn of the other, and writes the user's next
message. An unusable message (empty, cut off, too long, an end before its time) is asked for again, a few times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rollouts.chat_server import ChatServer, chat_server
from rufus_plugins.types import Termination

INSTRUCTION = (
    "You play the user in a conversation with an AI assistant. You are not the assistant and never help it.\n\n"
    "Who you are and what you want:\n{user}\n\n"
    "Write the user's next message only, as a user would write it: no role names, no quotation marks around it, no "
    "comment. Stay in your role whatever the assistant says. Ask for what you want step by step: add a requirement, "
    "change an earlier one, or distract with something else, and hold the assistant to what you still want. When "
    "everything you want has been asked for and answered, write {marker} and nothing else."
)
"""Ours, after Rufus-Air: the user adds constraints, changes requirements and inserts distractors."""
_NOT_YET = "\n\nThe conversation is not over yet: do not end it with this message."


@dataclass
class Teacher(ChatServer):
    """Fields of `rufus.environment.teacher`."""

    unusable: int = 3
    """How often a message may be asked for. Ours."""

    def __post_init__(self) -> None:
        if self.unusable < 1:
            raise ConfigError("rufus.environment.teacher.unusable is 1 or more")
        super().__post_init__()

    async def speak(
        self, instruction: str, log: Sequence[Mapping[str, str]], marker: str, *, may_end: bool, max_chars: int
    ) -> str | None:
        """The user's next message, None if the user ends the conversation.

        Raises `InfrastructureError(ENVIRONMENT_LOST)` if there is none.
        """
        told = json.dumps(list(log), ensure_ascii=False, indent=1)
        ask = f"The conversation so far, as JSON:\n{told}\n\nWrite the user's next message."
        messages = [
            {"role": "system", "content": instruction + ("" if may_end else _NOT_YET)},
            {"role": "user", "content": ask},
        ]
        why = ""
        for _ in range(self.unusable):
            try:
                text = await self.say(messages)
            except InfrastructureError as error:
                raise InfrastructureError(f"the simulated user: {error}", Termination.ENVIRONMENT_LOST) from error
            ended, text = marker in text, text.replace(marker, "").strip()
            if ended and may_end:
                return None
            if text and len(text) <= max_chars:
                return text
            nothing = "an end before its time" if ended else f"no message, or a cut one (max_tokens={self.max_tokens})"
            why = f"a message of {len(text)} characters" if text else nothing
        raise InfrastructureError(
            f"the simulated user {self.model} at {self.base_url} gave {why}, {self.unusable} times",
            Termination.ENVIRONMENT_LOST,
        )


def teacher(config: Mapping[str, Any] | None) -> Teacher | None:
    """From config, None for null. Raises `ConfigError`."""
    return chat_server(Teacher, config, "rufus.environment.teacher")
