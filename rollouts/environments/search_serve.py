"""A search corpus as a server with Search-R1's protocol, so that many machines share one index.

    python -m rufus_plugins.rollouts.environments.search_serve --corpus CORPUS --host 0.0.0.0 --port 8000

POST /retrieve `{"queries": [...], "topk": 3, "return_scores": false}` -> `{"result": [[row, ...], ...]}`, a list per
query. A row is `{"id", "title", "text", "url", "contents"}`, whole, or with scores `{"document": row, "score"}`; the
score is 1 / rank, since ranks are all that a client may rely on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from rufus_plugins.errors import ConfigError, RufusError
from rufus_plugins.rollouts.environments.search_corpus import Corpus

_MAX_BODY, _MAX_QUERIES, _MAX_RESULTS = 4 << 20, 1024, 100
"""Of one request. Ours."""


class CorpusServer:
    """An ASGI app."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, answer = 404, {"error": "POST /retrieve is all there is"}
        if scope["path"] == "/retrieve":
            status, answer = 405, {"error": "POST only"}
            if scope["method"] == "POST":
                try:
                    status, answer = 200, await self._retrieved(await _body(receive))
                except ValueError as error:
                    status, answer = 400, {"error": str(error)}
        raw = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": raw})

    async def _retrieved(self, raw: bytes) -> dict[str, Any]:
        """Raises `ValueError` for a request that is none."""
        try:
            asked = json.loads(raw)
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        if not isinstance(asked, dict):
            raise ValueError("the body is no JSON object")
        queries, count, scores = asked.get("queries"), asked.get("topk"), asked.get("return_scores", False)
        count = 3 if count is None else count
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise ValueError("`queries` is a list of texts")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_RESULTS:
            raise ValueError(f"`topk` is a number from 1 to {_MAX_RESULTS}")
        if len(queries) > _MAX_QUERIES:
            raise ValueError(f"at most {_MAX_QUERIES} queries at a time")
        found = await asyncio.gather(*(self._rows(query, count) for query in queries))
        if scores:
            found = [[{"document": row, "score": 1 / rank} for rank, row in enumerate(rows, 1)] for rows in found]
        return {"result": found}

    async def _rows(self, query: str, count: int) -> list[dict[str, str]]:
        rows = []
        for hit in await self.corpus.search(query, count, lambda document: True):
            whole = await self.corpus.document(f"doc:{hit.id}")
            contents = f"{whole.title}\n{whole.text}"
            rows.append(
                {"id": whole.id, "title": whole.title, "text": whole.text, "url": whole.url, "contents": contents}
            )
        return rows


async def _body(receive: Any) -> bytes:
    raw = bytearray()
    while True:
        event = await receive()
        raw += event.get("body", b"")
        if len(raw) > _MAX_BODY:
            raise ValueError(f"the body has more than {_MAX_BODY} bytes")
        if event["type"] != "http.request" or not event.get("more_body"):
            return bytes(raw)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="search_serve", description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True, help="what `rufus prepare search_corpus` wrote")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in; there is no password")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(arguments)
    import uvicorn

    try:
        app = CorpusServer(Corpus(given.corpus))
    except (ConfigError, RufusError) as error:
        print(f"search_serve: {error}", file=sys.stderr)
        return 2
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
