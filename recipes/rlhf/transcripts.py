"""Preference pairs in the shapes of public sets, to (prompt, chosen, rejected).

- HH-RLHF: `chosen` and `rejected` are whole transcripts, turns opened by a blank line and `Human:` or `Assistant:`;
- UltraFeedback and its like: `prompt` (or nothing) and `chosen`, `rejected` as lists of messages;
- plain: `prompt` as text or messages, `chosen` and `rejected` as texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.recipes.data.records import Refused

_TURN = re.compile(r"\n\n(Human|Assistant):", re.DOTALL)
_ROLES = {"human": "user", "user": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}

Messages = list[dict[str, str]]
_NO_PROMPT = "chosen and rejected are texts without turns, so the record needs a `prompt`, `question` or `instruction`"


def pair(record: Mapping[str, Any]) -> tuple[Messages, str, str]:
    """(prompt, chosen answer, rejected answer). Raises `Refused`."""
    chosen, rejected = record.get("chosen"), record.get("rejected")
    for name, value in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(value, (str, Sequence)) or not len(value):
            raise Refused("no_pair", f"{name} is {value!r:.80}")
    if isinstance(chosen, str) and isinstance(rejected, str):
        if _TURN.search(chosen) or _TURN.search(rejected):
            return _transcripts(transcript(chosen), transcript(rejected))
        prompt = record.get("prompt") or record.get("question") or record.get("instruction")
        messages = messages_of(prompt) if not isinstance(prompt, str) else [_said("user", prompt)]
        return _checked(messages, chosen, rejected)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise Refused("mixed_pair", "one of chosen and rejected is a text, the other a list of messages")
    return _transcripts(messages_of(chosen), messages_of(rejected), record.get("prompt"))


def transcript(text: str) -> Messages:
    """The turns of one HH-RLHF transcript. Raises `Refused` for text before the first turn, or no turns at all."""
    parts = _TURN.split("\n\n" + text.lstrip("\n"))
    if len(parts) < 3:
        raise Refused("no_turns", "the transcript has no `Human:` turn")
    if parts[0].strip():
        raise Refused("no_turns", f"the transcript begins with {parts[0].strip()[:60]!r}, not with `Human:`")
    return [_said(role.lower(), said) for role, said in zip(parts[1::2], parts[2::2], strict=True)]


def messages_of(value: Any) -> Messages:
    if value is None:
        raise Refused("no_prompt", _NO_PROMPT)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(m, Mapping) for m in value):
        raise Refused("no_prompt", f"the prompt is {value!r:.80}")
    found = []
    for message in value:
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if not isinstance(content, str):
            raise Refused("no_text", f"a message of {role!r} holds {type(content).__name__}, not text")
        found.append(_said(str(role), content))
    return found


def _said(role: str, content: str) -> dict[str, str]:
    if role.lower() not in _ROLES:
        raise Refused("unknown_role", f"a message has the role {role!r}")
    return {"role": _ROLES[role.lower()], "content": content.strip()}


def _transcripts(chosen: Messages, rejected: Messages, prompt: Any = None) -> tuple[Messages, str, str]:
    """Splits two conversations into what they share and how they end."""
    if isinstance(prompt, Sequence) and prompt and not isinstance(prompt, str):
        before = messages_of(prompt)
        if chosen[: len(before)] != before:
            chosen, rejected = before + chosen, before + rejected
    elif isinstance(prompt, str) and prompt.strip() and chosen and chosen[0]["role"] == "assistant":
        chosen, rejected = [_said("user", prompt), *chosen], [_said("user", prompt), *rejected]
    if not chosen or not rejected or chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        raise Refused("no_answer", "a transcript does not end with the assistant")
    if chosen[:-1] != rejected[:-1]:
        raise Refused("prompts_differ", "chosen and rejected do not answer the same conversation")
    return _checked(chosen[:-1], chosen[-1]["content"], rejected[-1]["content"])


def _checked(prompt: Messages, chosen: str, rejected: str) -> tuple[Messages, str, str]:
    turns = [m for m in prompt if m["role"] != "system"]
    if not turns or turns[-1]["role"] != "user":
        raise Refused("no_question", "the conversation before the answer does not end with the user")
    if any(not m["content"] for m in turns):
        raise Refused("empty_turn", "a turn of the conversation is empty")
    if turns[0]["role"] != "user" or any(a["role"] == b["role"] for a, b in zip(turns, turns[1:], strict=False)):
        raise Refused("bad_order", "user and assistant do not take turns, the user first")
    if not chosen.strip() or not rejected.strip():
        raise Refused("empty_answer", "chosen or rejected is empty")
    if chosen.strip() == rejected.strip():
        raise Refused("same_answers", "chosen and rejected are the same")
    return prompt, chosen.strip(), rejected.strip()
