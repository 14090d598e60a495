"""Text embedders for the retrieval pass, and the nearest benchmark items of a record.

`embedder(name)` gives a function from texts to unit vectors `float32[n, d]`:

- `hashed`: words and their letter triples in hashed directions, rare words of the benchmarks heavier. Needs no model
  and no download; finds texts with other order, inflection or some other words, not synonyms throughout;
- `model2vec:NAME_OR_FOLDER`: static embeddings (pip install 'rufus-plugins[data]');
- `sentence-transformers:NAME_OR_FOLDER`: if that package is installed;
- `package.module:function`: a function that takes a list of texts and gives an array `[n, d]`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.ngrams import words
from rufus_plugins.recipes.data.texts import Turn

Embedder = Callable[[Sequence[str]], np.ndarray]

WINDOW = 64
"""Words of a text that are embedded together, half overlapping: a question inside a long turn would drown. Ours."""
LEAST_WORDS = 4
UNKNOWN = 0.25
"""Weight in `hashed` of a word that is in no benchmark, against its rarity. Ours."""
NEAREST = 3
"""Items that are listed per record at most. Ours."""


class Hashed:
    """Words and letter triples in pseudo-random directions, weighted by how rare the words are in `corpus`."""

    def __init__(self, corpus: Iterable[str] = (), size: int = 256):
        self.size = size
        self.texts = 0
        self.count: Counter[bytes] = Counter()
        for text in corpus:
            self.texts += 1
            self.count.update(set(words(text)))
        self._known: dict[bytes, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        # words of benchmarks stay in memory; the state only travels between our own processes
        return self.__dict__ | {"_known": {}}

    def _of(self, word: bytes) -> np.ndarray:
        found = self._known.get(word)
        if found is None:
            if len(self._known) > 50_000:
                self._known.clear()
            framed = b"<" + word + b">"
            triples = [framed[i : i + 3] for i in range(len(framed) - 2)]
            vector = _direction(word, self.size) + sum(_direction(b"3" + t, self.size) for t in triples) / max(
                len(triples), 1
            )
            found = self._known[word] = (vector * self._weight(word)).astype(np.float32)
        return found

    def _weight(self, word: bytes) -> float:
        """Rarity; a word that no benchmark has speaks for no item, and would only drown the others."""
        if not self.texts:
            return 1.0
        rarity = float(np.log((self.texts + 1) / (self.count[word] + 0.5)))
        return max(rarity, 0.05) * (1.0 if word in self.count else UNKNOWN)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        made = np.zeros((len(texts), self.size), dtype=np.float32)
        for row, text in enumerate(texts):
            for word, count in Counter(words(text)).items():
                made[row] += np.float32(1.0 + np.log(count)) * self._of(word)
        return unit(made)


def _direction(word: bytes, size: int) -> np.ndarray:
    """+-1 per coordinate, the same everywhere."""
    bits = hashlib.shake_128(word).digest(size // 8)
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8)).astype(np.float32) * 2 - 1


def unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def embedder(name: str, corpus: Iterable[str] = ()) -> Embedder:
    """`corpus`: the benchmarks' texts, for `hashed`. Raises `ConfigError` for what does not exist or is missing."""
    kind, _, rest = name.partition(":")
    if name == "hashed":
        return Hashed(corpus)
    if kind == "model2vec" and rest:
        return _loaded("model2vec", "StaticModel", "from_pretrained", rest, {})
    if kind == "sentence-transformers" and rest:
        return _loaded("sentence_transformers", "SentenceTransformer", "", rest, {"show_progress_bar": False})
    if "." in kind and rest.isidentifier():
        try:
            function = getattr(importlib.import_module(kind), rest)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"embedder {name}: {error}") from error
        return _checked(name, function)
    raise ConfigError(
        f"There is no embedder {name!r}. There are: hashed, model2vec:NAME_OR_FOLDER, "
        "sentence-transformers:NAME_OR_FOLDER, package.module:function."
    )


def _loaded(package: str, kind: str, maker: str, source: str, options: dict[str, Any]) -> Embedder:
    try:
        found = getattr(importlib.import_module(package), kind)
    except ImportError as error:
        shown = package.replace("_", "-")
        raise ConfigError(f"The embedder {shown}:{source} needs the package {shown}: pip install {shown}") from error
    try:
        model = (getattr(found, maker) if maker else found)(source)
    except Exception as error:  # the libraries raise a dozen types for a wrong name, a broken folder and no network
        raise ConfigError(f"{package} cannot load {source!r}: {type(error).__name__}: {error}") from error
    return _checked(source, lambda texts: model.encode(list(texts), **options))


def _checked(name: str, function: Callable[[Sequence[str]], Any]) -> Embedder:
    def embed(texts: Sequence[str]) -> np.ndarray:
        made = np.asarray(function(list(texts)), dtype=np.float32)
        if made.ndim != 2 or len(made) != len(texts) or not np.isfinite(made).all():
            raise ConfigError(f"embedder {name} gave an array {made.shape} for {len(texts)} texts, or not finite ones")
        return unit(made)

    return embed


def windows(text: str) -> list[str]:
    said = text.split()
    if len(said) < LEAST_WORDS:
        return []
    if len(said) <= WINDOW * 3 // 2:
        return [text]
    return [" ".join(said[at : at + WINDOW]) for at in range(0, max(len(said) - WINDOW // 2, 1), WINDOW // 2)]


@dataclass(frozen=True)
class Near:
    item: int
    score: float
    turn: int


@dataclass
class Retrieval:
    """The vectors of the benchmarks' windows, and what is near to them."""

    vectors: np.ndarray
    """`float32[windows, d]`, unit length"""
    items: np.ndarray
    """`int32[windows]`"""
    least: float
    """Cosine from which on an item is listed."""
    roles: frozenset[str] = field(default_factory=frozenset)
    """Roles whose turns are looked at; empty: all."""

    @classmethod
    def of(cls, texts: Sequence[tuple[int, str]], embed: Embedder, least: float, roles: Iterable[str]) -> Retrieval:
        """`texts`: (item, text)."""
        pieces = [(item, piece) for item, text in texts for piece in windows(text)]
        vectors = [embed([p for _, p in pieces[at : at + 1024]]) for at in range(0, len(pieces), 1024)]
        return cls(
            np.concatenate(vectors) if vectors else np.zeros((0, 1), dtype=np.float32),
            np.array([item for item, _ in pieces], dtype=np.int32),
            least,
            frozenset(roles),
        )

    def near(self, records: Sequence[Sequence[Turn]], embed: Embedder) -> list[list[Near]]:
        """For each record its nearest items, each once, best first, at most `NEAREST`."""
        pieces: list[str] = []
        owners: list[tuple[int, int]] = []
        for number, turns in enumerate(records):
            named = {role for role, _ in turns} & self.roles
            for turn, (role, text) in enumerate(turns):
                if not named or role in named:  # plain columns have no roles: all of them
                    for piece in windows(text):
                        pieces.append(piece)
                        owners.append((number, turn))
        best: list[dict[int, Near]] = [{} for _ in records]
        for at in range(0, len(pieces) if len(self.vectors) else 0, 256):
            scores = embed(pieces[at : at + 256]) @ self.vectors.T
            for row, column in zip(*np.nonzero(scores >= self.least), strict=True):
                number, turn = owners[at + int(row)]
                item, score = int(self.items[column]), round(float(scores[row, column]), 4)
                held = best[number].get(item)
                if held is None or score > held.score:
                    best[number][item] = Near(item, score, turn)
        return [sorted(found.values(), key=lambda n: (-n.score, n.item))[:NEAREST] for found in best]
