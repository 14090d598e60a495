"""A judge behind any server that speaks OpenAI's chat completions (vLLM, SGLang, a hosted API).

One judgement is one request. It ends with a verdict, or with `InfrastructureError(JUDGE_FAILED)` that says why: a
failed judgement is never a 0. Retried, with jitter and within the deadline, is only what provably gave no answer: a
connection that was refused, and the statuses 408, 409, 425, 429 and 5xx (`Retry-After` is honoured). A request that
was sent and then lost may have been answered and paid for, so it is not sent again. Redirects are not followed: the
key and the candidate would go to a place that nobody configured.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.rewards.judges.cache import DiskCache
from rufus_plugins.rewards.judges.layout import INSTRUCTIONS, judge_messages
from rufus_plugins.rewards.judges.verdict import protocol_named, read_verdict
from rufus_plugins.types import Score, Termination

_UNANSWERED = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_MAX_TOKENS = 1 << 40
"""A count beyond it is none: a server may write anything. Ours."""
_MAX_BODY = 4 << 20
"""Bytes; ours. A verdict is a few kilobytes."""


@dataclass
class JudgeStats:
    """What this judge has done so far; `as_metrics` is what a run logs."""

    requests: int = 0
    answered: int = 0
    retries: int = 0
    cache_hits: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Reason -> count."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    latency_s: float = 0.0
    """Sum over answered requests, queueing not included."""
    max_latency_s: float = 0.0

    def as_metrics(self) -> dict[str, float]:
        found = {
            f"judge/{name}": float(getattr(self, name))
            for name in ("requests", "answered", "retries", "cache_hits", "prompt_tokens", "completion_tokens", "cost")
        }
        found["judge/latency_s"] = self.latency_s / self.answered if self.answered else 0.0
        found["judge/max_latency_s"] = self.max_latency_s
        return found | {f"judge/failed/{reason}": float(n) for reason, n in self.failures.items()}


class _Unanswered(Exception):
    """The server provably gave no answer: may be tried again."""

    def __init__(self, reason: str, message: str, wait_s: float | None = None):
        super().__init__(message)
        self.reason, self.wait_s = reason, wait_s


class Unusable(Exception):
    """No usable answer, and trying again is not safe or of no use."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


Reader = Callable[[bytes], tuple[Any, dict[str, Any]]]
"""A raw body -> (what is wanted of it, usage). Raises `Unusable` for a body that holds no answer."""


@dataclass
class OpenAICompatibleJudge:
    """Asks a model behind an OpenAI-compatible server for a verdict."""

    base_url: str
    """Up to and with /v1, for example http://127.0.0.1:8000/v1."""
    model: str
    protocol: str = "json_score"
    """How the verdict is asked for and read: see judges/verdict.py."""
    instructions: str = INSTRUCTIONS
    api_key_env: str = ""
    """Name of the environment variable that holds the key; "" sends none."""
    structured_output: str = "auto"
    """auto: ask for the protocol's JSON schema and drop it if the server refuses it; on; off."""
    temperature: float = 0.0
    max_tokens: int = 1024
    concurrency: int = 32
    """Requests in flight, per process. Ours."""
    timeout_s: float = 60.0
    """For one judgement with all its tries; queueing does not count. Ours."""
    connect_timeout_s: float = 5.0
    attempts: int = 4
    """Ours."""
    backoff_s: float = 0.5
    """First pause; doubles, with full jitter. Ours."""
    cache_dir: str = ""
    """Folder of the response cache; "" keeps none."""
    price_per_million: tuple[float, float] = (0.0, 0.0)
    """Price of a million prompt and completion tokens, for the cost counter."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request, for example chat_template_kwargs."""

    def __post_init__(self) -> None:
        self._protocol = protocol_named(self.protocol)
        address = urllib.parse.urlsplit(self.base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"judge base_url {self.base_url!r} is no http(s) address; vLLM's is http://HOST:8000/v1")
        if self.structured_output not in ("auto", "on", "off"):
            raise ConfigError(f"judge structured_output is {self.structured_output!r}; it can be auto, on or off")
        if self.concurrency < 1 or self.attempts < 1 or self.timeout_s <= 0:
            raise ConfigError("judge concurrency and attempts must be at least 1, and timeout_s above 0")
        if self.api_key_env and not os.environ.get(self.api_key_env):
            raise ConfigError(f"judge api_key_env names {self.api_key_env}, which is not set in the environment")
        self.stats = JudgeStats()
        self._cache = DiskCache(self.cache_dir) if self.cache_dir else None
        self._structured = self._protocol.schema is not None and self.structured_output != "off"
        self._loops: dict[Any, tuple[Any, asyncio.Semaphore, dict[str, asyncio.Task[str]]]] = {}

    async def __call__(self, question: str, candidate: str, reference: str | None = None) -> Score:
        messages = judge_messages(question, candidate, reference, self._protocol.ask, self.instructions)
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **self.extra_body,
        }
        key = {"server": self.base_url, "protocol": self.protocol, "body": body}
        if self._cache and (text := self._cache.get(key)) is not None:
            value = read_verdict(self.protocol, text)
            if value is not None:
                self.stats.cache_hits += 1
                return Score(value, {"judge_cached": True, "judge_latency_s": 0.0}, text)
        _, _, flying = self._here()
        name = json.dumps(key, sort_keys=True)
        task = flying.get(name)
        if task is None:  # equal requests at the same time are one request
            task = flying[name] = asyncio.ensure_future(self._answer(body))
            task.add_done_callback(lambda done: (flying.pop(name, None), done.cancelled() or done.exception()))
        started = time.monotonic()
        text = await asyncio.shield(task)
        value = read_verdict(self.protocol, text)
        if value is None:
            self._count("no_verdict")
            raise InfrastructureError(
                f"judge {self.model} at {self.base_url} gave no verdict under {self.protocol!r}: {text[:300]!r}",
                Termination.JUDGE_FAILED,
            )
        if self._cache:
            self._cache.put(key, text)
        return Score(value, {"judge_cached": False, "judge_latency_s": time.monotonic() - started}, text)

    async def complete(self, body: dict[str, Any], read: Reader | None = None) -> Any:
        """One chat completion without a verdict, bounded and tried again as a judgement is: its text, or what `read`
        makes of the raw body."""
        return await self._answer(body, read or completion)

    async def aclose(self) -> None:
        """Closes the connections of this event loop."""
        held = self._loops.pop(asyncio.get_running_loop(), None)
        if held:
            await held[0].aclose()

    def _here(self) -> tuple[Any, asyncio.Semaphore, dict[str, asyncio.Task[str]]]:
        """Client, semaphore and requests in flight of the running loop: none of them may cross loops."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            import httpx

            for old in [other for other in self._loops if other.is_closed()]:
                del self._loops[old]
            limits = httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
            timeout = httpx.Timeout(self.timeout_s, connect=self.connect_timeout_s)
            client = httpx.AsyncClient(limits=limits, timeout=timeout, follow_redirects=False)
            self._loops[loop] = (client, asyncio.Semaphore(self.concurrency), {})
        return self._loops[loop]

    def _count(self, reason: str) -> None:
        self.stats.failures[reason] = self.stats.failures.get(reason, 0) + 1

    async def _answer(self, body: dict[str, Any], read: Reader | None = None) -> Any:
        _, slots, _ = self._here()
        async with slots:
            try:
                async with asyncio.timeout(self.timeout_s):
                    return await self._tries(body, read or completion)
            except TimeoutError:
                reason, message = "deadline", f"no answer within {self.timeout_s:g} s"
            except (Unusable, _Unanswered) as error:
                reason, message = error.reason, str(error)
        self._count(reason)
        raise InfrastructureError(
            f"judge {self.model} at {self.base_url} failed ({reason}): {message}", Termination.JUDGE_FAILED
        )

    async def _tries(self, body: dict[str, Any], read: Reader) -> Any:
        attempt = 1
        while True:
            try:
                return await self._once(body, read)
            except _Unanswered as error:
                if attempt >= self.attempts:
                    raise
                pause = self.backoff_s * 2 ** (attempt - 1) * random.random()
                await asyncio.sleep(pause + (error.wait_s or 0.0))
            self.stats.retries += 1
            attempt += 1

    async def _once(self, body: dict[str, Any], read: Reader) -> Any:
        import httpx

        client, _, _ = self._here()
        structured = self._structured
        if structured:
            schema = {"name": "verdict", "strict": True, "schema": self._protocol.schema}
            body = body | {"response_format": {"type": "json_schema", "json_schema": schema}}
        # a compressed body could unpack to gigabytes
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        # half a surrogate pair, which JSON files may hold, has no UTF-8: the judge reads a question mark
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        if self.api_key_env:
            headers["Authorization"] = f"Bearer {os.environ.get(self.api_key_env, '')}"
        self.stats.requests += 1
        started = time.monotonic()
        try:
            async with client.stream(
                "POST", self.base_url.rstrip("/") + "/chat/completions", content=content, headers=headers
            ) as response:
                raw = await _bounded(response)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _Unanswered("unreachable", f"{type(error).__name__}: {error}") from error
        except httpx.HTTPError as error:
            raise Unusable("connection_lost", f"{type(error).__name__} after the request was sent: {error}") from error
        status = response.status_code
        if status in _UNANSWERED or status >= 500:
            wait_s = _retry_after(response.headers.get("retry-after"))
            raise _Unanswered(f"http_{status}", f"HTTP {status}: {_excerpt(raw)}", wait_s)
        if status in (400, 422) and structured and self.structured_output == "auto" and _about_format(raw):
            self._structured = False
            return await self._once({k: v for k, v in body.items() if k != "response_format"}, read)
        if 300 <= status < 400:
            where = response.headers.get("location", "?")
            raise Unusable("redirect", f"HTTP {status} to {where}: not followed; set base_url to the server itself")
        if status != 200:
            raise Unusable(f"http_{status}", f"HTTP {status}: {_excerpt(raw)}")
        text, usage = read(raw)
        self._book(usage, time.monotonic() - started)
        return text

    def _book(self, usage: dict[str, Any], latency_s: float) -> None:
        stats = self.stats
        counts = [usage.get(k) for k in ("prompt_tokens", "completion_tokens")]
        prompt, completion = (n if isinstance(n, int) and 0 < n <= _MAX_TOKENS else 0 for n in counts)
        stats.answered += 1
        stats.prompt_tokens += prompt
        stats.completion_tokens += completion
        stats.cost += (prompt * self.price_per_million[0] + completion * self.price_per_million[1]) / 1e6
        stats.latency_s += latency_s
        stats.max_latency_s = max(stats.max_latency_s, latency_s)


async def _bounded(response: Any) -> bytes:
    raw = bytearray()
    async for piece in response.aiter_bytes():
        raw += piece
        if len(raw) > _MAX_BODY:
            raise Unusable("huge_body", f"HTTP {response.status_code} with more than {_MAX_BODY} bytes")
    return bytes(raw)


def completion(raw: bytes) -> tuple[str, dict[str, Any]]:
    """Text and usage of a chat completion."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Unusable("bad_json", f"the body is no JSON ({error}): {_excerpt(raw)}") from error
    try:
        choice = data["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise Unusable("bad_shape", f"no choices[0].message.content in {_excerpt(raw)}") from error
    if choice.get("finish_reason") == "length":
        raise Unusable("cut_off", "the judge's answer was cut off: raise max_tokens")
    if not isinstance(text, str):
        raise Unusable("no_text", f"the message holds no text: {_excerpt(raw)}")
    usage = data.get("usage")
    return text, usage if isinstance(usage, dict) else {}


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header (delta or HTTP date); the judgement's own deadline bounds it."""
    if not value:
        return None
    try:
        return max(0.0, float(value)) if float(value) < 1e6 else None
    except ValueError:
        pass
    import email.utils

    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _about_format(raw: bytes) -> bool:
    return any(
        word in raw.lower() for word in (b"response_format", b"json_schema", b"guided", b"structured", b"schema")
    )


def _excerpt(raw: bytes) -> str:
    return repr(raw[:200].decode("utf-8", "replace"))
