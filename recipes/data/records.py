"""Raw records: what one is, and the streams of them from files, directories or the Hugging Face hub.

A record that cannot be read becomes an `Unreadable` in the stream, never an exception. What makes a whole file
unusable (no such file, not the format it claims, cut off Parquet or gzip) is a `ConfigError`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".json", ".json.gz", ".arrow")

CHUNK_BYTES = 4 << 20
CHUNK_RECORDS = 1024
"""A chunk ends at whichever comes first. Ours: parsed, it takes some 50 MB."""

LARGEST_RECORD = 32 << 20
"""Bytes of a record beyond which it is set aside unread. Ours: 128K tokens of text are about 0.5 MB."""


class Refused(DataError):
    """The record cannot be used; `reason` is the name under which it is counted."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(detail or reason)
        self.reason = reason

    def __reduce__(self) -> Any:
        return type(self), (self.reason, str(self))


@dataclass(frozen=True)
class Raw:
    """One record as it stands in the source."""

    where: str
    """`file:line` or `file row n`, for messages."""
    record: dict[str, Any]
    number: int = -1
    """Its place in the whole input: lines and rows counted from 0 over all files, unreadable and blank ones too."""
    columnar: bool = False
    """From Parquet, Arrow or the hub, where a key that one record has is null in all the others."""

    def without_nulls(self) -> dict[str, Any]:
        """The record without the keys that columns have filled in, at every depth; a record from JSON as it is."""
        return _without_nulls(self.record) if self.columnar else self.record


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Unreadable:
    where: str
    reason: str
    detail: str
    number: int = -1


@dataclass(frozen=True)
class Chunk:
    """Consecutive records, not yet parsed, so that parsing is the work of whoever processes them."""

    file: str
    """As shown in messages."""
    first: int
    """Line (from 1) or row (from 0) of the first record within the file."""
    number: int
    """Place of the first record in the whole input."""
    size: int
    """Lines or rows."""
    payload: Any
    """`bytes` of whole lines, an Arrow record batch, a list of parsed records, or None if a line is too large."""
    columnar: bool = False
    """For a list: as in `Raw`."""

    def items(self) -> Iterator[Raw | Unreadable]:
        if self.payload is None:
            detail = f"the record has more than {LARGEST_RECORD >> 20} MiB"
            yield Unreadable(f"{self.file}:{self.first}", "too_large", detail, self.number)
        elif isinstance(self.payload, bytes):
            for i, line in enumerate(io.BytesIO(self.payload)):
                if line.strip():
                    yield _line(f"{self.file}:{self.first + i}", line, self.number + i)
        elif isinstance(self.payload, list):
            for i, row in enumerate(self.payload):
                yield _row(f"{self.file} row {self.first + i}", row, self.number + i, self.columnar)
        else:
            yield from self._arrow_rows()

    def _arrow_rows(self) -> Iterator[Raw | Unreadable]:
        for i in range(self.size):
            where, row = f"{self.file} row {self.first + i}", self.payload.slice(i, 1)
            if row.nbytes > LARGEST_RECORD:
                detail = f"the record has more than {LARGEST_RECORD >> 20} MiB"
                yield Unreadable(where, "too_large", detail, self.number + i)
                continue
            try:
                record = row.to_pylist()[0]
            except (UnicodeDecodeError, ValueError, OverflowError) as error:
                reason = "not_utf8" if isinstance(error, UnicodeDecodeError) else "bad_value"
                yield Unreadable(where, reason, str(error), self.number + i)
                continue
            yield Raw(where, record, self.number + i, True)


def read(source: str, split: str = "train", subset: str | None = None) -> Iterator[Raw | Unreadable]:
    """The records of `source`: a JSONL, JSON or Parquet file, a directory of them, or the name of a hub dataset.

    `split` and `subset` are for hub datasets. Raises `ConfigError` at once if there is no such source, and during
    iteration if a file is broken as a whole or has not one readable record.
    """
    files = find([source])
    return _read(files or source, split, subset)


def _read(files: Sequence[Path] | str, split: str, subset: str | None) -> Iterator[Raw | Unreadable]:
    from rufus_plugins.recipes.data.record_files import file_chunks, hub_chunks

    if isinstance(files, str):
        for chunk in hub_chunks(files, split, subset):
            yield from chunk.items()
        return
    number = 0
    for path in files:
        readable = 0
        for chunk in file_chunks(path, path.name, number):
            number = chunk.number + chunk.size
            for item in chunk.items():
                readable += isinstance(item, Raw)
                yield item
        if not readable:
            raise ConfigError(nothing_readable(path))


def nothing_readable(source: Any) -> str:
    return f"{source}: not one line is a JSON object in UTF-8. Is it a JSONL file?"


def find(sources: Sequence[str]) -> list[Path]:
    """The files of local sources in a fixed order; empty if the one source is the name of a hub dataset."""
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found = sorted(f for f in path.iterdir() if f.name.endswith(SUFFIXES) and f.name not in _SIDE_FILES)
            found = [f for f in found if not f.name.endswith((".manifest.json", ".rejected.jsonl"))]
            if any(f.suffix == ".arrow" for f in found):
                found = [f for f in found if f.suffix == ".arrow"]
            if not found:
                raise ConfigError(f"{source} holds no {', '.join(SUFFIXES)} file.")
            files += found
        elif path.is_file():
            files.append(path)
        elif path.exists():
            raise ConfigError(f"{source} is neither a file nor a directory.")
        elif _hub_name(source):
            if len(sources) > 1:
                raise ConfigError(f"{source} is no file here, and a hub dataset must be the only input.")
        else:
            raise ConfigError(
                f"There is no file {source}. Give a {', '.join(SUFFIXES)} file, a directory of them, or the name of "
                f"a hub dataset (owner/name)."
            )
    return files


_SIDE_FILES = ("dataset_info.json", "state.json", "dataset_dict.json", "dataset_infos.json")


def _hub_name(source: str) -> bool:
    return (
        bool(re.fullmatch(r"[\w.-]+/[\w.-]+", source)) and not source.startswith(".") and not source.endswith(SUFFIXES)
    )


def constant(name: str) -> None:
    """NaN, which no JSON knows but many corpora hold, is read as null; an infinity is refused."""
    if name != "NaN":
        raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=constant)


def _line(where: str, line: bytes, number: int) -> Raw | Unreadable:
    try:
        record = _DECODER.decode(line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        return Unreadable(where, "not_utf8", f"byte {error.start}: {error.reason}", number)
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            return Unreadable(where, "cut_off", "the file ends in the middle of this line", number)
        return Unreadable(where, "bad_json", str(error), number)
    if not isinstance(record, dict):
        return Unreadable(where, "no_object", f"the line is a JSON {type(record).__name__}", number)
    return Raw(where, record, number)


def _row(where: str, record: Any, number: int, columnar: bool) -> Raw | Unreadable:
    if not isinstance(record, dict):
        return Unreadable(where, "no_object", f"the element is a JSON {type(record).__name__}", number)
    return Raw(where, record, number, columnar)
