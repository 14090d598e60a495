"""A model behind an OpenAI-compatible server that an environment talks to (a simulated user, a summariser).

Deadlines, retries, redirects and body limits are those of the judge's client (rewards/judges/openai_compatible.py).
One client per process and config: all episodes share its connections and its limit of requests in flight.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rufus_plugins.errors import ConfigError
from rufus_plugins.fields import REQUIRED, Unfit, config_fields, fitted

Server = TypeVar("Server", bound="ChatServer")


@dataclass
class ChatServer:
    base_url: str
    """Up to and with /v1."""
    model: str
    api_key_env: str = ""
    """Name of the environment variable that holds the key; "" sends none."""
    temperature: float = 0.7
    """Ours, as all below."""
    max_tokens: int = 2048
    timeout_s: float = 120.0
    """For one answer with all its tries."""
    concurrency: int = 32
    attempts: int = 4
    extra_body: dict[str, Any] | None = None
    """Further fields of the request, for example chat_template_kwargs."""

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

    async def say(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The answer without its thinking; empty if it was cut off or holds no text.

        Raises `InfrastructureError` if there is none.
        """
        from rufus_plugins.rewards.final_answer import without_thinking

        body = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **(self.extra_body or {}),
        }
        said = without_thinking(await self._client.complete(body, _text)) or ""
        return said.encode("utf-8", "replace").decode().strip()  # half a surrogate pair is no text


def _text(raw: bytes) -> tuple[str, dict[str, Any]]:
    """What a judge must not be asked for again, a sampled message may."""
    from rufus_plugins.rewards.judges.openai_compatible import Unusable, completion

    try:
        return completion(raw)
    except Unusable as error:
        if error.reason in ("cut_off", "no_text"):
            return "", {}
        raise


def chat_server(kind: type[Server], config: Mapping[str, Any] | None, where: str) -> Server | None:
    """The shared server of this config, None for null. `where`: its key, for messages. Raises `ConfigError`."""
    if config is None:
        return None
    try:
        return _built(kind, json.dumps(dict(config), sort_keys=True), where)
    except TypeError as error:
        raise ConfigError(f"{where} holds what YAML cannot: {error}") from None


@functools.lru_cache(maxsize=32)
def _built(kind: type[Server], config: str, where: str) -> Server:
    given, known = json.loads(config), config_fields(kind)
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ConfigError(f"There is no {where}.{unknown[0]}. Fields: {', '.join(known)}.")
    if missing := [key for key, default in known.items() if default is REQUIRED and not given.get(key)]:
        raise ConfigError(f"{where} needs {missing[0]}: {{base_url: http://HOST:8000/v1, model: NAME}}")
    try:
        return kind(**fitted(kind, given))
    except Unfit as error:
        raise ConfigError(f"{where}.{error}") from None
