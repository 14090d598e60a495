"""`python -m rufus_plugins.recipes.evidence measure | compare`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

NUMBERS = {"OMP_NUM_THREADS": "1", "MKL_CBWR": "AVX2,STRICT", "ATEN_CPU_CAPABILITY": "default"}
"""As scale=tiny runs the rollout: the same tokens however attempts are batched. Read when torch is imported."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.evidence", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure a checkpoint under a protocol; goes on after a kill")
    measuring.add_argument("--protocol", type=Path, required=True, help="JSON file (recipes/evidence/protocol.py)")
    measuring.add_argument("--checkpoint", type=Path, required=True, help="folder of a transformers model")
    measuring.add_argument("--output", type=Path, required=True, help="evidence file to write")
    measuring.add_argument("--name", help="of the checkpoint in reports; default: its folder's")
    comparing = commands.add_parser("compare", help="two evidence files of one protocol, or pairs of several seeds")
    comparing.add_argument("files", nargs="+", type=Path, metavar="BEFORE AFTER", help="pairs are pooled")
    comparing.add_argument("--k", type=int, help="of pass@k; default: the number of samples")
    comparing.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)

    from rufus_plugins.errors import RufusError

    try:
        return measured(options) if options.command == "measure" else compared(options)
    except RufusError as error:
        print(error, file=sys.stderr)
        return 1


def measured(options: argparse.Namespace) -> int:
    from rufus_plugins.recipes.evidence.measure import measure
    from rufus_plugins.recipes.evidence.protocol import Protocol

    if "torch" not in sys.modules:
        for name, value in NUMBERS.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    protocol = Protocol.read(options.protocol)
    evidence = measure(protocol, options.checkpoint, options.output, name=options.name)
    scores = [s for item in evidence["items"].values() for s in item["scores"] if s is not None]
    print(
        f"{protocol.name}: mean reward {sum(scores) / len(scores):.3f} of {len(evidence['items'])} items x "
        f"{protocol.samples} samples, {evidence['seconds']:.0f} s, {options.output}"
    )
    return 0


def compared(options: argparse.Namespace) -> int:
    from rufus_plugins.errors import ConfigError
    from rufus_plugins.recipes.evidence.compare import compare, pooled

    if len(options.files) % 2:
        raise ConfigError("compare takes pairs: BEFORE AFTER [BEFORE AFTER ...]")
    pairs = list(zip(options.files[::2], options.files[1::2], strict=True))
    change = compare(*pairs[0], options.k) if len(pairs) == 1 else pooled(pairs, options.k)
    if options.json:
        print(json.dumps(change.as_json()))
        return 0
    for name, metric in change.metrics.items():
        print(f"{name:12} {metric.before:.3f} -> {metric.after:.3f}  {metric.words}")
    if change.protocol.baseline:
        print(
            f"best constant {change.protocol.baseline.get('kind', 'answer')}: {change.protocol.baseline['share']:.3f}"
        )
    for note in change.notes:
        print(f"note: {note}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
