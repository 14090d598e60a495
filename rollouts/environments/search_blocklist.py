"""What the solver must not see: sites, pages and documents that hold the answer to the task itself.

Axion blocks the data from which its questions were made; benchmarks get copied to the web. Entries:

- `example.com`: the site and everything below it (`www.example.com`);
- `example.com/path`: that page and what lies below it;
- `doc:ID`: a document of the corpus or the retrieval server; `title:TEXT`: by its title.

Addresses are compared without scheme, `www.`, port, fragment, case, percent-encoding and `..`. An address that
carries a blocked one inside (web archives, caches, readers, translators) is blocked too.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.rollouts.environments.search_backends import Document


class Blocklist:
    """Raises `ValueError` for an entry that is none of the four."""

    def __init__(self, entries: Iterable[str]):
        self._ids: set[str] = set()
        self._titles: set[str] = set()
        self._pages: dict[str, list[str]] = {}
        """Host -> blocked paths, "" for all of it."""
        for entry in entries:
            text = entry.strip()
            if text.startswith("doc:"):
                self._ids.add(text[4:])
            elif text.startswith("title:"):
                self._titles.add(_plain(text[6:]))
            elif text:
                host, path = _address(text)
                if not re.fullmatch(r"[^\s/]+\.[^\s/.]+|\[[0-9a-f:.]+\]", host):
                    raise ValueError(f"{entry!r} is no site, page, doc:ID or title:TEXT")
                self._pages.setdefault(host, []).append(path)
        hosts = "|".join(sorted(map(re.escape, self._pages), key=len, reverse=True))
        self._inside = re.compile(rf"(?<![\w.-])(?:[\w-]+\.)*?({hosts})(?![\w-]|\.\w)([^\s\"'<>]*)") if hosts else None

    def __bool__(self) -> bool:
        return bool(self._ids or self._titles or self._pages)

    def blocks(self, url: str) -> bool:
        """Whether this address, or one inside it, is blocked."""
        if self._inside is None:
            return False
        host, path = _address(url)
        return any(self._reaches(host, one) for one in dict.fromkeys((path, _resolved(path))))

    def _reaches(self, host: str, path: str) -> bool:
        if self._holds(host, path):
            return True
        if host.endswith(".translate.goog"):  # www-example-com.translate.goog, a hyphen doubled
            real = host.removesuffix(".translate.goog").replace("--", "\0").replace("-", ".").replace("\0", "-")
            if self._holds(real.removeprefix("www."), path):
                return True
        inside = ((found.group(1), _path(found.group(2))) for found in self._inside.finditer(path))
        return any(self._holds(held, one) for held, below in inside for one in (below, _resolved(below)))

    def hides(self, document: Document) -> bool:
        """Whether a result or document is blocked."""
        if document.id and document.id in self._ids:
            return True
        if self._titles and _plain(document.title) in self._titles:
            return True
        return bool(document.url) and self.blocks(document.url)

    def _holds(self, host: str, path: str) -> bool:
        labels = host.split(".")
        for at in range(len(labels)):
            for blocked in self._pages.get(".".join(labels[at:]), ()):
                if not blocked or path == blocked or path.startswith(tuple(f"{blocked}{mark}" for mark in "/?;&")):
                    return True
        return False


def _plain(title: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", title).casefold().split()).strip('"')


def _address(url: str) -> tuple[str, str]:
    """(host, path with query) as they are compared."""
    text = url.strip()
    if not re.match(r"^[a-z][a-z0-9+.-]*://", text, re.I):
        text = f"http://{text.removeprefix('//')}"
    rest = text.partition("://")[2]
    host, mark, path = (re.match(r"([^/?#]*)([/?#]?)(.*)", rest, re.S) or ("", "", "")).groups()
    host = host.rpartition("@")[2].lower()
    host = re.sub(r":\d*$", "", host).rstrip(".")
    if not host.isascii():
        import idna

        try:
            host = idna.encode(host, uts46=True).decode()
        except (idna.IDNAError, UnicodeError):
            pass
    return host.removeprefix("www."), _path("" if mark == "#" else (mark + path).removeprefix("/"))


def _path(text: str) -> str:
    """A path as it is compared: no fragment, decoded (twice: addresses travel inside addresses), no outer slashes."""
    text = text.partition("#")[0]
    for _ in range(2):
        text = urllib.parse.unquote(text)
    return re.sub(r"/{2,}(?!\w+\.)", "/", text).strip("/").lower()


def _resolved(path: str) -> str:
    """Without `.` and `..`, as servers read it: a/../b is b."""
    way, mark, query = path.partition("?")
    kept: list[str] = []
    for part in way.split("/"):
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    return "/".join(kept).strip("/") + mark + query


def blocklist(entries: Iterable[str], file: str) -> Blocklist:
    """From config. Raises `ConfigError`."""
    try:
        return _read(tuple(entries), file)
    except ValueError as error:
        raise ConfigError(f"rufus.environment.blocked: {error}") from None
    except OSError as error:
        raise ConfigError(f"rufus.environment.blocked_file={file}: {error.strerror}") from None


@functools.lru_cache(maxsize=16)
def _read(entries: tuple[str, ...], file: str) -> Blocklist:
    lines = Path(file).expanduser().read_text("utf-8").splitlines() if file else []
    return Blocklist([*entries, *(line for line in lines if not line.lstrip().startswith("#"))])


def of_task(value: Any) -> Blocklist:
    """From `task.extra["blocked"]`: a list, or its JSON as text. Raises `DataError`."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise DataError(f"the task's `blocked` is no JSON list: {error}") from None
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise DataError(f"the task's `blocked` is {str(value)[:200]!r}; a list of texts is needed")
    try:
        return Blocklist(value)
    except ValueError as error:
        raise DataError(f"the task's `blocked`: {error}") from None
