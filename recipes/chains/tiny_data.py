"""`python -m rufus_plugins.recipes.chains.tiny_data --stage S --output DIR --seed N [--family NAME=DIR ...]`: what a
stage of a chain trains on at scale=tiny.

A stage generates its own (`Stage.tiny`). SFT mixes the demonstrations of the families that it is given.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, RufusError
from rufus_plugins.recipes.chains.lineage import digest_of
from rufus_plugins.types import Stage

HELDOUT_SHARE = 0.03
"""Of the demonstrations, for the held-out loss. Ours."""
REPORT = "family.json"


def write(stage: Stage, output: Path, seed: int, families: Mapping[str, Path]) -> dict[str, Any]:
    """Writes the stage's data and returns its report. What is there and finished stays. Raises `RufusError`."""
    if stage.tiny is not None:
        return dict(stage.tiny(output, seed))
    if stage.metric != "loss":
        raise ConfigError(
            f"stage {stage.name} generates no tiny data (Stage.tiny): give it data with --data DIR, which holds "
            f"{stage.name}/train.parquet and {stage.name}/heldout.parquet"
        )
    return mix(output, families)


def mix(output: Path, families: Mapping[str, Path]) -> dict[str, Any]:
    """`train.parquet` and `heldout.parquet` of all demonstrations, in an order that mixes them, `mixture.json` of what
    was mixed, and the report. The folder appears whole or not at all."""
    from rufus_plugins.recipes.data.mixture import Mixture
    from rufus_plugins.recipes.sft.prepare import prepare

    made_of = {name: digest_of(folder / "sft.jsonl") for name, folder in families.items()}
    if (output / REPORT).is_file():
        report = json.loads((output / REPORT).read_text(encoding="utf-8"))
        if report.get("demonstrations") == made_of:
            return report
    if not families:
        raise ConfigError("SFT has no demonstrations: no stage after it generates tiny data. Give --data DIR.")
    output.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        part.chmod(0o755)
        lines = _lines(families)
        (part / "demonstrations.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        made = prepare(str(part / "demonstrations.jsonl"), part, heldout_share=HELDOUT_SHARE)
        mixture = Mixture((str(part / "train.parquet"),), str(part / "mixture"), tokenizer=_tokenizer(part)).report()
        # the whole folder appears by the rename below
        (part / "mixture.json").write_text(json.dumps(mixture, indent=2), encoding="utf-8")
        report = {
            "stage": "sft",
            "items": {name.removesuffix(".parquet"): file["rows"] for name, file in made["files"].items()},
            "demonstrations": made_of,
            "overrides": [],
        }
        (part / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if output.exists():
            shutil.rmtree(output)
        part.rename(output)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return report


def _lines(families: Mapping[str, Path]) -> list[str]:
    """Records with their family as category, spread evenly over the file."""
    placed: list[tuple[float, str, str]] = []
    for name, folder in families.items():
        records = (folder / "sft.jsonl").read_text(encoding="utf-8").splitlines()
        for at, line in enumerate(records):
            record = json.loads(line) | {"category": name, "data_source": name}
            placed.append(((at + 0.5) / len(records), name, json.dumps(record, ensure_ascii=False)))
    return [line for _, _, line in sorted(placed, key=lambda one: one[:2])]


def _tokenizer(folder: Path) -> str:
    """A folder with the tiny tokenizer."""
    from rufus_plugins.recipes.tiny import tokenizer

    where = folder / "tokenizer"
    tokenizer.build("families").save_pretrained(where)
    return str(where)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.chains.tiny_data", description=__doc__)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--family", action="append", default=[], metavar="NAME=DIR", help="demonstrations that SFT mixes"
    )
    options = parser.parse_args(argv)
    from rufus_plugins.recipes.chains.spec import chain_of

    try:
        stage = chain_of(options.stage).entries[0].stage
        families = {name: Path(path) for name, _, path in (one.partition("=") for one in options.family)}
        report = write(stage, options.output, options.seed, families)
    except RufusError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
