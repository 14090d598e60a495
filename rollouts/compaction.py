"""Context compaction: a nearly full context ends as a segment, a summary carries over, and a new segment starts.

Who writes the summary (`rufus.environment.compaction.by`):

- `policy`: the model itself, as its last turn of the old segment. Those tokens are trained with the rollout's
  advantage, so it learns to write carry-overs that lead to reward.
- `openai_compatible`: a model behind an OpenAI-compatible server. It gets the conversation as text.
- `rule`: no model; the newest messages, each cut to its head and tail.

The results that the model has not read yet are carried over verbatim (cut where they are too long). The new segment's
prompt is the episode's opening with the carry-over in its last user message, tokenised once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.fields import Unfit, fitted
from rufus_plugins.rollouts.tools import cut
from rufus_plugins.rollouts.turns import UNTRUSTED_FROM
from rufus_plugins.types import Message, Termination

BY = ("policy", "openai_compatible", "rule")

INSTRUCTION = (
    "Your context is nearly full and will be replaced by what you write now. Do not call a tool. Write down, for "
    "yourself: what the task asks for, what you have done and found so far (with exact names, paths and numbers), "
    "what is still open, and what you were about to do next."
)
"""Ours."""
HEADER = "\n\nYou have been working on this already. Your notes so far:\n"
PENDING = "\n\nResults of your last calls:\n"


@dataclass(frozen=True)
class Compaction:
    by: str = "policy"
    at: float = 0.8
    """Share of the segment's room, what its prompt leaves, at which it is compacted. Ours."""
    max_tokens: int = 1024
    """Of the summary. Ours."""
    keep_chars: int = 8000
    """Characters of unread results that are carried over, and of the whole summary by rule. Ours."""
    instruction: str = INSTRUCTION
    base_url: str = ""
    """For openai_compatible: up to and with /v1."""
    model: str = ""
    api_key_env: str = ""
    """Name of the environment variable that holds the key; "" sends none."""
    timeout_s: float = 300.0
    """For one summary by a server, with all its tries. Ours."""

    def __post_init__(self) -> None:
        where = "rufus.environment.compaction"
        if self.by not in BY:
            raise ConfigError(f"{where}.by={self.by!r}: one of {', '.join(BY)}")
        if not 0 < self.at < 1:
            raise ConfigError(f"{where}.at={self.at}: a share of the context, between 0 and 1")
        if self.max_tokens < 1 or self.keep_chars < 1 or self.timeout_s <= 0:
            raise ConfigError(f"{where}: max_tokens, keep_chars and timeout_s are positive")
        if self.by == "openai_compatible":
            address = urllib.parse.urlsplit(self.base_url)
            if address.scheme not in ("http", "https") or not address.hostname or not self.model:
                raise ConfigError(f"{where}: openai_compatible needs base_url (http://HOST:8000/v1) and model")
            if self.api_key_env and not os.environ.get(self.api_key_env):
                raise ConfigError(f"{where}.api_key_env names {self.api_key_env}, which is not set in the environment")


def compaction(config: Mapping[str, Any] | None) -> Compaction | None:
    """From config, None for null. Raises `ConfigError`."""
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise ConfigError(f"rufus.environment.compaction={config!r}: a mapping, for example {{by: policy}}")
    known = [f.name for f in dataclasses.fields(Compaction)]
    unknown = [key for key in config if key not in known]
    if unknown:
        raise ConfigError(f"There is no rufus.environment.compaction.{unknown[0]}. Fields: {', '.join(known)}.")
    try:
        return Compaction(**fitted(Compaction, config))
    except Unfit as error:
        raise ConfigError(f"rufus.environment.compaction.{error}") from None


def as_text(message: Message) -> str:
    """One message as a reader sees it: role, content, calls."""
    content = message.get("content")
    if not isinstance(content, str):
        content = "".join(p.get("text") or "" for p in content or () if isinstance(p, Mapping))
    calls = "".join(
        f"\n[call {call['function']['name']}: {call['function']['arguments']}]"
        for call in message.get("tool_calls") or ()
    )
    return f"[{message.get('role')}] {content}{calls}"


def rule_summary(messages: Sequence[Message], keep_chars: int) -> str:
    """The newest messages first in line for the room, oldest first in the text; each may take a quarter of it."""
    kept: list[str] = []
    left = keep_chars
    for message in reversed(messages):
        text = cut(as_text(message), max(keep_chars // 4, 1))
        if len(text) > left:
            break
        kept.append(text)
        left -= len(text)
    dropped = len(messages) - len(kept)
    note = [f"[{dropped} earlier messages left out]"] if dropped else []
    return "\n".join(note + kept[::-1])


async def server_summary(rules: Compaction, opening: Sequence[Message], messages: Sequence[Message]) -> str:
    """Asks the server. Raises `InfrastructureError(ENGINE_FAILED)` when there is no summary before the deadline."""
    import httpx

    conversation = "\n".join(as_text(m) for m in (*opening, *messages))
    body = {
        "model": rules.model,
        "messages": [{"role": "user", "content": f"{conversation}\n\n---\n{rules.instruction}"}],
        "max_tokens": rules.max_tokens,
    }
    key = os.environ.get(rules.api_key_env, "") if rules.api_key_env else ""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    why = "no try ended"
    try:
        async with asyncio.timeout(rules.timeout_s):
            async with httpx.AsyncClient(timeout=httpx.Timeout(rules.timeout_s, connect=5.0)) as client:
                pause = 0.5
                while True:
                    try:
                        answer = await client.post(
                            rules.base_url.rstrip("/") + "/chat/completions", json=body, headers=headers
                        )
                    except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # never started: safe to try again
                        why = f"{type(error).__name__}: {error}"
                    else:
                        if answer.status_code == 200:
                            return _completion(answer.json())
                        why = f"HTTP {answer.status_code}: {answer.text[:200]!r}"
                        if answer.status_code not in (408, 425, 429) and answer.status_code < 500:
                            break
                    await asyncio.sleep(pause * random.random())
                    pause = min(pause * 2, 10.0)
    except TimeoutError:
        why = f"no summary within {rules.timeout_s:g} s; last: {why}"
    except (httpx.HTTPError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
    raise InfrastructureError(
        f"the summariser {rules.model} at {rules.base_url} failed: {why}", Termination.ENGINE_FAILED
    )


def _completion(data: Any) -> str:
    try:
        text = data["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"no choices[0].message.content in {str(data)[:200]!r}") from None
    if not isinstance(text, str) or not text.strip():
        raise ValueError("the summary is empty")
    return text.strip()


def carried(
    opening: Sequence[Message], summary: str, pending: Sequence[Message], keep_chars: int
) -> list[dict[str, Any]]:
    """The opening of the next segment: the carry-over stands in the last user message, its special tokens as text."""
    unread = "\n".join(as_text(message) for message in pending)
    carry = HEADER + summary + (PENDING + cut(unread, keep_chars) if unread else "")
    messages = [dict(message) for message in opening]
    for message in reversed(messages):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            message[UNTRUSTED_FROM] = len(message["content"])
            message["content"] += carry
            return messages
    return [*messages, {"role": "user", "content": carry.lstrip(), UNTRUSTED_FROM: 0}]
