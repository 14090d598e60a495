"""How a data tool is written. `docs/data.md` shows one whole.

A tool is a dataclass; its fields are its options on the command line and in Python, documented under the field. Two
kinds, both listed in `recipes/data/__init__.py`:

- a `RecordTool` turns each record into none, one or several records. The frame does everything else (`run.execute`):
  reading, processes or Ray Data, shards that survive a kill, rejects, manifest, progress;
- any other dataclass with `__call__(self)` does its own reading and writing (reports, servers), with the same parts.

Set a record aside by raising `Refused(reason, detail)`. Count what is worth knowing with `self.notes[name] += 1`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rufus_plugins.errors import RufusError
from rufus_plugins.recipes.data.records import CHUNK_BYTES, CHUNK_RECORDS, Raw, Refused

if TYPE_CHECKING:
    from rufus_plugins.recipes.data.run import Job


@dataclass(frozen=True)
class SetAside:
    """A record that goes to the rejects, with the reason under which it is counted."""

    raw: Raw
    reason: str
    detail: str


class RecordTool:
    """Subclass it as a dataclass. It is pickled into worker processes, so it holds plain values until `start`.

    The same record and fields give the same answer, in whatever process and order: else a resumed run would differ.
    """

    version: ClassVar[int] = 1
    """Raise it when the same input gives another output: unfinished work of the old version is then not continued."""

    schema: ClassVar[Any] = None
    """A pyarrow schema for Parquet output, or a function without arguments that returns it; None = inferred."""

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "jsonl.gz", "parquet", "arrow")
    """What the output can be."""

    keeps_rejected: ClassVar[bool] = True
    """Whether the rejects file shows the records. False where they hold text that must not leave (benchmarks)."""

    chunk_bytes: ClassVar[int] = CHUNK_BYTES
    chunk_records: ClassVar[int] = CHUNK_RECORDS
    """Unit of work, and what a kill loses: make it small where a record costs seconds."""

    notes: Counter[str]
    """Counts for the manifest, summed over all chunks; the frame sets it before each chunk."""

    def reads(self) -> Sequence[str]:
        """Further files whose content decides the output (benchmarks, tables); hashed into the manifest."""
        return ()

    def identity(self) -> Mapping[str, Any]:
        """Further values that decide the output and are neither fields nor files (a tokenizer's digest); they go into
        the manifest and the key of unfinished work."""
        return {}

    def survey(self, job: Job) -> None:
        """A look at the whole input before the first record, in the main process: `job.records()`, or `job.map(name,
        tool)` for a pass of its own over all workers. What it leaves on `self` reaches the workers. Default: none."""

    def start(self) -> None:
        """Once per process, before its first record: load models and tokenizers here."""

    def record(self, raw: Raw) -> Mapping[str, Any] | Iterable[Mapping[str, Any]] | None:
        """What becomes of one record; None or nothing drops it, which is only for tools whose purpose that is, and
        then with a note. Raise `Refused` to set it aside."""
        raise NotImplementedError

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        """All readable records of a chunk, in order. Override instead of `record` where a batch is cheaper."""
        for raw in raws:
            try:
                made = self.record(raw)
            except Refused as error:
                yield SetAside(raw, error.reason, str(error))
            except (RufusError, MemoryError):
                raise
            except Exception as error:  # a record in a shape that nobody thought of must not end a run over millions
                yield SetAside(raw, "tool_error", f"{type(error).__name__}: {error} ({_place(error)})")
            else:
                if made is None:
                    continue
                yield from [made] if isinstance(made, Mapping) else made

    def table(self, rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
        """Written records as a pyarrow table, for .parquet and .arrow. Override where rows are kept in another form
        (base64) than the output's."""
        import pyarrow as pa

        return pa.Table.from_pylist(rows, schema=schema)

    def finish(self, job: Job) -> Mapping[str, Any]:
        """When every record is done, before anything is published: further keys for the manifest. Files made at
        `job.extra(suffix)` are published as `OUTPUT.suffix`."""
        return {}


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}" if trace else "?"


def parameters(tool: Any) -> dict[str, Any]:
    """The fields as JSON values, for the manifest and the key of unfinished work."""
    return {
        f.name: _plain(getattr(tool, f.name)) for f in dataclasses.fields(tool) if f.init and not f.name.startswith("_")
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value))
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the string literal under it, on one line; those of base classes too."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError, SyntaxError):
            continue
        for field, text in zip(body, body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs
