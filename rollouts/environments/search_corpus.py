"""The embedded search backend: tantivy (BM25) over a local corpus that `rufus prepare search_corpus` indexed.

Text and queries go through the same analyser: Unicode NFKC, words of letters, digits and marks, lower case, accents
folded, English stems; scripts without blanks (Han, kana, Thai, Lao, Khmer, Burmese) by the character. A query is a bag
of words: nothing in it is syntax. Ranking is deterministic: equal scores are ordered by the document's id.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.rollouts.environments.search_backends import BackendFailed, Document, Keep

FORMAT = 1
"""Of the index; another one is refused."""
MANIFEST = "manifest.json"
ANALYSER = "rufus"
_NO_BLANKS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = rf"[{_NO_BLANKS}]|[\p{{L}}\p{{N}}\p{{M}}--[{_NO_BLANKS}]]+"
_MOST_WORDS = 64
"""Different words of a query that count. Ours."""


@dataclass
class Corpus:
    """An index of local documents; path is what `rufus prepare search_corpus --output` wrote."""

    path: str
    title_boost: float = 1.5
    """Weight of a word in the title against one in the text. Ours."""
    excerpt_chars: int = 400
    """Ours."""

    web = False

    def __post_init__(self) -> None:
        self._index, self._schema = _open(self.path)
        self._analyser = analyser()

    async def search(self, query: str, count: int, keep: Keep) -> list[Document]:
        return await asyncio.to_thread(self._search, query, count, keep)

    async def document(self, ref: str) -> Document | None:
        return await asyncio.to_thread(self._document, ref)

    def words(self, text: str) -> list[str]:
        """The words of `text` as the index knows them, in order."""
        return self._analyser.analyze(prepared(text))

    def _search(self, query: str, count: int, keep: Keep) -> list[Document]:
        from tantivy import Occur, Query

        words = list(dict.fromkeys(self.words(query)))[:_MOST_WORDS]
        if not words:
            return []
        clauses = []
        for word in words:
            title = Query.term_query(self._schema, "title", word)
            clauses.append((Occur.Should, Query.boost_query(title, self.title_boost)))
            clauses.append((Occur.Should, Query.term_query(self._schema, "text", word)))
        asked = Query.boolean_query(clauses)
        searcher, limit = self._index.searcher(), count + 32
        try:
            while True:
                hits = searcher.search(asked, limit, count=False).hits
                found = [(score, self._read(searcher.doc(address))) for score, address in hits]
                ranked = sorted(found, key=lambda item: (-item[0], item[1].id))
                kept = [(score, document) for score, document in ranked if keep(document)]
                # what ties with the last one asked for may be missing, so more is read until it does not matter
                sure = len(hits) < limit or (len(kept) >= count and kept[count - 1][0] > hits[-1][0])
                if sure:
                    return [self._excerpt(document, words) for _, document in kept[:count]]
                limit *= 4
        except (ValueError, OSError) as error:
            raise BackendFailed(f"the index {self.path} cannot be read: {error}") from error

    def _document(self, ref: str) -> Document | None:
        from tantivy import Query

        field, value = ("id", ref[4:]) if ref.startswith("doc:") else ("address", address_of(ref))
        if not value:
            return None
        searcher = self._index.searcher()
        try:
            hits = searcher.search(Query.term_query(self._schema, field, value), 1, count=False).hits
            return self._read(searcher.doc(hits[0][1])) if hits else None
        except (ValueError, OSError) as error:
            raise BackendFailed(f"the index {self.path} cannot be read: {error}") from error

    @staticmethod
    def _read(stored: Any) -> Document:
        shown, url, body = (bytes(stored.get_first(name) or b"").decode() for name in ("shown", "url", "body"))
        return Document(shown, url, stored.get_first("id"), body, whole=True)

    def _excerpt(self, document: Document, words: list[str]) -> Document:
        text = excerpt(document.text, words, self.words, self.excerpt_chars)
        return Document(document.title or "(no title)", document.url, document.id, text)


def prepared(text: str) -> str:
    return unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode("utf-8"))


def analyser() -> Any:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    chain = TextAnalyzerBuilder(Tokenizer.regex(_WORD)).filter(Filter.remove_long(100)).filter(Filter.lowercase())
    return chain.filter(Filter.ascii_fold()).filter(Filter.stemmer("english")).build()


def schema() -> Any:
    """`title` and `text` are searched; `shown`, `body`, `url` are kept as they are; `id`, `address` are looked up."""
    from tantivy import SchemaBuilder

    builder = SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("address", stored=False, tokenizer_name="raw", index_option="basic")
    for name in ("title", "text"):
        builder.add_text_field(name, stored=False, tokenizer_name=ANALYSER, index_option="freq")
    for name in ("shown", "url", "body"):
        builder.add_bytes_field(name, stored=True, indexed=False)
    return builder.build()


def address_of(url: str) -> str:
    """A URL as it is looked up: without scheme, `www.`, fragment and a last slash; "" for what is none."""
    text = re.sub(r"^[a-z][a-z0-9+.-]*://", "", url.strip(), flags=re.I).partition("#")[0]
    host, slash, rest = text.partition("/")
    host = host.lower().removeprefix("www.")
    return (host + slash + rest).rstrip("/")


def excerpt(text: str, words: list[str], analyse: Any, chars: int) -> str:
    """The stretch of about `chars` characters in which the most different words of the query stand; the first such."""
    pieces = list(re.finditer(r"\S+", text[:200_000]))
    wanted, at, best, best_start = set(words), 0, -1, 0
    size = max(8, chars // 7)  # pieces of a stretch
    if len(pieces) > size:
        stems = [wanted.intersection(analyse(piece.group(0))) for piece in pieces]
        for at in range(0, max(1, len(pieces) - size // 2), max(1, size // 4)):
            held = len(set().union(*stems[at : at + size]))
            if held > best:
                best, best_start = held, at
    start = pieces[best_start].start() if pieces else 0
    shown = " ".join(text[start : start + chars].split())
    return ("… " if start else "") + shown + (" …" if start + chars < len(text.rstrip()) else "")


def _open(path: str) -> tuple[Any, Any]:
    try:
        from tantivy import Index
    except ImportError as error:
        raise ConfigError("the search corpus needs tantivy: pip install 'rufus-plugins[gym]'") from error
    folder = Path(path).expanduser()
    make = "build one: rufus prepare search_corpus --input FILE.jsonl --output DIR"
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"rufus.environment.backend_config.path={path}: there is no search corpus; {make}") from None
    if manifest.get("format") != FORMAT:
        raise ConfigError(f"{path}: a corpus of format {manifest.get('format')!r}, this version reads {FORMAT}; {make}")
    try:
        index = Index.open(str(folder / "index"))
        index.register_tokenizer(ANALYSER, analyser())
        index.config_reader("manual", 1)
        index.reload()
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: the index cannot be opened: {error}; {make}") from error
    return index, schema()
