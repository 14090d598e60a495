"""Search services that take a POST with a query and a key and answer JSON, as Serper does (google.serper.dev/search).

The key is read from the environment variable that `api_key_env` names; it stands in no file. Field names are
configurable for services that differ in them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.rollouts.environments.search_backends import BackendFailed, Document, Keep, text_of
from rufus_plugins.rollouts.environments.search_http import JsonBackend


@dataclass
class Serper(JsonBackend):
    """A Serper-like search service; url is its whole address, for example https://google.serper.dev/search."""

    url: str = "https://google.serper.dev/search"
    api_key_env: str = "SERPER_API_KEY"
    """Environment variable with the key; "" sends none."""
    api_key_header: str = "X-API-KEY"
    query_field: str = "q"
    count_field: str = "num"
    """"" sends no number of results."""
    results_field: str = "organic"
    title_field: str = "title"
    link_field: str = "link"
    snippet_field: str = "snippet"
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request, for example {gl: us, hl: en}."""

    web = True

    @property
    def _key_env(self) -> str:
        return self.api_key_env

    async def search(self, query: str, count: int, keep: Keep) -> list[Document]:
        body = {self.query_field: query, **({self.count_field: count} if self.count_field else {}), **self.extra_body}
        headers = {self.api_key_header: os.environ.get(self.api_key_env, "")} if self.api_key_env else {}
        answer = await self._server.ask("POST", json=body, headers=headers)
        if not isinstance(answer, Mapping):
            raise BackendFailed(f"{self.url}: the answer is a JSON {type(answer).__name__}, not an object")
        rows = answer.get(self.results_field)
        if rows is None:  # Serper leaves the field out where it found nothing
            if not answer or "error" in answer or "message" in answer:
                raise BackendFailed(f"{self.url}: no {self.results_field} in {str(dict(answer))[:200]!r}")
            return []
        if not isinstance(rows, list):
            raise BackendFailed(f"{self.url}: {self.results_field} is a {type(rows).__name__}, not a list")
        found = []
        for row in rows:
            if isinstance(row, Mapping) and (url := text_of(row.get(self.link_field))):
                snippet, date = text_of(row.get(self.snippet_field)), text_of(row.get("date"), 40)
                title = text_of(row.get(self.title_field), 300) or url
                found.append(Document(title, url, text=f"{date}: {snippet}" if date else snippet))
        if rows and not found:
            raise BackendFailed(f"{self.url}: no result has a {self.link_field}: {str(rows[0])[:200]!r}")
        return [document for document in found if keep(document)][:count]
