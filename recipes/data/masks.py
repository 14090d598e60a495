"""Which turns of a conversation are supervised, and where earlier thinking is masked.

Seeds: loss on assistant tokens only. Rufus-Air: an action of an agent is supervised only when a tool result follows
it; the final user request anchors the response, what was said before is context and its rationales are masked.
Axion: reasoning, tool calls and final answer, in every turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Refused


@dataclass(frozen=True)
class MaskPolicy:
    only_after_last_user: bool
    """Turns before the final user request are context."""
    only_answered_actions: bool
    """A turn with tool calls counts only if a tool result follows it."""
    masks_earlier_thinking: bool
    """In turns before the final user request, thinking that the template keeps is not supervised."""


POLICIES: dict[str, MaskPolicy] = {
    "rufus_air": MaskPolicy(True, True, True),
    # ours: the same rules, but answers to earlier requests are supervised too, without their thinking
    "every_turn": MaskPolicy(False, True, True),
    "axion": MaskPolicy(False, False, False),
}


def policy(name: str) -> MaskPolicy:
    if name not in POLICIES:
        raise ConfigError(f"There is no mask {name!r}. There are: {', '.join(POLICIES)}.")
    return POLICIES[name]


def last_user(messages: Sequence[Mapping[str, Any]]) -> int:
    """Place of the final user request, -1 if there is none."""
    return max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)


def supervised_turns(messages: Sequence[Mapping[str, Any]], rules: MaskPolicy) -> list[bool]:
    """One flag per message. A message's own `train` (true or false) overrides the rules (verl#5316).

    Raises `Refused("override_not_assistant")` where `train` is true for what no model writes.
    """
    anchor = last_user(messages)
    flags = []
    for i, message in enumerate(messages):
        own = message.get("train")
        if message["role"] != "assistant":
            if own:
                raise Refused("override_not_assistant", f"message {i} ({message['role']}) asks to be trained on")
            flags.append(False)
        elif own is not None:
            flags.append(bool(own))
        else:
            flags.append(
                not (rules.only_after_last_user and i < anchor)
                and not (rules.only_answered_actions and message.get("tool_calls") and not _answered(messages, i))
            )
    return flags


def _answered(messages: Sequence[Mapping[str, Any]], i: int) -> bool:
    return i + 1 < len(messages) and messages[i + 1]["role"] == "tool"
