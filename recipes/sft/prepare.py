"""`rufus prepare sft`: conversations of any common shape to the Parquet that SFT trains on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.normalise import Normalise
from rufus_plugins.recipes.data.records import Raw
from rufus_plugins.recipes.data.run import execute


@dataclass
class Part(Normalise):
    """The training or the held-out part. The conversation itself decides, so it is in the same part wherever it is."""

    heldout_share: float = 0.0
    """Share of the conversations that is held out."""
    heldout: bool = False
    """Which part this is."""

    name: ClassVar[str] = "sft"

    def record(self, raw: Raw) -> dict[str, Any] | None:
        made = super().record(raw)
        said = json.dumps(made["messages"], ensure_ascii=False).encode()
        drawn = int.from_bytes(hashlib.sha256(said).digest()[:8], "big") < self.heldout_share * 2**64
        return made if drawn == self.heldout else None


def prepare(
    input: str,
    output_dir: Path,
    *,
    split: str = "train",
    subset: str | None = None,
    data_source: str | None = None,
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet` and perhaps `heldout.parquet`, each with its manifest and rejects; returns what
    `rufus prepare` prints. Raises `ConfigError`.
    """
    if not 0.0 <= heldout_share < 1.0:
        raise ConfigError(f"--heldout-share is {heldout_share}; it is a share, at least 0 and below 1.")
    output = Path(output_dir)
    files: dict[str, Any] = {}
    dropped: Counter[str] = Counter()
    records = 0
    for heldout in (False, True) if heldout_share else (False,):
        tool = Part(data_source=data_source, heldout_share=heldout_share, heldout=heldout)
        name = "heldout.parquet" if heldout else "train.parquet"
        manifest = execute(tool, input, output / name, split=split, subset=subset, overwrite=True, progress=True)
        files[name] = {"rows": manifest["counts"]["written"], "sha256": manifest["output"]["sha256"]}
        dropped, records = Counter(manifest["set_aside"]), manifest["counts"]["read"]  # the same in both parts
    if not files["train.parquet"]["rows"]:
        reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.most_common()) or "no records"
        raise ConfigError(f"{output / 'train.parquet'} is empty: no usable conversation ({reasons}).")
    return {
        "stage": "sft",
        "records": records,
        "files": files,
        "dropped": dict(dropped),
        "set_aside_file": "train.parquet.rejected.jsonl",
    }
