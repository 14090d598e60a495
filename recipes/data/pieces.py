"""Token ids of many texts, with each piece of text given to the tokenizer once.

Most of a corpus are words that were there before, with the same blank before them. Texts are cut at the added tokens,
as the tokenizer cuts them, and then before blanks, where `piece_bounds` has shown that the pieces do not depend on each
other; the ids of each piece are kept. New pieces are joined for the tokenizer and cut at the same bounds afterwards, so
that a corpus in which nothing repeats costs little more than its texts as a whole.

A tokenizer of which nothing is shown gets each text whole.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from rufus_plugins.recipes.data.piece_bounds import MARKS, bounds

HELD = 16 << 20
"""Characters and 64 for each piece, beyond which the pieces are forgotten. Ours: some 50 MB of memory."""
AT_ONCE = 8_192
"""Characters of new pieces that the tokenizer gets joined. Ours."""

_BLANKS = re.compile(r" *[^ ]+(?:(?<![!-~\w]) +[^ ]*)*| +")
"""Pieces up to the next bound before a blank."""
_WORD = r"[^ A-Za-z0-9]*+[A-Za-z0-9]++(?![^ \n!-&(-/:-@\[-`{-~])"
_MARKS = re.compile(rf" *(?:{_WORD}|[^ ]+(?:(?<![!-~\w]) +(?:{_WORD}|[^ ]+)?)*)| +")
"""Pieces that end as well after letters and digits before a mark or line break."""
_MARK = frozenset('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~')


class Whole:
    """A text that was encoded as a whole."""

    def __init__(self, encoding: Any):
        import numpy as np

        self.ids = np.asarray(encoding.ids, dtype=np.int32)
        self._encoding = encoding
        self._offsets: Any = None

    def before(self, at: int, whole: bool) -> int:
        """Number of tokens that begin before character `at`, or with `whole` that end there or before."""
        import numpy as np

        if self._offsets is None:
            self._offsets = np.asarray(self._encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return _count(self._offsets, at, whole)


class InPieces:
    """A text that was encoded in pieces; as `Whole`."""

    def __init__(self, pieces: Pieces, starts: list[int], tokens: list[int], parts: list[list[str]], ids: Any):
        self.ids = ids
        self._pieces, self._starts, self._tokens, self._parts = pieces, starts, tokens, parts

    def before(self, at: int, whole: bool) -> int:
        i = bisect_right(self._starts, at) - 1
        place, count = self._starts[i], self._tokens[i]
        for piece in self._parts[i]:
            if place == at:
                break
            if place + len(piece) > at:
                return count + _count(self._pieces.offsets(piece), at - place, whole)
            place += len(piece)
            count += self._pieces.length(piece)
        return count


class Pieces:
    """Encodes texts with a `tokenizers.Tokenizer` that adds, pads and truncates nothing."""

    def __init__(self, backend: Any):
        self._backend = backend
        kinds = bounds(backend)
        self.cuts = bool(kinds)
        """Whether texts are cut into pieces."""
        self._cuts = _MARKS if MARKS in kinds else _BLANKS
        self._forget()
        added = {token.content: number for number, token in backend.get_added_tokens_decoder().items() if token.content}
        self._added = added
        # the tokenizer takes the leftmost, and of those the longest; it looks for the normalized ones after the others
        flags = [{t.content for t in backend.get_added_tokens_decoder().values() if t.normalized == n} for n in (0, 1)]
        self._splits = [_alternation(contents) for contents in flags if any(contents)]

    def encode(self, texts: Sequence[str]) -> list[Whole] | list[InPieces]:
        """In order. Raises `TypeError` for half a surrogate pair."""
        if not self.cuts:
            return [Whole(e) for e in self._backend.encode_batch(list(texts), add_special_tokens=False)]
        if self._held > HELD:
            self._forget()
        segments = [self._segments(text) for text in texts]
        parts = [[self._cut(segment) for segment in some] for some in segments]
        new = dict.fromkeys(chain.from_iterable(chain.from_iterable(parts)))
        if not self._learn([piece for piece in new if piece not in self._ids]):
            self.cuts = False  # against what was shown: no text of this tokenizer is cut from here on
            self._forget()
            return self.encode(texts)
        return [self._assembled(*each) for each in zip(segments, parts, strict=True)]

    def length(self, piece: str) -> int:
        """Tokens of a piece of the texts last encoded."""
        return len(self._ids[piece]) // 4

    def offsets(self, piece: str) -> Any:
        """Where its tokens begin and end in it, `[tokens, 2]`."""
        import numpy as np

        if piece not in self._offsets:
            found = [(0, len(piece))]
            if piece not in self._added:
                recent = self._recent.get(piece)
                found = (recent or self._backend.encode(piece, add_special_tokens=False)).offsets
            self._offsets[piece] = np.asarray(found, dtype=np.int64).reshape(-1, 2)
            self._held += 64 + 16 * len(found)
        return self._offsets[piece]

    def _segments(self, text: str) -> list[str]:
        """The text cut at its added tokens, which are segments of their own."""
        segments = [text]
        for split in self._splits:
            segments = [
                part
                for segment in segments
                for part in ([segment] if segment in self._added else split.split(segment))
                if part
            ]
        return segments

    def _cut(self, segment: str) -> list[str]:
        if segment in self._added:
            return [segment]
        return self._cuts.findall(segment)

    def _learn(self, pieces: Iterable[str]) -> bool:
        """False if a token reaches over a bound."""
        import numpy as np

        runs, alone = self._joined(pieces)
        encodings = self._backend.encode_batch(["".join(run) for run in runs], add_special_tokens=False)
        for run, encoding in zip(runs, encodings, strict=True):
            ids = np.asarray(encoding.ids, dtype=np.int32).tobytes()
            meet = np.cumsum([0, *map(len, run)])
            starts = np.append(np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 0], meet[-1])
            cuts = np.searchsorted(starts, meet)
            if (starts[cuts] != meet).any():
                return False
            places = (4 * cuts).tolist()
            self._ids.update((piece, ids[a:b]) for piece, a, b in zip(run, places, places[1:], strict=False))
        encodings = self._backend.encode_batch(alone, add_special_tokens=False)
        self._recent = dict(zip(alone, encodings, strict=True))
        for piece, encoding in self._recent.items():
            self._ids[piece] = np.asarray(encoding.ids, dtype=np.int32).tobytes()
        self._held += sum(64 + len(piece) for some in (*runs, alone) for piece in some)
        return True

    def _joined(self, pieces: Iterable[str]) -> tuple[list[list[str]], list[str]]:
        """Runs of pieces that meet at bounds, and pieces that fit into none."""
        before_blank: list[str] = []
        before_mark: list[str] = []
        alone: list[str] = []
        for piece in pieces:
            first, last = piece[0], piece[-1]
            if first == " " and ("!" <= last <= "~" or last.isalnum()):
                before_blank.append(piece)
            elif last.isascii() and last.isalnum() and (first == "\n" or first in _MARK) and self._cuts is _MARKS:
                before_mark.append(piece)
            else:
                alone.append(piece)
        runs = []
        for some in (before_blank, before_mark):
            size = AT_ONCE
            for piece in some:
                if size >= AT_ONCE:
                    runs.append([])
                    size = 0
                runs[-1].append(piece)
                size += len(piece)
        for run in list(runs):
            if any(split.search("".join(run)) for split in self._splits):  # joined, they make an added token
                runs.remove(run)
                alone += run
        return runs, alone

    def _assembled(self, segments: list[str], parts: list[list[str]]) -> InPieces:
        import numpy as np

        starts, tokens, chunks = [0], [0], []
        for segment, part in zip(segments, parts, strict=True):
            chunk = b"".join(map(self._ids.__getitem__, part))
            chunks.append(chunk)
            starts.append(starts[-1] + len(segment))
            tokens.append(tokens[-1] + len(chunk) // 4)
        ids = np.frombuffer(b"".join(chunks), dtype=np.int32) if tokens[-1] else np.empty(0, dtype=np.int32)
        return InPieces(self, starts, tokens, [*parts, []], ids)

    def _forget(self) -> None:
        self._ids: dict[str, bytes] = {}
        self._offsets: dict[str, Any] = {}
        self._recent: dict[str, Any] = {}  # encodings of the last batch, for their offsets
        self._held = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_backend": self._backend}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_backend"])  # type: ignore[misc]


def _alternation(contents: Iterable[str]) -> re.Pattern[str]:
    return re.compile("(" + "|".join(map(re.escape, sorted(filter(None, contents), key=len, reverse=True))) + ")")


def _count(offsets: Any, at: int, whole: bool) -> int:
    import numpy as np

    side = "right" if whole else "left"
    return int(np.searchsorted(offsets[:, 1 if whole else 0], at, side))
