"""`rufus prepare STAGE --input FILE|DIR|hub name --output DIR`: raw data to the Parquet that the stage trains on."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .plugins import registry
from .types import Stage

OPTIONS = {
    "split": "split of a hub dataset (default train)",
    "subset": "subset (configuration) of a hub dataset",
    "data_source": "name of the origin, for records that do not name theirs",
    "backend": "sandbox backend to bake environments for: local (default) or e2b",
    "stand_in": "images, by shell patterns and commas, that this machine's own system may stand in for (local)",
    "check": "run each task's own solution and tests after baking: yes (default) or no",
    "build_network": "let local builds use this machine's network: yes or no (default)",
    "heldout_share": "share of the problems to write to heldout.parquet instead (default 0)",
    "source": "sets of the stage's source list to take, by commas; for a file: the set whose columns it has",
    "sources": "a source list of yours instead of the stage's own sources.yaml",
    "count": "records to generate, for --input sample",
    "puzzles": "puzzles of reasoning-gym to generate and add (reasoning_rl)",
    "seed": "seed of what is generated (default 0)",
}
"""Options that a stage's `prepare` may take, by the name of its parameter."""

NUMBERS = {"heldout_share": float, "count": int, "puzzles": int, "seed": int}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("prepare", help="raw data to the Parquet that a stage trains on")
    parser.add_argument("stage", metavar="STAGE", help="a stage that prepares data; `rufus list stage` shows them")
    parser.add_argument(
        "--input",
        required=True,
        help="a JSONL or Parquet file, a directory of them, a hub dataset; `sources` or `sample` of a stage",
    )
    parser.add_argument("--output", required=True, type=Path, help="directory to write")
    for name, text in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=NUMBERS.get(name, str), default=None, help=text)


def run(args: argparse.Namespace) -> int:
    prepare = _prepare_of(args.stage)
    given = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    takes = inspect.signature(prepare).parameters
    for name in given:
        if name not in takes:
            raise ConfigError(f"stage {args.stage} takes no --{name.replace('_', '-')}.")
    manifest = prepare(args.input, args.output, **given)
    _report(manifest, args.output)
    return 0


def _prepare_of(name: str) -> Any:
    found = registry()
    stages = {n: _stage(part.factory) for n, part in sorted(found.parts["stage"].items())}
    able = [n for n, stage in stages.items() if stage.prepare is not None]
    if name in stages and stages[name].prepare is not None:
        return stages[name].prepare
    if name in stages:
        raise ConfigError(f"stage {name} has no data of its own to prepare. Stages that have: {', '.join(able)}.")
    found.get("stage", name)  # raises with what exists, or why the stage's plugin did not load
    raise AssertionError(name)


def _stage(factory: Any) -> Stage:
    return factory if isinstance(factory, Stage) else factory()


def _report(manifest: dict[str, Any], output: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{manifest['stage']}: {manifest['records']} records read")
    table.add_column("what became of them")
    table.add_column("records", justify="right")
    for name, file in manifest["files"].items():
        table.add_row(f"kept in {name}", str(file["rows"]))
    for reason, count in sorted(manifest["dropped"].items(), key=lambda item: -item[1]):
        table.add_row(f"set aside: {reason}", str(count))
    console = Console()
    console.print(table)
    if manifest["dropped"].get("cut_off"):
        console.print("[bold]The input ends in the middle of a line: it is probably cut off. Fetch it again.[/bold]")
    aside = manifest.get("set_aside_file", "set_aside.jsonl")
    console.print(f"written: {output} ({aside} says why each record was left out)", soft_wrap=True)
