"""Streams raw records from files, directories or the Hugging Face hub, in chunks of bounded size.

A record that cannot be read becomes an `Unreadable` in the stream, never an exception. What makes a whole file
unusable (no such file, not the format it claims, cut off Parquet or gzip) is a `ConfigError`.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
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


def file_chunks(
    path: Path, shown: str, number: int = 0, *, chunk_bytes: int = CHUNK_BYTES, chunk_records: int = CHUNK_RECORDS
) -> Iterator[Chunk]:
    """The file in chunks; their bounds depend on the file and the two limits alone. Raises `ConfigError`."""
    try:
        with path.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if not head:
        raise ConfigError(f"{path} is empty.")
    if head.startswith(b"PAR1"):
        return _parquet(path, shown, number, chunk_bytes, chunk_records)
    if path.suffix == ".parquet":
        raise ConfigError(f"{path} is no Parquet file (it does not start with PAR1). JSONL is called .jsonl.")
    if path.suffix == ".arrow":
        return _arrow(path, shown, number, chunk_bytes, chunk_records)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{path} is UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 {path} > new.jsonl")
    if head.startswith((b"PK\x03\x04", b"BZh", b"\xfd7zXZ")):
        raise ConfigError(f"{path} is an archive or compressed in a way that is not read here. Unpack it first.")
    return _text(path, shown, number, chunk_bytes, chunk_records)


_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, OSError)


def _text(path: Path, shown: str, number: int, chunk_bytes: int, chunk_records: int) -> Iterator[Chunk]:
    try:
        with _opened(path) as stream:
            head = stream.peek(64)[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
            if head.startswith(b"["):
                yield from _array(path, stream, shown, number, chunk_bytes, chunk_records)
            else:
                yield from _lines(stream, shown, number, chunk_bytes, chunk_records)
    except _DAMAGE as error:
        raise ConfigError(f"{path} is cut off or damaged: {error}. Fetch it again.") from error


def _opened(path: Path) -> io.BufferedReader:
    with path.open("rb") as stream:
        head = stream.read(4)
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(gzip.open(path, "rb"))  # type: ignore[arg-type]
    if head == b"\x28\xb5\x2f\xfd":
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _lines(stream: io.BufferedReader, shown: str, number: int, limit: int, most: int) -> Iterator[Chunk]:
    lines: list[bytes] = []
    size, first, line_number = 0, 1, 0
    start = number - 1  # line n of the file is record start + n

    def chunk() -> Chunk:
        return Chunk(shown, first, start + first, len(lines), b"".join(lines))

    while line := stream.readline(LARGEST_RECORD + 1):
        line_number += 1
        if line_number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf") or b"\n"
        too_large = len(line) > LARGEST_RECORD
        if lines and (too_large or size + len(line) > limit or len(lines) >= most):
            yield chunk()
            lines, size, first = [], 0, line_number
        if too_large:
            while line and not line.endswith(b"\n"):
                line = stream.readline(1 << 20)
            yield Chunk(shown, line_number, start + line_number, 1, None)
            first = line_number + 1
            continue
        lines.append(line)
        size += len(line)
    if lines:
        yield chunk()


def _array(path: Path, stream: io.BufferedReader, shown: str, number: int, limit: int, most: int) -> Iterator[Chunk]:
    """One JSON array, element by element."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    decoder = json.JSONDecoder(parse_constant=_constant)
    buffer, at, done = "", 0, False
    rows: list[Any] = []
    size = first = 0

    def more() -> bool:
        nonlocal buffer, at
        try:
            new = text.read(1 << 20)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8 after element {first + len(rows)}: {error.reason}.") from error
        buffer, at = buffer[at:] + new, 0
        return bool(new)

    def skip(characters: str) -> str:
        nonlocal at
        while True:
            while at < len(buffer) and buffer[at] in characters:
                at += 1
            if at < len(buffer) or not more():
                return buffer[at : at + 1]

    skip(" \t\r\n")
    at += 1  # the opening bracket
    while not done:
        mark = skip(" \t\r\n,")
        if mark == "]":
            break
        while True:
            try:
                row, end = decoder.raw_decode(buffer, at)
                if end < len(buffer) or not mark:  # a number may go on in the next block
                    break
            except (ValueError, RecursionError) as error:
                if len(buffer) - at > LARGEST_RECORD:
                    why = f"element {first + len(rows)} is no JSON or has more than {LARGEST_RECORD >> 20} MiB"
                    raise ConfigError(f"{path}: {why}: {error}.") from error
            if not more():
                after = f"after element {first + len(rows)}"
                raise ConfigError(f"{path} ends in the middle of its array, {after}: cut off? Fetch it again.")
        size += end - at
        at = end
        rows.append(row)
        if size >= limit or len(rows) >= most:
            yield Chunk(shown, first, number + first, len(rows), rows)
            first, size, rows = first + len(rows), 0, []
    if rows:
        yield Chunk(shown, first, number + first, len(rows), rows)


def _constant(name: str) -> None:
    """NaN, which no JSON knows but many corpora hold, is read as null; an infinity is refused."""
    if name != "NaN":
        raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_constant)


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


def _parquet(path: Path, shown: str, number: int, limit: int, most: int) -> Iterator[Chunk]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Reading Parquet needs pyarrow: pip install 'rufus-plugins[data]'") from error
    try:
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is no whole Parquet file, probably cut off: {error}. Fetch it again.") from error
    with file:
        meta = file.metadata
        if not meta.num_rows:
            raise ConfigError(f"{path} has no rows.")
        total = sum(meta.row_group(g).total_byte_size for g in range(meta.num_row_groups))
        rows = max(1, min(most, limit * meta.num_rows // max(total, 1)))
        batches, first = file.iter_batches(batch_size=rows, use_threads=False), 0
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise ConfigError(f"{path} is damaged after row {first}: {error}. Fetch it again.") from error
            if batch is None:
                return
            if batch.num_rows:
                yield Chunk(shown, first, number + first, batch.num_rows, batch)
            first += batch.num_rows


def _arrow(path: Path, shown: str, number: int, limit: int, most: int) -> Iterator[Chunk]:
    """A shard of a dataset that `datasets` saved to disk: Arrow's stream format, mapped and not loaded."""
    import pyarrow as pa

    first = 0
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as batches:
            for batch in batches:
                rows = max(1, min(most, limit * batch.num_rows // max(batch.nbytes, 1)))
                for start in range(0, batch.num_rows, rows):
                    part = batch.slice(start, rows)
                    yield Chunk(shown, first, number + first, part.num_rows, part)
                    first += part.num_rows
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is damaged after row {first}: {error}. Save it again.") from error


def hub_revision(name: str) -> str | None:
    """The commit that a hub dataset is at, so that a resumed run reads the same; None if the hub does not say."""
    try:
        from huggingface_hub import HfApi

        return HfApi().dataset_info(name, timeout=20).sha
    except Exception:  # no network, no such dataset: reading says it better
        return None


def hub_chunks(
    name: str, split: str, subset: str | None, revision: str | None = None, *, chunk_records: int = 256
) -> Iterator[Chunk]:
    first, rows = 0, []
    for row in _hub_rows(name, split, subset, revision):
        rows.append(row)
        if len(rows) >= chunk_records:
            yield Chunk(name, first, first, len(rows), rows, True)
            first, rows = first + len(rows), []
    if rows:
        yield Chunk(name, first, first, len(rows), rows, True)
    elif not first:
        raise ConfigError(f"hub dataset {name} has no rows.")


def _hub_rows(name: str, split: str, subset: str | None, revision: str | None) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError("Reading from the hub needs datasets: pip install 'rufus-plugins[data]'") from error
    try:
        rows = iter(datasets.load_dataset(name, subset, split=split, revision=revision, streaming=True))
    except Exception as error:  # the library raises a dozen unrelated types, for a wrong name and for no network
        raise ConfigError(
            f"There is no file {name}, and the hub dataset of this name (split {split!r}, subset {subset!r}) cannot be "
            f"loaded: {type(error).__name__}: {error}"
        ) from error
    number = 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # as above
            raise ConfigError(
                f"hub dataset {name} broke off after row {number}: {type(error).__name__}: {error}"
            ) from error
        yield row
        number += 1
