"""A model behind any OpenAI-compatible server, for the builders that let a model write or solve.

Deadlines, retries, redirects and body limits are those of `rollouts/chat_server.py`. On top: every answer can be kept
on disk by its whole request, so that a run that was killed asks again only for what it had not got, and `sample` tells
repeated questions apart, there and as the request's seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rewards.final_answer import without_thinking
from rufus_plugins.rewards.judges.cache import DiskCache
from rufus_plugins.rollouts.chat_server import ChatServer
from rufus_plugins.types import Termination


class NoAnswer(InfrastructureError):
    """This question has no answer, and asking again would not help: cut off at `max_tokens`, no text, too long, refused
    (400, 413, 422). All else, such as a server that is down, is an `InfrastructureError` alone and ends the run."""


_PASSING = ("connection_lost", "bad_json", "bad_shape")
"""What a server or a proxy in front of it does while it restarts. A judgement is not asked for again then, since it may
have been made and paid; an answer that is only text may."""
_OWN = ("cut_off", "no_text", "huge_body", "http_400", "http_413", "http_422")

BACKOFF_S = 0.25
"""Before the second try; doubles. Ours."""


@dataclass
class ChatModel(ChatServer):
    """`await model.ask(messages, sample=i)` -> the answer without its thinking."""

    max_tokens: int = 8192
    timeout_s: float = 300.0
    concurrency: int = 16
    cache_dir: str = ""
    """Folder of answers; "" keeps nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens < 1:
            raise ConfigError(f"max-tokens is {self.max_tokens}; at least 1 is needed.")
        self._cache = DiskCache(self.cache_dir) if self.cache_dir else None

    @property
    def stats(self) -> Any:
        return self._client.stats

    async def ask(
        self, messages: Sequence[Mapping[str, str]], sample: int = 0, temperature: float | None = None
    ) -> str:
        """The answer to a conversation. Raises `NoAnswer`, or `InfrastructureError(ENGINE_FAILED)` if there is none."""
        body = {
            "model": self.model,
            "messages": [{k: _plain(v) for k, v in m.items()} for m in messages],
            "temperature": self.temperature if temperature is None else temperature,
            "max_tokens": self.max_tokens,
            "seed": sample,
            **(self.extra_body or {}),
        }
        key = {"server": self.base_url, "body": body}
        text = self._cache.get(key) if self._cache else None
        if text is not None:
            self._client.stats.cache_hits += 1
        else:
            text = await self._answer(body)
            if self._cache:
                self._cache.put(key, _plain(text))
        return _plain((without_thinking(text) or "").strip())

    async def _answer(self, body: dict[str, Any]) -> str:
        tries = 1
        while True:
            try:
                return await self._client.complete(body)
            except InfrastructureError as error:
                if tries < self.attempts and _failed(error, _PASSING):
                    await asyncio.sleep(BACKOFF_S * 2 ** (tries - 1))
                    tries += 1
                    continue
                message = f"the model gave no answer: {error}"
                kind = NoAnswer if _failed(error, _OWN) else InfrastructureError
                raise kind(message, Termination.ENGINE_FAILED) from error

    async def aclose(self) -> None:
        await self._client.aclose()


def _failed(error: InfrastructureError, reasons: Sequence[str]) -> bool:
    return any(f"({reason})" in str(error) for reason in reasons)


def _plain(text: str) -> str:
    """Without half surrogate pairs, which JSON may hold and UTF-8 may not."""
    return text.encode("utf-8", "replace").decode("utf-8")


def chat_model(base_url: str, model: str, **fields: Any) -> ChatModel:
    """Raises `ConfigError` that says what is missing."""
    if not base_url or not model:
        raise ConfigError(
            "a model is needed: --base-url http://HOST:8000/v1 --model NAME (any OpenAI-compatible server)"
        )
    return ChatModel(base_url, model, **fields)
