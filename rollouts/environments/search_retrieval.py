"""A retrieval server with Search-R1's protocol: POST `{"queries", "topk", "return_scores"}`.

It answers `{"result": [[{"document": {"contents": "title\\ntext"}, "score"}]]}`, one list per query; a document may
stand there without the `document` around it, and may have `id`, `title`, `text` and `url` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.rollouts.environments.search_backends import BackendFailed, Document, Keep, text_of
from rufus_plugins.rollouts.environments.search_http import JsonBackend


@dataclass
class Retrieval(JsonBackend):
    """A Search-R1 retrieval server; url is its whole address, for example http://127.0.0.1:8000/retrieve."""

    concurrency: int = 32

    web = False

    async def search(self, query: str, count: int, keep: Keep) -> list[Document]:
        answer = await self._server.ask("POST", json={"queries": [query], "topk": count, "return_scores": True})
        try:
            [rows] = answer["result"]
        except (TypeError, KeyError, ValueError):
            raise BackendFailed(f"{self.url}: the answer has no list `result` with one list in it") from None
        if not isinstance(rows, list):
            raise BackendFailed(f"{self.url}: result[0] is a {type(rows).__name__}, not a list")
        found = [_document(row) for row in rows]
        readable = [document for document in found if document is not None]
        if found and not readable:
            raise BackendFailed(f"{self.url}: no row of the result holds a document: {str(rows[0])[:200]!r}")
        return [document for document in readable if keep(document)][:count]


def _document(row: Any) -> Document | None:
    if isinstance(row, Mapping) and isinstance(row.get("document"), Mapping):
        row = row["document"]
    if not isinstance(row, Mapping):
        return None
    title, text = row.get("title"), row.get("text")
    if not isinstance(text, str) and isinstance(row.get("contents"), str):
        head, _, rest = row["contents"].partition("\n")
        title, text = (title or head, rest) if rest.strip() else (title, row["contents"])
    if not isinstance(text, str) or not text.strip():
        return None
    key = row.get("id")
    return Document(
        title=text_of(title, 300).strip('"') or "(no title)",
        url=text_of(row.get("url")),
        id=str(key) if isinstance(key, str | int) and str(key) else _digest(text),
        text=text,
        whole=True,
    )


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
