"""Server-side request forgery: none of these ways reaches a real server on the loopback address."""

import asyncio
import ipaddress
import sys
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.rollouts.environments import search_addresses
from rufus_plugins.rollouts.environments.search_addresses import AddressRules, Refused, public
from rufus_plugins.rollouts.environments.search_connections import CheckedConnections
from rufus_plugins.rollouts.environments.search_fetch import FetchRules, PageFailed, fetch

sys.path.insert(0, str(Path(__file__).parent))
from search_servers import Server, page, redirect  # noqa: E402


@pytest.fixture
def secret():
    """A server that only this machine may reach."""
    with Server({"/": page("the secret"), "/latest/meta-data": page("the secret")}) as server:
        yield server


def get(url, port=None, allowed=(), blocked=lambda url: False, **rules):
    addresses = AddressRules([80, 443, *([port] if port else [])], allowed)  # the port alone must not be what helps
    return asyncio.run(fetch(url, FetchRules(addresses, timeout_s=5, **rules), blocked))


def names(monkeypatch, **answers):
    """A resolver that knows these hosts; a list of lists is answered one after the other."""
    asked = []

    async def lookup(host, port):
        asked.append(host)
        found = answers[host.replace(".", "_")]
        return found.pop(0) if isinstance(found[0], list) else list(found)

    monkeypatch.setattr(search_addresses, "lookup", lookup)
    return asked


LITERAL = [
    "http://127.0.0.1:{port}/",
    "http://127.0.0.2:{port}/",
    "http://127.1:{port}/",
    "http://127.0.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0x7f.0.0.1:{port}/",
    "http://017700000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://0:{port}/",
    "http://0.0.0.0:{port}/",
    "http://[::1]:{port}/",
    "http://[::]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[::127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/",
    "http://[64:ff9b:1::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]:{port}/",
    "http://[fe80::1]:{port}/",
    "http://[fe80::1%25lo]:{port}/",
    "http://[fec0::1]:{port}/",
    "http://[fd00:ec2::254]:{port}/latest/meta-data",
    "http://localhost:{port}/",
    "http://LOCALHOST.:{port}/",
    "http://a.localhost:{port}/",
    "http://metadata.google.internal:{port}/latest/meta-data",
    "http://127.0.0.1.:{port}/",
    "http://１２７.０.０.１:{port}/",
    "http://127。0。0。1:{port}/",
    "http://①②⑦.⓪.⓪.①:{port}/",
    "http://user:password@127.0.0.1:{port}/",
    "http://example.com@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@example.com/",
    "http://127.0.0.1:{port}#@example.com/",
    "http://169.254.169.254:{port}/latest/meta-data",
    "http://168.63.129.16:{port}/",
    "http://100.100.100.200:{port}/latest/meta-data",
    "http://10.0.0.1:{port}/",
    "http://172.16.0.1:{port}/",
    "http://192.168.0.1:{port}/",
    "http://224.0.0.1:{port}/",
    "http://255.255.255.255:{port}/",
    "//127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "127.0.0.1:{port}",
    "http://127.0.0.1:{port}\r\nHost: example.com/",
    "http://127.0.0.1:99999/",
    "http://",
    "file:///etc/passwd",
    "file://127.0.0.1:{port}/",
    "ftp://127.0.0.1:{port}/",
    "gopher://127.0.0.1:{port}/_GET",
    "dict://127.0.0.1:{port}/",
    "data:text/html,x",
    "javascript:alert(1)",
    "unix:///var/run/docker.sock",
    "jar:http://127.0.0.1:{port}/!/",
]


@pytest.mark.parametrize("url", LITERAL)
def test_no_way_of_writing_a_private_address_reaches_it(secret, url):
    with pytest.raises(Refused):
        get(url.format(port=secret.port), secret.port)
    assert secret.connections == 0


def test_the_server_is_really_there_and_opens_where_it_is_allowed(secret):
    for allowed in ("127.0.0.1", "127.0.0.0/8", f"127.0.0.1:{secret.port}"):
        assert get(f"{secret.url}/", allowed=[allowed]).body == b"the secret"
    assert get(f"http://localhost:{secret.port}/", allowed=["localhost"]).body == b"the secret"
    with pytest.raises(Refused):
        get(f"{secret.url}/", secret.port, allowed=[f"127.0.0.1:{secret.port + 1}", "10.0.0.0/8", "other.example"])


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%eth0"],
        ["8.8.8.8", "127.0.0.1"],
    ],
)
def test_a_name_that_resolves_to_a_private_address_is_refused(secret, monkeypatch, found):
    names(monkeypatch, evil_example=found)
    with pytest.raises(Refused):
        get(f"http://evil.example:{secret.port}/", secret.port)
    assert secret.connections == 0


def test_the_connection_goes_to_the_address_that_was_checked_and_nobody_asks_twice(monkeypatch):
    asked = names(monkeypatch, rebind_example=[["8.8.8.8"], ["127.0.0.1"]])
    connected = []

    class Stock:
        async def connect_tcp(self, host, port, *rest):
            connected.append(host)
            raise OSError("nobody there")

    connections = CheckedConnections(AddressRules())
    connections.stock = Stock()
    with pytest.raises(OSError, match="nobody there"):
        asyncio.run(connections.connect_tcp("rebind.example", 80))
    assert connected == ["8.8.8.8"] and asked == ["rebind.example"]
    with pytest.raises(Refused):  # the name has changed: the next request is checked anew
        asyncio.run(connections.connect_tcp("rebind.example", 80))
    assert connected == ["8.8.8.8"]


@pytest.mark.parametrize(
    "to", ["http://127.0.0.1:{port}/", "//127.0.0.1:{port}/", "http://[::1]:{port}/", "file:///etc/passwd", "/next"]
)
def test_each_redirect_is_checked_anew(secret, monkeypatch, to):
    """The public site stands for itself on another port; after one hop it leads here, or its name does."""
    site = {"/": redirect(to.format(port=secret.port)), "/next": page("after the name has moved")}
    with Server(site) as public_site:
        names(monkeypatch, site_example=[["127.0.0.1"], ["127.0.0.2"]])
        with pytest.raises(Refused):
            get(f"http://site.example:{public_site.port}/", secret.port, [f"127.0.0.1:{public_site.port}"])
        assert public_site.connections == 1
    assert secret.connections == 0


def test_a_redirect_to_a_blocked_page_is_blocked(secret):
    with Server({"/": redirect(f"{secret.url}/")}) as site:
        with pytest.raises(Refused, match="not available in this task"):
            get(f"{site.url}/", allowed=["127.0.0.1"], blocked=lambda url: url.startswith(secret.url))
    assert secret.connections == 0


def test_other_ports_than_those_of_the_web_are_refused():
    for port in (22, 25, 6379, 8080):
        with pytest.raises(Refused, match="port"):
            AddressRules().target(f"http://example.com:{port}/")
    assert AddressRules().target("https://example.com:443/a").url == "https://example.com/a"
    assert AddressRules([8080]).target("http://example.com:8080/").url == "http://example.com:8080/"


def test_addresses_are_read_as_a_browser_would():
    read = AddressRules().target
    assert read(" www.Example.com/a%20b ").url == "https://www.example.com/a%20b"
    assert read("https://bücher.example/ä?q=ü&x=1#top").url == "https://xn--bcher-kva.example/%C3%A4?q=%C3%BC&x=1"
    assert read("http://example.com").url == "http://example.com/"
    assert read("http://under_score.example.com./").host == "under_score.example.com"
    assert read("http://8.8.8.8/").host == "8.8.8.8"
    for nonsense in ("", "   ", "no blanks.com", "notadomain", "http://a\ud800.example/", f"http://{'a' * 5000}.com/"):
        with pytest.raises(Refused):
            read(nonsense)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("2002:808:808::1", True),
        ("64:ff9b::808:808", True),
        ("64:ff9b::a00:1", False),
        ("100.64.0.1", False),
        ("192.0.0.192", False),
        ("198.18.0.1", False),
        ("203.0.113.1", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("fc00::1", False),
        ("::", False),
    ],
)
def test_public_addresses_are_told_from_others_also_inside_ipv6(address, expected):
    assert public(ipaddress.ip_address(address)) is expected


@pytest.mark.parametrize("entry", ["", "http://a.example", "10.0.0.0/40", "a b", "1.2.3", "*"])
def test_a_wrong_exception_is_a_wrong_setup(entry):
    with pytest.raises(ConfigError, match="allowed_addresses"):
        AddressRules(allowed=[entry])


def test_a_name_without_addresses_is_the_webs_failure(monkeypatch):
    async def lookup(host, port):
        import socket

        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(search_addresses, "lookup", lookup)
    with pytest.raises(PageFailed, match="no such host"):
        get("http://nowhere.example/")
