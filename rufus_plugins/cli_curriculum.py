"""`rufus curriculum RUN`: how many prompts were below, inside and above the band over time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .errors import ConfigError


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "curriculum", help="prompts below, inside and above the productive band over time", description=__doc__
    )
    parser.add_argument("run", help="run folder (trainer.default_local_dir), or its curriculum.jsonl")
    parser.add_argument("--rows", type=int, default=10, help="lines to show (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from rufus_plugins.algos.curriculum import FILE, SIDES, read, windows

    path = Path(args.run)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist: a run writes it when rufus.group_filter is set. "
            "RUN is the folder of trainer.default_local_dir."
        )
    if args.rows < 1:
        raise ConfigError(f"--rows is at least 1, not {args.rows}")
    rows = windows(read(path), args.rows)
    if args.json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return 0
    print(f"{'steps':>13} {'groups':>7} {'pass rate':>9}   {'below':>7} {'inside':>7} {'above':>7}   moved in / out")
    for row in rows:
        steps = f"{row.first_step}-{row.last_step}" if row.first_step != row.last_step else str(row.first_step)
        rate = "-" if row.pass_rate is None else f"{row.pass_rate:.3f}"
        sides = " ".join(f"{row.prompts[side]:>7}" for side in SIDES)
        print(f"{steps:>13} {row.groups:>7} {rate:>9}   {sides}   {row.moved_in} / {row.moved_out}")
    return 0
