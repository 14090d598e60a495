"""The corpus server, asked by our own client and by hand, over a real socket."""

import asyncio
import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request

import pytest
import uvicorn

from rufus_plugins.recipes.search_agent.corpus import prepare
from rufus_plugins.rollouts.environments.search_corpus import Corpus
from rufus_plugins.rollouts.environments.search_retrieval import Retrieval
from rufus_plugins.rollouts.environments.search_serve import CorpusServer, main


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    documents = [
        {"id": "brod", "title": "Brod", "text": "Brod is a town. " * 50, "url": "https://wiki.example/Brod"},
        {"id": "zeta", "title": "Zeta", "text": "Zeta is another town."},
    ]
    (folder / "d.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    prepare(str(folder / "d.jsonl"), folder / "index")
    return str(folder / "index")


@pytest.fixture(scope="module")
def url(corpus):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(CorpusServer(Corpus(corpus)), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"
    server.should_exit = True
    thread.join(10)


def post(url, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    for _ in range(50):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, raw, method="POST"), timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError:  # it is not up yet
            with contextlib.suppress(TimeoutError):
                threading.Event().wait(0.1)
    raise AssertionError("the server did not come up")


def test_our_client_gets_whole_documents_in_the_corpuss_own_order(url, corpus):
    post(url, {"queries": []})

    async def both():
        return (
            await Retrieval(url).search("another town", 5, lambda document: True),
            await Corpus(corpus).search("another town", 5, lambda document: True),
        )

    served, local = asyncio.run(both())
    assert [d.id for d in served] == [d.id for d in local] == ["zeta", "brod"]
    assert served[1].text == "Brod is a town. " * 50 and served[1].ref == "https://wiki.example/Brod"
    assert served[0].title == "Zeta" and served[0].ref == "doc:zeta" and served[0].whole


def test_the_protocol_is_search_r1s(url):
    status, answer = post(
        url, {"queries": ["zeta", "nothing at all", "title:brod AND ("], "topk": 1, "return_scores": True}
    )
    assert status == 200 and [len(rows) for rows in answer["result"]] == [1, 0, 1]
    [row] = answer["result"][0]
    assert row["score"] == 1.0 and row["document"]["contents"] == "Zeta\nZeta is another town."
    _, answer = post(url, {"queries": ["zeta"]})
    assert answer["result"][0][0]["contents"] == "Zeta\nZeta is another town."


@pytest.mark.parametrize(
    "body",
    [b"no json", b"[]", {}, {"queries": [1]}, {"queries": ["x"], "topk": 0}, {"queries": ["x"], "topk": "3"},
     {"queries": ["x"], "topk": 10**9}, {"queries": ["x"] * 2000}, b"[" * 100_000, b" " * (5 << 20)],
    ids=range(10),
)  # fmt: skip
def test_a_request_that_is_none_is_refused_with_a_reason(url, body):
    status, answer = post(url, body)
    assert status == 400 and answer["error"]


def test_other_paths_and_a_missing_corpus_are_told(url, tmp_path, capsys):
    assert post(url.replace("retrieve", "other"), {})[0] == 404
    assert main(["--corpus", str(tmp_path)]) == 2 and "prepare search_corpus" in capsys.readouterr().err
