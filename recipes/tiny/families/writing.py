"""Writes a family's data: `sft.jsonl`, `rl/{train,heldout}.parquet`, what its environment or reward needs, and
`family.json`, the report.

A folder appears whole or not at all, `family.json` and all: what a killed call left behind lies beside it under another
name. A folder that the same code wrote with the same seed is left alone.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.chains.commands import value
from rufus_plugins.recipes.data.rl_parquet import RLParquet
from rufus_plugins.recipes.tiny.families import STAGES, Item, demonstrations, splits

FAULTY_SHARE = 0.6
"""As recipes/tiny/tasks.py: the likeliest answer of a model that learned from them is then the wrong one."""
REPORT = "family.json"


def family(stage: str) -> Any:
    """The module of a stage's family."""
    if stage not in STAGES:
        raise ConfigError(f"there is no tiny family for {stage!r}; there are {', '.join(STAGES)}")
    return importlib.import_module(f"rufus_plugins.recipes.tiny.families.{STAGES[stage]}")


def write(
    stage: str, output: Path, seed: int = 0, sft_rows: int | None = None, faulty_share: float = FAULTY_SHARE
) -> dict[str, Any]:
    """Writes the folder and returns the report. Raises `ConfigError` if `output` holds anything but a family's data."""
    module = family(stage)
    sft_rows = module.FAMILY.sft_rows if sft_rows is None else sft_rows
    output = Path(output).resolve()
    made_of = {"stage": stage, "seed": seed, "demonstrations": sft_rows, "faulty_share": faulty_share, "code": _code()}
    if output.exists() and not (output.is_dir() and (not any(output.iterdir()) or (output / REPORT).is_file())):
        raise ConfigError(f"{output} exists and holds other things: choose another folder, or remove it.")
    if (output / REPORT).is_file():
        report = json.loads((output / REPORT).read_text(encoding="utf-8"))
        if {name: report.get(name) for name in made_of} == made_of and report.get("folder") == str(output):
            return report
    output.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        report = _written(module, part, output, seed, sft_rows, faulty_share) | made_of | {"folder": str(output)}
        (part / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        part.chmod(0o755)
        if output.exists():
            old = part.with_name(part.name + ".old")
            output.rename(old)
            part.rename(output)
            shutil.rmtree(old, ignore_errors=True)
        else:
            part.rename(output)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # gone after the rename
    return report


def _written(module: Any, part: Path, output: Path, seed: int, sft_rows: int, faulty_share: float) -> dict[str, Any]:
    made = module.items(seed)
    parts = module.splits(seed) if module.FAMILY.stage == "coding_rl" else splits(made, seed)
    if module.FAMILY.stage == "coding_rl":
        shown = module.demonstrations(seed, sft_rows, faulty_share)
    else:
        shown = demonstrations(parts["sft"], seed, sft_rows, faulty_share)
    with (part / "sft.jsonl").open("w", encoding="utf-8") as file:
        for item, messages in shown:
            for conversation in records(module, item, messages):
                record: dict[str, Any] = {"messages": conversation, "enable_thinking": False}
                if module.FAMILY.tools:
                    record["tools"] = list(module.FAMILY.tools)
                file.write(json.dumps(record) + "\n")
    if hasattr(module, "files"):
        module.files(part, made, seed)
    with RLParquet(part / "rl") as parquet:
        for split, name in (("rl", "train"), ("heldout", "heldout")):
            for item in parts[split]:
                more = module.extra(item, part, output) if hasattr(module, "extra") else {}
                extra = {"id": item.id, **item.extra, **more}
                parquet.add(name, item.prompt, text_of(item), module.FAMILY.data_source, module.FAMILY.stage, extra)
        parquet.commit({"stage": module.FAMILY.stage, "input": f"{module.__name__}, seed {seed}"})
    answer, share = module.constant_baseline(parts["heldout"])
    paths: Mapping[str, Path] = module.overrides(output) if hasattr(module, "overrides") else {}
    return {
        "items": {name: len(part_) for name, part_ in parts.items()},
        "constant_answer": answer,
        "constant_share": share,
        "constant_kind": "call sequence" if module.FAMILY.environment else "answer",
        "overrides": [f"{key}={value(path)}" for key, path in paths.items()],
        **(module.report(part) if hasattr(module, "report") else {}),
    }


def records(module: Any, item: Item, messages: tuple[dict, ...]) -> list[list[dict]]:
    """The conversations of a demonstration."""
    return module.records(item, messages) if hasattr(module, "records") else [[*item.prompt, *messages]]


def text_of(item: Item) -> str:
    """The ground truth as a row holds it."""
    return item.ground_truth if isinstance(item.ground_truth, str) else json.dumps(item.ground_truth)


def _code() -> str:
    """Of this folder and the tokenizer beside it: other code, other data."""
    digest = hashlib.sha256()
    here = Path(__file__).resolve().parent
    for file in sorted([*here.glob("*.py"), *here.parent.glob("*.py"), *here.parent.glob("*.jinja")]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
