"""Streams raw records from a file, a directory or the Hugging Face hub, one at a time.

A record that cannot be read becomes an `Unreadable` in the stream, never an exception. What makes the whole source
unusable (no such file, not the format it claims, cut off Parquet) is a `ConfigError`.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".ndjson", ".json")


@dataclass(frozen=True)
class Raw:
    """One record as it stands in the source."""

    where: str
    """`file:line` or `file row n`, for messages."""
    record: dict[str, Any]


@dataclass(frozen=True)
class Unreadable:
    where: str
    reason: str
    detail: str


def read(source: str, split: str = "train", subset: str | None = None) -> Iterator[Raw | Unreadable]:
    """The records of `source`: a JSONL or Parquet file, a directory of them, or the name of a hub dataset.

    `split` and `subset` are for hub datasets. Raises `ConfigError` at once if there is no such source, and during
    iteration if a file is broken as a whole.
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.name.endswith(SUFFIXES))
        if not files:
            raise ConfigError(f"{source} holds no {', '.join(SUFFIXES)} file.")
        return (item for file in files for item in _file(file))
    if path.is_file():
        return _file(path)
    if path.exists():
        raise ConfigError(f"{source} is neither a file nor a directory.")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith(".") and not source.endswith(SUFFIXES):
        return _hub(source, split, subset)
    raise ConfigError(
        f"There is no file {source}. Give a {', '.join(SUFFIXES)} file, a directory of them, or the name of a hub "
        f"dataset (owner/name)."
    )


def _file(path: Path) -> Iterator[Raw | Unreadable]:
    try:
        with path.open("rb") as stream:
            head = stream.read(16)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if not head:
        raise ConfigError(f"{path} is empty.")
    if head.startswith(b"PAR1"):
        return _parquet(path)
    if path.suffix == ".parquet":
        raise ConfigError(f"{path} is no Parquet file (it does not start with PAR1). JSONL is called .jsonl.")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{path} is UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 {path} > new.jsonl")
    if head.startswith((b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        raise ConfigError(f"{path} is an archive or compressed in a way that is not read here. Unpack it first.")
    if head.lstrip().startswith(b"["):
        raise ConfigError(f"{path} holds one JSON array, which cannot be streamed. Convert it: jq -c '.[]' {path}")
    return _jsonl(path, compressed=head.startswith(b"\x1f\x8b"))


def _jsonl(path: Path, compressed: bool) -> Iterator[Raw | Unreadable]:
    readable = 0
    with gzip.open(path, "rb") if compressed else path.open("rb") as stream:
        lines = enumerate(stream, 1)
        while True:
            try:
                number, line = next(lines)
            except StopIteration:
                break
            except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
                raise ConfigError(f"{path} is cut off or damaged: {error}. Fetch it again.") from error
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            item = _line(f"{path.name}:{number}", line)
            readable += isinstance(item, Raw)
            yield item
    if not readable:
        raise ConfigError(f"{path}: not one line is a JSON object in UTF-8. Is it a JSONL file?")


def _line(where: str, line: bytes) -> Raw | Unreadable:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Unreadable(where, "not_utf8", f"byte {error.start}: {error.reason}")
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            return Unreadable(where, "cut_off", "the file ends in the middle of this line")
        return Unreadable(where, "bad_json", str(error))
    if not isinstance(record, dict):
        return Unreadable(where, "no_object", f"the line is a JSON {type(record).__name__}")
    return Raw(where, record)


def _parquet(path: Path) -> Iterator[Raw | Unreadable]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Reading Parquet needs pyarrow: pip install 'rufus-plugins[data]'") from error
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is no whole Parquet file, probably cut off: {error}. Fetch it again.") from error
    with file:
        if not file.metadata.num_rows:
            raise ConfigError(f"{path} has no rows.")
        batches, number = file.iter_batches(batch_size=64), 0
        while True:
            try:
                batch = next(batches, None)
                rows = batch.to_pylist() if batch is not None else None
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path} is damaged after row {number}: {error}. Fetch it again.") from error
            if rows is None:
                return
            for row in rows:
                yield Raw(f"{path.name} row {number}", row)
                number += 1


def _hub(name: str, split: str, subset: str | None) -> Iterator[Raw | Unreadable]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError("Reading from the hub needs datasets: pip install 'rufus-plugins[data]'") from error
    try:
        rows = iter(datasets.load_dataset(name, subset, split=split, streaming=True))
    except Exception as error:  # the library raises a dozen unrelated types, for a wrong name and for no network
        raise ConfigError(
            f"There is no file {name}, and the hub dataset of this name (split {split!r}, subset {subset!r}) cannot be "
            f"loaded: {type(error).__name__}: {error}"
        ) from error
    return _hub_rows(name, rows)


def _hub_rows(name: str, rows: Iterator[dict[str, Any]]) -> Iterator[Raw | Unreadable]:
    number = 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except Exception as error:  # as above
            raise ConfigError(
                f"hub dataset {name} broke off after row {number}: {type(error).__name__}: {error}"
            ) from error
        yield Raw(f"{name} row {number}", row)
        number += 1
    if not number:
        raise ConfigError(f"hub dataset {name} has no rows.")
