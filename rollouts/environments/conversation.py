"""Conversations of several turns with a simulated user (Rufus-Air, Instruction RL: 6.1 turns on average).

    environment=conversation reward=rubrics                                            # scripted users
    environment=conversation 'rufus.environment.teacher={base_url: ..., model: ...}'   # a teacher plays the user

A record brings the opening (`prompt`) and what follows:

- `extra["user_turns"]`: the user's further messages, a list of texts (or its JSON). They are said in order whatever the
  model answers; the answer to the last one is the final turn, which the reward scores.
- `extra["user"]`: what the teacher plays: who the user is, what they want, what they will add, change or distract with.

With both, the turns are said first and the teacher goes on. What the teacher writes is data: special tokens in it are
text, and it ends the conversation only by the end marker. A teacher that gives no message is our fault
(`environment_lost`), never the model's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.judge import text_of
from rufus_plugins.rollouts.environments.conversation_teacher import INSTRUCTION, Teacher, teacher
from rufus_plugins.rollouts.turns import UNTRUSTED_FROM
from rufus_plugins.rollouts.validation import for_task, for_validation
from rufus_plugins.types import Message, StepResult, Task, Termination


@dataclass
class Conversation:
    """A simulated user over several turns: scripted, or played by a teacher."""

    teacher: dict[str, Any] | None = None
    """{base_url, model, ...}: the model that plays the user; null: scripted turns only."""
    max_user_turns: int = 6
    """Messages of the user, the opening's last one included; the answer to the last one is final."""
    min_user_turns: int = 2
    """Before the user has said so much, the teacher cannot end the conversation: a model could talk it into that.
    Ours."""
    end_marker: str = "[END]"
    """By which the teacher ends the conversation. Ours."""
    instruction: str = ""
    """How the teacher is asked; {user} is the record's `extra["user"]`, {marker} the end marker. "": ours."""
    default_user: str = ""
    """For records without `extra["user"]`; "" refuses them where the teacher is needed."""
    max_message_chars: int = 8000
    """Of the teacher's message; a longer one is asked for again. Ours."""
    validation: dict[str, Any] = field(default_factory=dict)
    """Fields that differ in validation."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_user_turns <= self.max_user_turns:
            raise ConfigError("rufus.environment: 1 <= min_user_turns <= max_user_turns is needed")
        if not self.end_marker.strip() or self.max_message_chars < 1:
            raise ConfigError("rufus.environment: end_marker is a text, max_message_chars a positive number")
        self._instruction = self.instruction or INSTRUCTION
        if "{user}" not in self._instruction or "{marker}" not in self._instruction:
            raise ConfigError("rufus.environment.instruction needs {user} and {marker} in it")
        self._teacher: Teacher | None = teacher(self.teacher)
        if self.validation:
            for_validation(self)  # a wrong field is told now
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._chosen = self
        self._script: list[str] = []
        self._user = ""
        self._log: list[dict[str, str]] = []
        self._said = 0

    async def start(self, task: Task) -> Sequence[Message]:
        """Raises `DataError` for a record that brings nobody to talk to."""
        self._chosen = for_task(self, task)
        self._script = _turns(task.extra.get("user_turns"))
        self._user = str(task.extra.get("user") or self._chosen.default_user)
        opening = [dict(message) for message in task.prompt]
        self._log = [
            {"role": message["role"], "content": text_of(message)} for message in opening if message["role"] != "system"
        ]
        self._said = sum(message["role"] == "user" for message in self._log)
        if self._said == 0 or self._log[-1]["role"] != "user":  # the user still has to speak
            if not self._script and self._chosen._teacher is None:
                raise DataError(
                    f"{task.id}: the prompt has no message of the user, and there is no script and no teacher"
                )
            text = await self._next()
            if text is None:
                raise InfrastructureError("the teacher ended the conversation at once", Termination.ENVIRONMENT_LOST)
            opening.append({"role": "user", "content": text, UNTRUSTED_FROM: 0})
        return opening

    async def step(self, message: Message) -> StepResult:
        text = message.get("content")
        if not isinstance(text, str) or not text.strip():
            return StepResult(done=True, termination=Termination.STOPPED)
        self._log.append({"role": "assistant", "content": text})
        if self._said >= self._chosen.max_user_turns and not self._script:
            return StepResult(done=True)
        reply = await self._next()
        if reply is None:
            return StepResult(done=True)
        return StepResult([{"role": "user", "content": reply}], metrics={"user_turns": 1})

    async def finish(self) -> Mapping[str, Any]:
        return {"conversation": self._log}

    async def close(self) -> None: ...

    async def _next(self) -> str | None:
        """The user's next message; None if the conversation is over."""
        if self._script:
            text: str | None = self._script.pop(0)
        elif self._chosen._teacher is None:
            return None
        else:
            chosen = self._chosen
            if not self._user.strip():
                raise DataError('the record has no `extra["user"]` for the teacher, and default_user is not set')
            text = await chosen._teacher.speak(
                chosen._instruction.replace("{marker}", chosen.end_marker).replace("{user}", self._user),
                self._log,
                chosen.end_marker,
                may_end=self._said >= chosen.min_user_turns,
                max_chars=chosen.max_message_chars,
            )
            if text is None:
                return None
        self._said += 1
        self._log.append({"role": "user", "content": text})
        return text


def _turns(value: Any) -> list[str]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise DataError(f"the task's `user_turns` is no JSON list: {error}") from None
    value = [] if value is None else value
    if not isinstance(value, list | tuple) or not all(isinstance(turn, str) and turn.strip() for turn in value):
        raise DataError(f"the task's `user_turns` is {str(value)[:200]!r}; a list of texts is needed")
    return list(value)
