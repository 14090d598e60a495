"""Fetches one page of the web, bounded in time, bytes, unpacked bytes and redirects, from checked addresses only.

No cookies, no proxies, nothing of the machine's environment goes into the request.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.parse
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from rufus_plugins.rollouts.environments.search_addresses import AddressRules, Refused, Target

_REDIRECTS = {301, 302, 303, 307, 308}
Blocked = Callable[[str], bool]


class PageFailed(Exception):
    """The page cannot be had; `str()` is for the model."""


@dataclass(frozen=True)
class FetchRules:
    addresses: AddressRules = field(default_factory=AddressRules)
    timeout_s: float = 30.0
    """For the whole page, redirects included."""
    max_bytes: int = 5 << 20
    """As sent and as unpacked; what is longer is cut there."""
    max_redirects: int = 5
    user_agent: str = "Mozilla/5.0 (compatible; rufus-search/1.0)"


@dataclass(frozen=True)
class Fetched:
    url: str
    """Where the page was in the end."""
    content_type: str
    """Without parameters, lower case; "" if the server gave none."""
    charset: str
    body: bytes
    cut: bool
    """Whether there was more than `max_bytes`."""


async def fetch(url: str, rules: FetchRules, blocked: Blocked) -> Fetched:
    """The page behind `url`. Raises `Refused` (address, or blocked, also behind a redirect) or `PageFailed`."""
    try:
        async with asyncio.timeout(rules.timeout_s):
            for _ in range(rules.max_redirects + 1):
                target = rules.addresses.target(url)
                if blocked(target.url):
                    raise Refused("this page is not available in this task")
                answer = await _get(target, rules)
                if isinstance(answer, Fetched):
                    return answer
                url = urllib.parse.urljoin(target.url, answer)
            raise PageFailed(f"more than {rules.max_redirects} redirects")
    except TimeoutError:
        raise PageFailed(f"the page did not arrive within {rules.timeout_s:g} s") from None
    except ValueError:  # a Location that urljoin cannot read
        raise PageFailed("the page redirects to something that is no address") from None


async def _get(target: Target, rules: FetchRules) -> Fetched | str:
    """The page, or where it redirects to."""
    from rufus_plugins.rollouts.environments.search_connections import BROKEN, request

    try:
        async with request(target, _headers(rules), rules.addresses, rules.timeout_s) as response:
            said = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            if response.status in _REDIRECTS and said.get("location"):
                return said["location"].encode("latin-1").decode("utf-8", "replace")
            if response.status != 200:
                raise PageFailed(f"the server answered HTTP {response.status}")
            content_type, _, parameters = said.get("content-type", "").partition(";")
            unpack = Unpacking(said.get("content-encoding", ""), rules.max_bytes)
            sent = 0
            async for piece in response.aiter_stream():
                sent += len(piece)
                unpack.feed(piece)
                if unpack.full or sent >= rules.max_bytes:
                    break
            cut = unpack.full or sent >= rules.max_bytes
            return Fetched(target.url, content_type.strip().lower(), _charset(parameters), bytes(unpack.body), cut)
    except socket.gaierror:
        raise PageFailed("there is no such host") from None
    except TimeoutError:
        raise
    except BROKEN as error:
        raise PageFailed(f"the connection failed ({type(error).__name__})") from None


def _headers(rules: FetchRules) -> list[tuple[bytes, bytes]]:
    return [
        (b"User-Agent", rules.user_agent.encode("latin-1", "replace")),
        (b"Accept", b"text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5"),
        (b"Accept-Language", b"en;q=0.9,*;q=0.5"),
        (b"Accept-Encoding", b"gzip, deflate"),
        (b"Connection", b"close"),
    ]


def _charset(parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'").lower()[:40]
    return ""


class Unpacking:
    """gzip and deflate, unpacked piece by piece up to `limit` bytes: a bomb costs no more than a page."""

    def __init__(self, encoding: str, limit: int):
        self.body, self.limit, self.full = bytearray(), limit, False
        names = [name for name in encoding.lower().replace(" ", "").split(",") if name not in ("", "identity")]
        if names not in ([], ["gzip"], ["x-gzip"], ["deflate"]):
            raise PageFailed(f"the page is packed as {encoding[:40]!r}, which was not asked for")
        self._unpack = zlib.decompressobj(47) if names else None  # 47: gzip or zlib, by its header
        self._first = names == ["deflate"]

    def feed(self, piece: bytes) -> None:
        room = self.limit - len(self.body)
        if self._unpack is None:
            self.body += piece[:room]
        else:
            try:
                out = self._inflate(piece, room)
            except zlib.error:
                raise PageFailed("the page is packed in a way that cannot be read") from None
            self.body += out
        self.full = self.full or len(self.body) >= self.limit

    def _inflate(self, piece: bytes, room: int) -> bytes:
        if self._unpack.eof or room <= 0:
            return b""
        try:
            return self._unpack.decompress(piece, room)
        except zlib.error:
            if not self._first or self.body:
                raise
            self._unpack = zlib.decompressobj(-15)  # some servers send deflate without its header
            return self._unpack.decompress(piece, room)
        finally:
            self._first = False
