"""`python -m rufus_plugins.recipes.tiny.families`: writes one family's data and prints the report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.tiny.families import STAGES
from rufus_plugins.recipes.tiny.families.writing import FAULTY_SHARE, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.tiny.families")
    parser.add_argument("--stage", required=True, choices=STAGES)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sft-rows", type=int, help="demonstrations; default: the family's own number")
    parser.add_argument("--faulty-share", type=float, default=FAULTY_SHARE, help="share of them with the mistake")
    args = parser.parse_args()
    try:
        report = write(args.stage, args.output, args.seed, args.sft_rows, args.faulty_share)
    except ConfigError as error:
        parser.exit(2, f"{error}\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
