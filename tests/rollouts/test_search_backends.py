"""Search services against servers that stall, lie, fail and flood; each real shape is read, each failure is typed."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.rollouts.environments.search_backends import BackendFailed, text_of
from rufus_plugins.rollouts.environments.search_retrieval import Retrieval
from rufus_plugins.rollouts.environments.search_searxng import SearXNG
from rufus_plugins.rollouts.environments.search_serper import Serper

sys.path.insert(0, str(Path(__file__).parent))
from search_servers import Server, in_turn, page, redirect, stall  # noqa: E402

KINDS = {
    "retrieval": lambda url, **config: Retrieval(f"{url}/api", **config),
    "searxng": lambda url, **config: SearXNG(f"{url}/api", **config),
    "serper": lambda url, **config: Serper(f"{url}/api", api_key_env="", **config),
}
GOOD = {
    "retrieval": {"result": [[{"document": {"id": "1", "contents": '"A title"\nIts text'}, "score": 0.5}]]},
    "searxng": {"results": [{"title": "A title", "url": "http://a.example/", "content": "Its text"}]},
    "serper": {"organic": [{"title": "A title", "link": "http://a.example/", "snippet": "Its text", "position": 1}]},
}


def search(kind, answer, query="what", count=5, keep=lambda document: True, **config):
    with Server({"/api": answer if callable(answer) else page(answer)}) as server:
        backend = KINDS[kind](server.url, **config)
        return asyncio.run(backend.search(query, count, keep)), server, backend


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_each_kind_are_read(kind):
    [found], _, _ = search(kind, GOOD[kind])
    assert (found.title, found.text) == ("A title", "Its text")
    assert found.ref == ("doc:1" if kind == "retrieval" else "http://a.example/")


def test_what_is_asked_is_what_the_services_document(monkeypatch):
    _, server, _ = search("retrieval", GOOD["retrieval"], "naïve +x", 7)
    [(method, _, body)] = server.requests
    assert (method, json.loads(body)) == ("POST", {"queries": ["naïve +x"], "topk": 7, "return_scores": True})
    _, server, _ = search("searxng", GOOD["searxng"], "!wp :fr two words", 7, language="en", engines="a,b")
    assert server.requests[0][:2] == (
        "GET",
        "/api?q=wp+fr+two+words&format=json&safesearch=0&language=en&engines=a%2Cb",
    )
    monkeypatch.setenv("A_KEY", "secret")
    with Server({"/api": page(GOOD["serper"])}) as server:
        backend = Serper(f"{server.url}/api", api_key_env="A_KEY", extra_body={"gl": "us"})
        asyncio.run(backend.search("what", 7, lambda document: True))
        assert json.loads(server.requests[0][2]) == {"q": "what", "num": 7, "gl": "us"}
        assert {name.lower(): value for name, value in server.headers[0].items()}["x-api-key"] == "secret"
    monkeypatch.delenv("A_KEY")
    with pytest.raises(ConfigError, match="A_KEY, which is not set"):
        Serper(api_key_env="A_KEY")


@pytest.mark.parametrize(
    ("row", "title", "ref", "text"),
    [
        ({"document": {"contents": "Only a text"}}, "(no title)", None, "Only a text"),
        ({"contents": "T\nbody", "id": 5}, "T", "doc:5", "body"),
        ({"document": {"title": "T", "text": "body", "url": "http://a.example/x"}}, "T", "http://a.example/x", "body"),
    ],
)
def test_the_shapes_of_retrieval_servers(row, title, ref, text):
    [found], _, _ = search("retrieval", {"result": [[row]]})
    assert (found.title, found.text, found.whole) == (title, text, True)
    assert found.ref == ref if ref else found.ref.startswith("doc:")


LIES = [
    b"",
    b"not json",
    b"<html>502 from a proxy</html>",
    b"null",
    b"[]",
    b'"text"',
    b"7",
    b"{}",
    b"[" * 100_000,
    b'{"result": "x", "results": "x", "organic": "x"}',
    b'{"result": [{}], "results": {}, "organic": {}}',
    b'{"result": [["x"]], "results": ["x"], "organic": ["x"]}',
    b'{"result": [[{"document": 5}]], "results": [{"url": 5}], "organic": [{"link": null}]}',
    b'{"result": [[], []], "error": "quota", "results": null}',
    b"\xff\xfe\x00",
    b'{"result": [[{"document": {"contents": "x"}}]], "results": [{"url": "http://a"}], "organic": [{"link": "http://a"}]'
    + b" " * 10_000_000
    + b"}",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_a_service_that_lies_has_failed(kind, lie):
    with pytest.raises(BackendFailed):
        search(kind, lie, attempts=1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_results_are_an_answer(kind):
    empty = {"retrieval": {"result": [[]]}, "searxng": {"results": []}, "serper": {"searchParameters": {"q": "what"}}}
    assert search(kind, empty[kind])[0] == []


def test_engines_that_do_not_answer_are_no_empty_answer():
    with pytest.raises(BackendFailed, match="engines do not answer"):
        search("searxng", {"results": [], "unresponsive_engines": [["google", "timeout"]]}, attempts=1)


def test_what_may_pass_is_tried_again_and_what_would_be_refused_again_is_not():
    good = page(GOOD["retrieval"])
    for status in (408, 425, 429, 500, 502, 503, 504):
        found, server, backend = search("retrieval", in_turn(page(b"busy", status=status), good), attempts=2)
        assert len(found) == 1 and len(server.requests) == 2 and backend._server.retried == 1
    found, server, _ = search("retrieval", in_turn(page(b"garbage"), good), attempts=2)
    assert len(found) == 1 and len(server.requests) == 2
    for status in (400, 401, 403, 404, 422):
        with Server({"/api": page(b"no key", status=status)}) as server:
            with pytest.raises(BackendFailed, match=f"HTTP {status}.*no key"):
                asyncio.run(Retrieval(f"{server.url}/api").search("x", 1, bool))
            assert len(server.requests) == 1


def test_a_redirect_is_not_followed_with_the_key():
    with Server({"/api": redirect("/other"), "/other": page(GOOD["serper"])}) as server:
        with pytest.raises(BackendFailed, match="HTTP 302"):
            asyncio.run(Serper(f"{server.url}/api", api_key_env="").search("x", 1, bool))
        assert [path for _, path, _ in server.requests] == ["/api"]


def test_a_service_that_is_not_there_or_stalls_fails_in_time():
    with Server({}) as server:
        url = server.url
    with pytest.raises(BackendFailed):
        asyncio.run(Retrieval(f"{url}/api", attempts=2).search("x", 1, bool))
    with pytest.raises(BackendFailed, match="no answer within 0.3 s"):
        search("retrieval", stall, deadline_s=0.3)
    with pytest.raises(BackendFailed):
        search("retrieval", stall, timeout_s=0.1, attempts=2)

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        while not handler.over.wait(0.02):
            handler.wfile.write(b" ")

    with pytest.raises(BackendFailed):
        search("retrieval", drip, timeout_s=0.2, attempts=1)


def test_a_packed_answer_is_not_unpacked():
    import gzip

    bomb = gzip.compress(b" " * (1 << 24))
    with pytest.raises(BackendFailed, match="compressed"):
        search("retrieval", page(bomb, Content_Encoding="gzip"), attempts=1)


def test_the_backend_bounds_its_requests_and_works_in_several_loops():
    active, most = [0], [0]

    def slow(handler):
        active[0] += 1
        most[0] = max(most[0], active[0])
        handler.over.wait(0.05)
        active[0] -= 1
        page(GOOD["retrieval"])(handler)

    with Server({"/api": slow}) as server:
        backend = Retrieval(f"{server.url}/api", concurrency=2)

        async def many():
            return await asyncio.gather(*(backend.search(str(i), 1, lambda document: True) for i in range(6)))

        for _ in range(2):
            assert [len(found) for found in asyncio.run(many())] == [1] * 6
    assert most[0] == 2 and len(backend._server._loops) == 1


def test_blocked_results_are_left_out_and_texts_are_cleaned():
    rows = [{"title": f"t{i}", "url": f"http://{name}.example/"} for i, name in enumerate("abc")]
    found, _, _ = search("searxng", {"results": rows}, keep=lambda document: "b." not in document.url)
    assert [document.title for document in found] == ["t0", "t2"]
    assert text_of(" a\n\tb ") == "a b" and text_of(5) == text_of(None) == "" and text_of("abcdef", 4) == "abc…"
