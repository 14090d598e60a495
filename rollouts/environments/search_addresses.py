"""Which addresses of the web a page may be fetched from (server-side request forgery).

A URL names a host by text; what counts is where the connection goes. So the host is resolved once, every address it
resolves to is checked, and the connection is made to a checked address and no other: a name that resolves differently
the next time (DNS rebinding) gains nothing. Each redirect starts over. Refused unless `allowed` says otherwise: other
schemes than http and https, user names in URLs, unusual ports, every address that is not public (loopback, private,
link-local and with it the clouds' metadata services, multicast, reserved), also where it hides in an IPv6 form
(mapped, compatible, 6to4, Teredo, NAT64), and IP addresses in odd notation (decimal, octal, hexadecimal, short).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import urllib.parse
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rufus_plugins.errors import ConfigError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_COMPATIBLE = ipaddress.ip_network("::/96")
_NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's platform service: a public number that never leaves the machine
        "192.0.0.0/24",  # IETF protocol assignments, Oracle's metadata among them; some Pythons call parts of it global
        "192.88.99.0/24",  # 6to4 relays
    )
)
_LOCAL_NAMES = ("localhost", "local", "internal", "lan", "home.arpa", "localdomain")
_LONGEST = 4096


class Refused(Exception):
    """This address is not opened; `str()` is for the model."""


@dataclass(frozen=True)
class Target:
    """A URL that may be asked for, in the parts that the connection is made of."""

    scheme: str
    host: str
    """ASCII (IDNA), lower case; an IPv6 address without brackets."""
    port: int
    path: str
    """With the query, percent-encoded."""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == {"http": 80, "https": 443}[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


@dataclass(frozen=True)
class _Exception:
    """One entry of `allowed`: a network or a host name, and a port or all of them."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None
    host: str
    port: int | None


class AddressRules:
    """`allowed`: `HOST`, `ADDRESS` or `NETWORK/BITS`, each perhaps with `:PORT`, that may be opened though not public.

    Raises `ConfigError` for an entry that is none of these.
    """

    def __init__(self, ports: Collection[int] = (80, 443), allowed: Iterable[str] = ()):
        self.ports = frozenset(ports)
        self._exceptions = [_exception(entry) for entry in allowed]

    def target(self, text: str) -> Target:
        """Reads a URL. Raises `Refused` for one that is not opened whatever it resolves to."""
        url = text.strip()
        if len(url) > _LONGEST:
            raise Refused("the address is too long")
        if not url or re.search(r"[\x00-\x20\x7f-\xa0\\<>\"`{}|^\u2028\u2029\ud800-\udfff]", url):
            raise Refused("this is no web address")
        if re.match(r"^[\w-]+(\.[\w-]+)+(:\d+)?([/?#]|$)", url):
            url = f"https://{url}"
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError:
            raise Refused("this is no web address") from None
        if parts.scheme not in ("http", "https"):
            raise Refused("only http and https addresses can be opened")
        if "@" in parts.netloc:
            raise Refused("addresses with a user name are not opened")
        host = _ascii_host(parts.hostname or "")
        port = port if port is not None else 443 if parts.scheme == "https" else 80
        path = urllib.parse.quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._[]")
        query = urllib.parse.quote(parts.query, safe="/%:@!$&'()*+,;=~-._[]?")
        target = Target(parts.scheme, host, port, f"{path}?{query}" if query else path)
        if self._by_name(host, port):
            return target
        address = _literal(host)
        if address is None and (host in _LOCAL_NAMES or host.endswith(tuple(f".{name}" for name in _LOCAL_NAMES))):
            raise Refused("this is no public address")
        if address is not None:
            self.check(address, port)
        elif port not in self.ports and not any(e.network and e.port in (None, port) for e in self._exceptions):
            raise Refused(f"port {port} is not opened")
        return target

    def check(self, address: _Address, port: int) -> None:
        """Raises `Refused` unless a connection may go there."""
        if any(_matches(exception, address, port) for exception in self._exceptions):
            return
        if not public(address):
            raise Refused("this is no public address")
        if port not in self.ports:
            raise Refused(f"port {port} is not opened")

    async def resolved(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of them checked. Raises `Refused`, or `OSError` if there are none.

        One address that is not public condemns the name: the others may be bait.
        """
        literal = _literal(host)
        found = [str(literal)] if literal is not None else await lookup(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        if not self._by_name(host, port):
            for address in found:
                self.check(ipaddress.ip_address(address.partition("%")[0]), port)
        return found

    def _by_name(self, host: str, port: int) -> bool:
        return any(e.host == host and e.port in (None, port) for e in self._exceptions if e.network is None)


async def lookup(host: str, port: int) -> list[str]:
    """All addresses of a name, in the resolver's order."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def public(address: _Address) -> bool:
    """Whether the address, and each that it carries inside, belongs to the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        inside: Sequence[_Address | None] = (address.ipv4_mapped, address.sixtofour, *(address.teredo or ()))
        carried = [item for item in inside if item is not None]
        if any(address in network for network in (*_NAT64, _COMPATIBLE)):
            carried.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if carried:
            return all(public(item) for item in carried)
        if address.is_site_local:
            return False
    if address.is_multicast or address.is_reserved or any(address in network for network in _NEVER):
        return False
    return address.is_global


def _literal(host: str) -> _Address | None:
    """The IP address that the host is; None for a name. Raises `Refused` for one in odd notation."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    last = host.rpartition(".")[2]
    if ":" in host or re.fullmatch(r"\d+|0x[0-9a-f]*", last):  # what resolvers and browsers read as a number
        raise Refused("IP addresses are written as four decimal numbers")
    return None


def _ascii_host(host: str) -> str:
    """The host as it is looked up. Full-width digits and dots, soft hyphens and the like are mapped here."""
    import idna

    host = host.rstrip(".")
    if not host or "%" in host:
        raise Refused("this is no web address")
    if ":" in host:
        return host.lower()
    if host.isascii() and re.fullmatch(r"[a-z0-9._-]+", host, re.I):  # also names with underscores, which IDNA refuses
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode().rstrip(".").lower()
    except (idna.IDNAError, UnicodeError):
        raise Refused("this is no web address") from None


def _exception(entry: str) -> _Exception:
    text, port = entry.strip().lower(), None
    if found := re.fullmatch(r"(\[[^\]]+\]|[^:]+):(\d+)", text):
        text, port = found.group(1), int(found.group(2))
    text = text.strip("[]")
    try:
        return _Exception(ipaddress.ip_network(text, strict=False), "", port)
    except ValueError:
        pass
    if not re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", text) or re.fullmatch(r"[\d.]+", text):
        raise ConfigError(
            f"rufus.environment.allowed_addresses holds {entry!r}; write a host, an address or a network (10.0.0.0/8), "
            "perhaps with :PORT"
        )
    return _Exception(None, text, port)


def _matches(exception: _Exception, address: _Address, port: int) -> bool:
    network = exception.network
    return (
        network is not None
        and exception.port in (None, port)
        and address.version == network.version
        and address in network
    )
