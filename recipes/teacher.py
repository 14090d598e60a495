"""A model behind any OpenAI-compatible server, for the builders that let a model write or solve.

Deadlines, retries, redirects and body limits are those of the judge's client (rewards/judges/openai_compatible.py).
Every answer can be kept on disk by its whole request, so that a run that was killed asks again only for what it had not
got; `sample` tells repeated questions apart, there and as the request's seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rewards.final_answer import without_thinking
from rufus_plugins.rewards.judges.cache import DiskCache
from rufus_plugins.types import Termination


class CutOff(InfrastructureError):
    """The answer hit `max_tokens`."""


@dataclass
class ChatModel:
    """`await model.say(messages)` -> the answer without its thinking."""

    base_url: str
    """Up to and with /v1."""
    model: str
    api_key_env: str = ""
    temperature: float = 0.7
    """Ours."""
    max_tokens: int = 8192
    """Ours."""
    timeout_s: float = 300.0
    """For one answer with all its tries. Ours."""
    concurrency: int = 16
    attempts: int = 4
    cache_dir: str = ""
    """"" keeps nothing."""
    extra_body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from rufus_plugins.rewards.judges.openai_compatible import OpenAICompatibleJudge

        self._client = OpenAICompatibleJudge(
            self.base_url,
            self.model,
            api_key_env=self.api_key_env,
            structured_output="off",
            concurrency=self.concurrency,
            timeout_s=self.timeout_s,
            attempts=self.attempts,
        )
        self._cache = DiskCache(self.cache_dir) if self.cache_dir else None

    @property
    def stats(self) -> Any:
        return self._client.stats

    async def say(
        self, messages: Sequence[Mapping[str, str]], sample: int = 0, temperature: float | None = None
    ) -> str:
        """The answer to a conversation. Raises `CutOff`, or `InfrastructureError(ENGINE_FAILED)` if there is none."""
        body = {
            "model": self.model,
            "messages": [dict(m) for m in messages],
            "temperature": self.temperature if temperature is None else temperature,
            "max_tokens": self.max_tokens,
            "seed": sample,
            **self.extra_body,
        }
        key = {"server": self.base_url, "body": body}
        text = self._cache.get(key) if self._cache else None
        if text is not None:
            self._client.stats.cache_hits += 1
        else:
            try:
                text = await self._client.complete(body)
            except InfrastructureError as error:
                kind = CutOff if "(cut_off)" in str(error) else InfrastructureError
                raise kind(f"model: {error}", Termination.ENGINE_FAILED) from error
            if self._cache:
                self._cache.put(key, text)
        return (without_thinking(text) or "").strip()

    async def aclose(self) -> None:
        await self._client.aclose()


def chat_model(base_url: str, model: str, **fields: Any) -> ChatModel:
    """Raises `ConfigError` that says what is missing."""
    if not base_url or not model:
        raise ConfigError(
            "a model is needed: --base-url http://HOST:8000/v1 --model NAME (any OpenAI-compatible server)"
        )
    return ChatModel(base_url, model, **fields)
