"""The formats of `records.py`: each file in chunks of bounded size, whose bounds depend on the file alone."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data import records
from rufus_plugins.recipes.data.records import CHUNK_BYTES, CHUNK_RECORDS, Chunk, constant


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

    while line := stream.readline(records.LARGEST_RECORD + 1):
        line_number += 1
        if line_number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf") or b"\n"
        too_large = len(line) > records.LARGEST_RECORD
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
    decoder = json.JSONDecoder(parse_constant=constant)
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
                if len(buffer) - at > records.LARGEST_RECORD:
                    why = f"element {first + len(rows)} is no JSON or has more than {records.LARGEST_RECORD >> 20} MiB"
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


def _parquet(path: Path, shown: str, number: int, limit: int, most: int) -> Iterator[Chunk]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Reading Parquet needs pyarrow: pip install 'rufus-plugins[data]'") from error
    try:
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{path} is no whole Parquet file, probably cut off: {_one_line(error)}. Fetch it again."
        ) from error
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
                raise ConfigError(
                    f"{path} is damaged after row {first}: {_one_line(error)}. Fetch it again."
                ) from error
            if batch is None:
                return
            if batch.num_rows:
                yield Chunk(shown, first, number + first, batch.num_rows, batch)
            first += batch.num_rows


def _one_line(error: Exception) -> str:
    """Thrift's messages have several."""
    return " ".join(str(error).split()).rstrip(".")


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
