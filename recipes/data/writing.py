"""Shards, final files and their renames. Every function leaves either the whole file or none."""

from __future__ import annotations

import datetime
import decimal
import fcntl
import gzip
import hashlib
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Chunk, Raw, Unreadable
from rufus_plugins.recipes.data.tool import RecordTool, SetAside

SHOWN = 2_000
"""Characters of a record that the rejects file keeps. Ours."""

ROW_GROUP_BYTES = 32 << 20
"""JSON bytes of a Parquet row group. Ours."""


def format_of(output: Path) -> str:
    for suffix in (".jsonl.gz", ".jsonl", ".parquet", ".arrow"):
        if output.name.endswith(suffix) and output.name != suffix:
            return suffix[1:]
    raise ConfigError(f"--output {output} must end in .jsonl, .jsonl.gz, .parquet or .arrow.")


def dumped(record: Mapping[str, Any]) -> bytes:
    """One JSON line. NaN becomes null; raises `ValueError` or `TypeError` for what JSON or UTF-8 cannot hold."""
    try:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
    except ValueError:
        text = json.dumps(
            _without_nan(record), ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
        )
    return text.encode("utf-8") + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if hasattr(value, "tolist"):  # numpy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Mapping):
        return {k: _without_nan(v) for k, v in value.items()}
    return [_without_nan(v) for v in value] if isinstance(value, (list, tuple)) else value


def shard_name(index: int) -> str:
    return f"{index:07d}"


def marker_of(shard: Path) -> Path:
    """The file that says a shard is whole; written last."""
    return shard.with_name(shard.name + ".done")


def write_shard(tool: RecordTool, chunk: Chunk, shard: Path) -> None:
    """Processes one chunk: `shard.jsonl`, `shard.rejected.jsonl`, then the marker with the counts."""
    tool.notes = Counter()
    items = list(chunk.items())
    reasons: Counter[str] = Counter()
    written = 0
    pid = os.getpid()
    made, rejected = (shard.with_name(f"{shard.name}.{kind}.{pid}.tmp") for kind in ("jsonl", "rejected.jsonl"))
    with made.open("wb") as out, rejected.open("wb") as aside:

        def set_aside(where: str, reason: str, detail: str, record: Any = None) -> None:
            reasons[reason] += 1
            aside.write(_rejection(where, reason, detail, record if tool.keeps_rejected else None))

        for item in items:
            if isinstance(item, Unreadable):
                set_aside(item.where, item.reason, item.detail)
        for result in tool.batch([item for item in items if isinstance(item, Raw)]):
            if isinstance(result, SetAside):
                set_aside(result.raw.where, result.reason, result.detail, result.raw.record)
                continue
            try:
                out.write(dumped(result))
            except (TypeError, ValueError, RecursionError) as error:
                where = f"{chunk.file}, a record of the {chunk.size} from {chunk.first} on"
                reason = "bad_text" if isinstance(error, UnicodeEncodeError) else "no_json"
                set_aside(where, reason, f"what the tool made cannot be written: {error}", result)
            else:
                written += 1
    marker = {"read": len(items), "written": written, "reasons": dict(reasons), "notes": dict(tool.notes)}
    made.replace(shard.with_name(shard.name + ".jsonl"))
    rejected.replace(shard.with_name(shard.name + ".rejected.jsonl"))
    done = shard.with_name(f"{shard.name}.done.{pid}.tmp")
    done.write_text(json.dumps(marker))
    done.replace(marker_of(shard))


def _rejection(where: str, reason: str, detail: str, record: Any) -> bytes:
    shown = None if record is None else json.dumps(record, ensure_ascii=True, default=repr)[:SHOWN]
    return json.dumps({"where": where, "reason": reason, "detail": detail[:SHOWN], "record": shown}).encode() + b"\n"


def read_shard(shard: Path) -> Iterator[dict[str, Any]]:
    with shard.with_name(shard.name + ".jsonl").open("rb") as stream:
        for line in stream:
            yield json.loads(line)


def assemble(tool: RecordTool, shards: Sequence[Path], target: Path, output: Path, schema: Any) -> dict[str, Any]:
    """The shards as one file in the output's format; returns its size and digest."""
    kind = format_of(output)
    if kind in ("parquet", "arrow"):
        _columns(tool, shards, target, output, schema)
    else:
        with target.open("wb") as plain:
            out = gzip.GzipFile("", "wb", 6, plain, mtime=0) if kind == "jsonl.gz" else plain
            for shard in shards:
                with shard.with_name(shard.name + ".jsonl").open("rb") as stream:
                    shutil.copyfileobj(stream, out, 1 << 20)
            if out is not plain:
                out.close()
    return description(target)


def assemble_rejected(shards: Sequence[Path], target: Path) -> dict[str, Any]:
    with target.open("wb") as out:
        for shard in shards:
            with shard.with_name(shard.name + ".rejected.jsonl").open("rb") as stream:
                shutil.copyfileobj(stream, out, 1 << 20)
    return description(target)


def _columns(tool: RecordTool, shards: Sequence[Path], target: Path, output: Path, schema: Any) -> None:
    """Parquet, or Arrow's stream format, which is read by mapping it."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Writing Parquet needs pyarrow: pip install 'rufus-plugins[data]'") from error
    try:
        if schema is None:
            schema = pa.schema([])
            for shard in shards:
                rows = list(read_shard(shard))
                if rows:
                    found = _all_columns(pa, rows)
                    schema = pa.unify_schemas([schema, found], promote_options="permissive")
        if format_of(output) == "parquet":
            writer = pq.ParquetWriter(target, schema, compression="zstd")
        else:
            writer = pa.ipc.new_stream(str(target), schema)
        with writer:
            pending: list[dict[str, Any]] = []
            size = 0
            for shard in shards:
                pending += read_shard(shard)
                size += shard.with_name(shard.name + ".jsonl").stat().st_size
                if size >= ROW_GROUP_BYTES:
                    writer.write_table(tool.table(pending, schema))
                    pending, size = [], 0
            if pending or not shards:
                writer.write_table(tool.table(pending, schema))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(f"These records do not fit one schema ({error}). Write a .jsonl file instead.") from error


def _all_columns(pa: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """`from_pylist` takes the columns of the first row; later rows may have more."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([pa.field(n, pa.array([row.get(n) for row in rows]).type) for n in names])


def description(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return {"bytes": stream.tell(), "sha256": digest}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def write_atomically(path: Path, content: bytes | str) -> None:
    """For small files: reports, manifests, pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    part.replace(path)


def finished(output: Path, key: str) -> dict[str, Any] | None:
    """The manifest of a whole output of exactly this work, else None."""
    try:
        manifest = json.loads(output.with_name(output.name + ".manifest.json").read_text())
        same = manifest["key"] == key and manifest["output"]["bytes"] == output.stat().st_size
        if same and manifest["output"]["sha256"] == description(output)["sha256"]:
            return manifest
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        pass
    return None


def check_free(output: Path, overwrite: bool) -> None:
    if output.is_dir():
        raise ConfigError(f"{output} is a directory: name a file.")
    if output.exists() and not overwrite:
        made = output.with_name(output.name + ".manifest.json").exists()
        what = "was made of other input or with other options" if made else "was not made by this tool"
        raise ConfigError(f"{output} exists and {what}: choose another --output, or give --overwrite.")


PUBLISHING = "publishing"
"""Name of the marker in `OUTPUT.partial/` after which an `OUTPUT` without manifest is our own."""


def is_publishing(folder: Path, key: str) -> bool:
    """Whether a run with this key was killed between its renames."""
    return (folder / PUBLISHING).exists() and (folder / "key").exists() and (folder / "key").read_text() == key


class Busy(ConfigError):
    """Another process is at work on this output."""


class Lock:
    """`OUTPUT.partial/`, held by one process; work with another key is thrown away, said on stderr."""

    def __init__(self, folder: Path, key: str):
        self.folder, self.key = folder, key

    def __enter__(self) -> Lock:
        self._hold()
        marker = self.folder / "key"
        old = marker.read_text() if marker.exists() else None
        if old != self.key:
            others = [p for p in self.folder.iterdir() if p.name != "lock"]
            if others:
                print(f"{self.folder} holds work with other input or options: started anew", file=sys.stderr)
            for path in others:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            write_atomically(marker, self.key)
        return self

    def _hold(self) -> None:
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = (self.folder / "lock").open("a")
            except FileNotFoundError:
                continue  # removed in between by a run that ended
            except OSError as error:
                raise ConfigError(f"{self.folder} cannot be written: {error.strerror}.") from error
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._file.close()
                raise Busy(f"Another process is writing {self.folder}: wait for it or end it.") from error
            try:
                if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.folder / "lock")):
                    return
            except FileNotFoundError:
                pass
            self._file.close()  # the file was removed after it was opened: its lock keeps nobody out

    def __exit__(self, *_: Any) -> None:
        self._file.close()


def publish(moves: Mapping[Path, Path], manifest: Mapping[str, Any], target: Path) -> None:
    """Renames the files into place, then writes the manifest: with it the output counts as whole."""
    for source in moves:
        (source.parent / PUBLISHING).touch()
    target.unlink(missing_ok=True)
    for source, place in moves.items():
        source.replace(place)
    write_atomically(target, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
