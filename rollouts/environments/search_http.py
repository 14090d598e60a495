"""JSON over HTTP for search backends: bounded in time, size and number of requests, tried again under the retry rule.

A search is idempotent, so `rollouts/retry.py` may send it again after anything but a refusal (4xx other than 408, 425
and 429). Redirects are not followed: the key and the query would go to a place that nobody configured.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.parse
from dataclasses import KW_ONLY, dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.rollouts.environments.search_backends import BackendFailed, Document
from rufus_plugins.rollouts.retry import NeverStarted, OutcomeUnknown, exchange

_AGAIN = {408, 425, 429}
_LONGEST_WAIT_S = 30.0
"""Of a Retry-After. Ours."""


class _Refused(DataError):
    """Would be refused again; `exchange` passes it on."""


class JsonServer:
    """One search service. Raises `ConfigError` for an address that is none."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        deadline_s: float,
        attempts: int,
        concurrency: int,
        max_bytes: int,
        key_env: str = "",
    ):
        address = urllib.parse.urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"the search backend's url={url!r} is no http(s) address")
        if min(timeout_s, deadline_s, attempts, concurrency, max_bytes) <= 0:
            raise ConfigError(f"search backend {url}: timeouts, attempts, concurrency and max_bytes are positive")
        if key_env and not os.environ.get(key_env):
            raise ConfigError(f"search backend {url}: api_key_env names {key_env}, which is not set in the environment")
        self.url, self.timeout_s, self.deadline_s = url, timeout_s, deadline_s
        self.attempts, self.concurrency, self.max_bytes = attempts, concurrency, max_bytes
        self.retried = 0
        self._loops: dict[Any, tuple[Any, asyncio.Semaphore]] = {}

    async def ask(self, method: str, **request: Any) -> Any:
        """The answer's JSON. Waiting for a free connection does not count into the deadline.

        Raises `BackendFailed` when the tries or the time are spent.
        """
        client, slots = self._here()
        async with slots:
            try:
                async with asyncio.timeout(self.deadline_s):
                    return await exchange(
                        lambda: self._once(client, method, request),
                        self.url,
                        repeatable=True,
                        tries=self.attempts,
                        deadline_s=self.deadline_s,
                        counted=self._count,
                    )
            except TimeoutError:
                raise BackendFailed(f"{self.url}: no answer within {self.deadline_s:g} s") from None
            except (NeverStarted, OutcomeUnknown, _Refused) as error:
                raise BackendFailed(f"{error}") from error

    def _count(self, reason: str) -> None:
        self.retried += 1

    def _here(self) -> tuple[Any, asyncio.Semaphore]:
        """Client and semaphore of the running loop: neither may cross loops."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            import httpx

            for old in [other for other in self._loops if other.is_closed()]:
                del self._loops[old]
            limits = httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
            client = httpx.AsyncClient(limits=limits, timeout=self.timeout_s, follow_redirects=False)
            self._loops[loop] = (client, asyncio.Semaphore(self.concurrency))
        return self._loops[loop]

    async def _once(self, client: Any, method: str, request: dict[str, Any]) -> Any:
        # a compressed body could unpack to gigabytes
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", **request.get("headers", {})}
        raw, status, wait_s = bytearray(), 0, 0.0
        async with asyncio.timeout(self.timeout_s):
            async with client.stream(method, self.url, **{**request, "headers": headers}) as response:
                status, wait_s = response.status_code, _seconds(response.headers.get("retry-after"))
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise OutcomeUnknown("the answer is compressed, which was not asked for")
                async for piece in response.aiter_raw():
                    raw += piece
                    if len(raw) > self.max_bytes:
                        raise OutcomeUnknown(f"HTTP {status} with more than {self.max_bytes} bytes")
        if status in _AGAIN or status >= 500:
            await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
            raise OutcomeUnknown(f"HTTP {status}: {_excerpt(raw)}")
        if status != 200:
            raise _Refused(f"{self.url}: HTTP {status}: {_excerpt(raw)}")
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise OutcomeUnknown(f"the answer is no JSON ({error}): {_excerpt(raw)}") from error


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0


def _excerpt(raw: bytes) -> str:
    return repr(bytes(raw[:200]).decode("utf-8", "replace"))


@dataclass
class JsonBackend:
    """What the backends behind a `JsonServer` share: their limits, and results that are whole."""

    url: str
    _: KW_ONLY
    timeout_s: float = 20.0
    """Of one request. Ours, as all below."""
    deadline_s: float = 60.0
    """Of one search with all its tries."""
    attempts: int = 4
    concurrency: int = 16
    """Requests in flight, per process."""
    max_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        self._server = JsonServer(
            self.url,
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            attempts=self.attempts,
            concurrency=self.concurrency,
            max_bytes=self.max_bytes,
            key_env=self._key_env,
        )

    @property
    def _key_env(self) -> str:
        """Environment variable of the key; "" where there is none."""
        return ""

    async def document(self, ref: str) -> Document | None:
        return None  # these protocols know no such request
