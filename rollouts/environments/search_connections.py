"""The connections of `search_fetch.py`, by httpcore: to checked addresses, and to nothing else."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpcore

from rufus_plugins.rollouts.environments.search_addresses import AddressRules, Refused, Target

BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError)


@asynccontextmanager
async def request(
    target: Target, headers: Sequence[tuple[bytes, bytes]], rules: AddressRules, timeout_s: float
) -> AsyncIterator[httpcore.Response]:
    """One GET over a connection of its own."""
    url = httpcore.URL(
        scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
    )
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
    backend = CheckedConnections(rules)
    async with httpcore.AsyncConnectionPool(ssl_context=_tls(), network_backend=backend, max_connections=1) as pool:
        async with pool.stream("GET", url, headers=list(headers), extensions={"timeout": timeouts}) as response:
            yield response


class CheckedConnections(httpcore.AsyncNetworkBackend):
    """Connects to addresses that `AddressRules` let through; TLS still checks the certificate by the host's name."""

    def __init__(self, rules: AddressRules):
        self.rules, self.stock = rules, httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception = OSError(f"{host} has no address")
        for address in await self.rules.resolved(host, port):
            try:
                return await self.stock.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout, OSError) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, path: str, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise Refused("only http and https addresses can be opened")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@functools.cache
def _tls() -> Any:
    return httpcore.default_ssl_context()
