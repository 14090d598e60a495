"""What a search backend is, and which ones there are. One file each; a backend of your own is `package.module:Class`.

A backend is built once per process and config and shared by all episodes: it holds connections and an open index, and
nothing of an episode.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rufus_plugins.errors import ConfigError
from rufus_plugins.fields import REQUIRED, Unfit, config_fields, fitted

BACKENDS = {
    "corpus": "rufus_plugins.rollouts.environments.search_corpus:Corpus",
    "retrieval": "rufus_plugins.rollouts.environments.search_retrieval:Retrieval",
    "searxng": "rufus_plugins.rollouts.environments.search_searxng:SearXNG",
    "serper": "rufus_plugins.rollouts.environments.search_serper:Serper",
}


@dataclass(frozen=True)
class Document:
    """A result of a search, or a whole document."""

    title: str
    url: str = ""
    """"" where it has none; it is then opened by `doc:ID`."""
    id: str = ""
    text: str = ""
    """A result: the excerpt. An opened document: all of it."""
    whole: bool = False
    """Whether `text` is all that there is: such a result can be opened without asking anybody."""

    @property
    def ref(self) -> str:
        """What the model passes to `open`."""
        return self.url or f"doc:{self.id}"


Keep = Callable[[Document], bool]


class BackendFailed(Exception):
    """No results, and that is the backend's doing: unreachable, too slow, wrong answers. Its tries are spent."""


class Backend(Protocol):
    web: bool
    """Whether its results are pages of the web, to be fetched from there."""

    async def search(self, query: str, count: int, keep: Keep) -> list[Document]:
        """At most `count` results that `keep` lets through, best first. Raises `BackendFailed`."""
        ...

    async def document(self, ref: str) -> Document | None:
        """The document with this URL or `doc:ID`, whole; None if the backend does not hold it."""
        ...


def backend(name: str, config: Mapping[str, Any], where: str = "rufus.environment.backend") -> Backend:
    """The shared backend of this process. Raises `ConfigError` for an unknown one or fields that do not fit."""
    try:
        key = json.dumps(dict(config), sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"{where}_config holds what YAML cannot: {error}") from None
    return _built(name, key, where)


@functools.lru_cache(maxsize=64)
def _built(name: str, config: str, where: str) -> Backend:
    path = BACKENDS.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(
            f"{where}={name!r}: there is no such backend. Known: {', '.join(BACKENDS)}; your own is "
            "package.module:Class"
        )
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}={name!r} does not load: {error}") from error
    given, fields = json.loads(config), config_fields(factory)
    unknown = [key for key in given if key not in fields]
    if unknown:
        raise ConfigError(f"{where}_config.{unknown[0]} does not exist. {name} has: {', '.join(fields) or 'none'}.")
    missing = [key for key, default in fields.items() if default is REQUIRED and key not in given]
    if missing:
        doc = (factory.__doc__ or "").strip().split("\n")[0]
        raise ConfigError(f"{where}={name} needs {where}_config.{missing[0]}=... ({doc})")
    try:
        return factory(**fitted(factory, given))
    except Unfit as error:
        raise ConfigError(f"{where}_config.{error}") from None


def text_of(value: Any, limit: int = 0) -> str:
    """A field of somebody's JSON as one text: "" where it is none, blanks collapsed, cut to `limit`."""
    if not isinstance(value, str):
        return ""
    text = " ".join(value.encode("utf-8", "replace").decode("utf-8").split())
    return text if not limit or len(text) <= limit else text[: limit - 1].rstrip() + "…"
