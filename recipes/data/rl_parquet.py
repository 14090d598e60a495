"""Writes the Parquet files that verl's RL dataset reads, all of them or none.

`train.parquet` (and `heldout.parquet`), `set_aside.jsonl` with every record that was left out and why, and
`manifest.json` with the counts. The files appear together, by one rename, when everything is written.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError

ROWS_PER_GROUP = 512
BYTES_PER_GROUP = 64 << 20
"""A row group is closed at whichever comes first. Ours."""

SHOWN = 2_000
"""Characters of a record that `set_aside.jsonl` keeps. Ours."""


class RLParquet:
    """A context manager; nothing is left behind unless `commit` was called.

    Raises `ConfigError` if `output` holds anything but an earlier output of this class.
    """

    def __init__(self, output: Path, overwrite: bool = True):
        self.output = Path(output)
        if self.output.exists():
            ours = self.output.is_dir() and (
                (overwrite and (self.output / "manifest.json").is_file()) or not any(self.output.iterdir())
            )
            if not ours:
                raise ConfigError(f"{output} exists and holds other things: choose another --output, or remove it.")
        self.kept: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self._first_dropped = ""
        self._pending: dict[str, list[dict[str, Any]]] = {}
        self._bytes: Counter[str] = Counter()
        self._writers: dict[str, Any] = {}

    def __enter__(self) -> RLParquet:
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self._part = Path(tempfile.mkdtemp(prefix=f".{self.output.name}.", dir=self.output.parent))
        except OSError as error:
            raise ConfigError(f"{self.output} cannot be written: {error.strerror}.") from error
        self._set_aside = (self._part / "set_aside.jsonl").open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: Any) -> None:
        self._set_aside.close()
        for writer in self._writers.values():
            writer.close()
        shutil.rmtree(self._part, ignore_errors=True)  # already renamed after a commit

    def add(
        self,
        split: str,
        prompt: Sequence[Mapping[str, str]],
        ground_truth: str,
        data_source: str,
        ability: str,
        extra_info: Mapping[str, str],
    ) -> None:
        """One row. `extra_info.index` is the row's number within the split."""
        row = {
            "data_source": data_source,
            "prompt": [{"role": m["role"], "content": m["content"]} for m in prompt],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": ground_truth},
            "extra_info": {**extra_info, "index": self.kept[split], "split": split},
        }
        self.kept[split] += 1
        pending = self._pending.setdefault(split, [])
        pending.append(row)
        self._bytes[split] += len(ground_truth)
        if len(pending) >= ROWS_PER_GROUP or self._bytes[split] >= BYTES_PER_GROUP:
            self._flush(split)

    def set_aside(self, where: str, reason: str, detail: str, record: Any = None) -> None:
        self.dropped[reason] += 1
        self._first_dropped = self._first_dropped or f" The first is {where}: {detail[:500]}"
        shown = json.dumps(record, ensure_ascii=True, default=repr) if record is not None else None
        line = {"where": where, "reason": reason, "detail": detail, "record": shown and shown[:SHOWN]}
        self._set_aside.write(json.dumps(line) + "\n")

    def commit(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Puts the files in place and returns the whole manifest. Without one kept row nothing is written."""
        if not self.kept["train"]:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self.dropped.most_common()) or "no records"
            raise ConfigError(f"Nothing to write: no usable training record ({reasons}).{self._first_dropped}")
        for split in self._pending:
            self._flush(split)
        for writer in self._writers.values():
            writer.close()
        self._set_aside.close()
        files = {
            f"{split}.parquet": {"rows": self.kept[split], "sha256": sha256(self._part / f"{split}.parquet")}
            for split in sorted(self._writers)
        }
        whole = {
            **manifest,
            "records": sum(self.kept.values()) + sum(self.dropped.values()),
            "kept": sum(self.kept.values()),
            "dropped": dict(sorted(self.dropped.items())),
            "files": files,
        }
        (self._part / "manifest.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        self._part.chmod(0o755)
        if self.output.exists():
            old = self._part.with_name(self._part.name + ".old")
            self.output.rename(old)
            self._part.rename(self.output)
            shutil.rmtree(old)
        else:
            self._part.rename(self.output)
        return whole

    def _flush(self, split: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = self._pending.get(split)
        if not rows:
            return
        table = pa.Table.from_pylist(rows, schema=_schema(rows[0]))
        if split not in self._writers:
            self._writers[split] = pq.ParquetWriter(self._part / f"{split}.parquet", table.schema)
        self._writers[split].write_table(table)
        rows.clear()
        self._bytes[split] = 0


def _schema(row: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([(k, pa.int64() if k == "index" else pa.string()) for k in row["extra_info"]])),
        ]
    )


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
