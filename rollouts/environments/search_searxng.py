"""A SearXNG instance: GET `/search?q=...&format=json`. Its settings.yml must list `json` under `search.formats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rufus_plugins.rollouts.environments.search_backends import BackendFailed, Document, Keep, text_of
from rufus_plugins.rollouts.environments.search_http import JsonBackend


@dataclass
class SearXNG(JsonBackend):
    """A SearXNG instance; url is its whole search address, for example http://127.0.0.1:8080/search."""

    language: str = ""
    categories: str = ""
    engines: str = ""
    """Comma-separated; "" asks for the instance's own choice."""
    safesearch: int = 0

    web = True

    async def search(self, query: str, count: int, keep: Keep) -> list[Document]:
        # SearXNG reads `!engine`, `:language` and `!!` at the front of words as orders: a query is plain text here
        plain = " ".join(word.lstrip("!:") for word in query.split()) or query
        asked = {"q": plain, "format": "json", "safesearch": str(self.safesearch)}
        asked |= {name: getattr(self, name) for name in ("language", "categories", "engines") if getattr(self, name)}
        answer = await self._server.ask("GET", params=asked)
        if not isinstance(answer, Mapping) or not isinstance(answer.get("results"), list):
            raise BackendFailed(f"{self.url}: the answer has no list `results`")
        found = []
        for row in answer["results"]:
            if isinstance(row, Mapping) and (url := text_of(row.get("url"))):
                found.append(Document(text_of(row.get("title"), 300) or url, url, text=text_of(row.get("content"))))
        if answer["results"] and not found:
            raise BackendFailed(f"{self.url}: no result has a url: {str(answer['results'][0])[:200]!r}")
        if not found and answer.get("unresponsive_engines"):
            raise BackendFailed(f"{self.url}: its engines do not answer: {str(answer['unresponsive_engines'])[:200]}")
        return [document for document in found if keep(document)][:count]
