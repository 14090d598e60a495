"""Runs a `RecordTool` over an input of any size: `execute(tool, input, output)`.

Work is done in chunks of the input (records.py). Each finished chunk is a shard in `OUTPUT.partial/`; a killed run
goes on with the chunks that are missing, and its output is the same, byte for byte. The folder carries a key made
of the tool, its fields and the content of the inputs, so that changed work is never mixed with old.

Published by renames, the manifest last: `OUTPUT`, `OUTPUT.rejected.jsonl`, what the tool adds, `OUTPUT.manifest.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data import executors, writing
from rufus_plugins.recipes.data.record_files import file_chunks, hub_chunks, hub_revision
from rufus_plugins.recipes.data.records import Chunk, Raw, find, nothing_readable
from rufus_plugins.recipes.data.tool import RecordTool, parameters

UNREAD = ("not_utf8", "bad_json", "cut_off", "no_object", "too_large", "bad_value")
"""Reasons of records that could not even be read."""


def execute(
    tool: RecordTool,
    input: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    split: str = "train",
    subset: str | None = None,
    workers: int | None = None,
    ray: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Writes `output` (.jsonl, .jsonl.gz, .parquet or .arrow) and what goes with it; returns the manifest.

    `input`: files, directories, or one hub dataset (then `split` and `subset`). `workers`: processes; 1 = in this one,
    None = this one for a small input and else one per CPU. `ray`: on Ray Data instead, on the cluster of RAY_ADDRESS
    or a local one; the output's folder must then be the same on every node. An output that is already whole for the
    same input and fields is left as it is; another needs `overwrite`. Raises `ConfigError`.
    """
    sources = [str(s) for s in ([input] if isinstance(input, (str, Path)) else input)]
    if not sources:
        raise ConfigError("No input was given.")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers is {workers}; at least 1 is needed.")
    job = Job(tool, sources, Path(output), split, subset)
    job.workers, job.ray, job.progress = workers, ray, progress
    done = writing.finished(job.output, job.key)
    if done is None and not writing.is_publishing(job.folder, job.key):
        writing.check_free(job.output, overwrite)
    if done is None:
        with job.locked():
            done = writing.finished(job.output, job.key)  # by another process, meanwhile
            if done is None:
                tool.survey(job)
                job.work("records", tool)
                return job.publish()
    job.tidy()
    return done | {"already_there": True}


class Job:
    """One run of one tool: its input, its unfinished work and its output."""

    def __init__(self, tool: RecordTool, sources: Sequence[str], output: Path, split: str, subset: str | None):
        if writing.format_of(output) not in tool.formats:
            raise ConfigError(f"--output {output}: this tool writes .{' or .'.join(tool.formats)}.")
        self.tool, self.output = tool, output
        self.folder = output.with_name(output.name + ".partial")
        self.split, self.subset = split, subset
        self.sources = list(sources)
        self.files = find(self.sources)
        if output.resolve() in [f.resolve() for f in self.files]:
            raise ConfigError(f"{output} is the input too: choose another --output.")
        self.revision = None if self.files else hub_revision(self.sources[0])
        hub = {"hub": self.sources[0], "split": split, "subset": subset, "revision": self.revision}
        self.inputs = fingerprints(self.files) if self.files else [hub]
        also = [Path(p) for p in tool.reads()]
        for path in also:
            if not path.is_file():
                raise ConfigError(f"{type(tool).__name__} reads {path}, which is no file.")
        self.also_read = fingerprints(also)
        self.name = getattr(type(tool), "name", None) or type(tool).__name__.lower()
        self.identity = {
            "tool": self.name,
            "tool_version": tool.version,
            "package_version": importlib.metadata.version("rufus-plugins"),
            "parameters": {**parameters(tool), **tool.identity()},
            "inputs": self.inputs,
            "also_read": self.also_read,
        }
        content = [{k: v for k, v in f.items() if k != "path"} for f in self.inputs + self.also_read]
        keyed = {**self.identity, "inputs": content, "also_read": None, "format": writing.format_of(output)}
        self.key = hashlib.sha256(json.dumps(keyed, sort_keys=True).encode()).hexdigest()
        self.workers: int | None = None
        self.ray = self.progress = False
        self.counts: Counter[str] = Counter()
        self._extras: dict[str, Path] = {}
        self._passes: dict[str, int] = {}

    def locked(self) -> writing.Lock:
        """Holds `OUTPUT.partial/` for this process, emptied if it belongs to other work."""
        return writing.Lock(self.folder, self.key)

    def tidy(self) -> None:
        """Removes what is left of this work after its output was published, if nobody is at it."""
        key = self.folder / "key"
        if self.folder.exists() and (not key.exists() or key.read_text() == self.key):
            with contextlib.suppress(writing.Busy), self.locked():
                shutil.rmtree(self.folder)

    def chunks(self) -> Iterator[Chunk]:
        """The whole input, streamed."""
        limits = {"chunk_bytes": self.tool.chunk_bytes, "chunk_records": self.tool.chunk_records}
        if not self.files:
            named = (self.sources[0], self.split, self.subset, self.revision)
            yield from hub_chunks(*named, chunk_records=self.tool.chunk_records)
            return
        number = 0
        twice = Counter(f.name for f in self.files)
        for path in self.files:
            for chunk in file_chunks(path, path.name if twice[path.name] == 1 else str(path), number, **limits):
                number = chunk.number + chunk.size
                yield chunk

    def records(self) -> Iterator[Raw]:
        """Every readable record, in this process: for surveys. Unreadable ones are counted in the main pass."""
        for chunk in self.chunks():
            yield from (item for item in chunk.items() if isinstance(item, Raw))

    def map(self, name: str, tool: RecordTool) -> Iterator[dict[str, Any]]:
        """A pass of its own over the input, with workers and resumable; what `tool` made, in order. A record that it
        sets aside is left out here: the main pass decides."""
        self.work(name, tool)
        for shard in self.shards(name):
            yield from writing.read_shard(shard)

    def work(self, name: str, tool: RecordTool) -> None:
        """Does what is missing of a pass."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self._passes[name] = executors.run_all(self, tool, folder)

    def shards(self, name: str = "records") -> Iterator[Path]:
        """The finished shards of a pass, in order, without their suffix."""
        return (self.folder / name / writing.shard_name(i) for i in range(self._passes[name]))

    def extra(self, suffix: str) -> Path:
        """Where to write a further file; it is published as `OUTPUT.suffix` together with the output."""
        self._extras[suffix] = self.folder / f"extra.{suffix}"
        return self._extras[suffix]

    def publish(self) -> dict[str, Any]:
        reasons: Counter[str] = Counter()
        notes: Counter[str] = Counter()
        read = written = 0
        for shard in self.shards():
            marker = json.loads(writing.marker_of(shard).read_text())
            read, written = read + marker["read"], written + marker["written"]
            reasons.update(marker["reasons"])
            notes.update(marker["notes"])
        if read == sum(reasons[r] for r in UNREAD):
            raise ConfigError(nothing_readable(", ".join(self.sources)))
        self.counts = Counter(read=read, written=written, set_aside=sum(reasons.values()))
        added = dict(self.tool.finish(self))
        shards = list(self.shards())
        schema = self.tool.schema() if callable(self.tool.schema) else self.tool.schema
        output = writing.assemble(self.tool, shards, self.folder / "output", self.output, schema)
        rejected = writing.assemble_rejected(shards, self.folder / "rejected")
        extras = {s: writing.description(p) for s, p in sorted(self._extras.items()) if p.exists()}
        manifest = {
            **self.identity,
            "key": self.key,
            "counts": dict(self.counts),
            "set_aside": dict(sorted(reasons.items())),
            "notes": dict(sorted(notes.items())),
            **added,
            "output": {**output, "records": written},
            "rejected": rejected,
            "extras": extras,
        }
        moves = {self.folder / "output": self.output, self.folder / "rejected": beside(self.output, "rejected.jsonl")}
        moves |= {p: beside(self.output, s) for s, p in self._extras.items() if p.exists()}
        writing.publish(moves, manifest, beside(self.output, "manifest.json"))
        shutil.rmtree(self.folder)
        return manifest


def beside(output: Path, suffix: str) -> Path:
    return output.with_name(f"{output.name}.{suffix}")


def fingerprints(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Path, size and SHA-256 of each."""
    return [{"path": str(f), **writing.description(f)} for f in files]


def summary(manifest: Mapping[str, Any], output: Path) -> None:
    """Prints what became of the records."""
    from rich.console import Console
    from rich.table import Table

    counts = manifest["counts"]
    table = Table(title=f"{manifest['tool']}: {counts['read']} records read")
    table.add_column("what became of them")
    table.add_column("records", justify="right")
    table.add_row("written", str(counts["written"]))
    for reason, count in sorted(manifest["set_aside"].items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"set aside: {reason}", str(count))
    for note, count in sorted(manifest["notes"].items()):
        table.add_row(f"note: {note}", str(count))
    console = Console()
    console.print(table)
    if manifest["set_aside"].get("cut_off"):
        console.print("[bold]The input ends in the middle of a line: it is probably cut off. Fetch it again.[/bold]")
    if manifest.get("already_there"):
        console.print(f"{output} was already there, made of the same input with the same options", soft_wrap=True)
    elif counts["set_aside"]:
        where = beside(output, "rejected.jsonl")
        console.print(f"written: {output} ({where.name} says why each record was set aside)", soft_wrap=True)
    else:
        console.print(f"written: {output}", soft_wrap=True)


def cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
