"""Writes a family: `sft.jsonl` (for `rufus prepare sft`), `rl/{train,heldout}.parquet`, and what its environment or
reward needs."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.rl_parquet import RLParquet
from rufus_plugins.recipes.tiny.families import STAGES, Item, demonstrations, splits


def family(stage: str) -> Any:
    """The module of a stage's family."""
    if stage not in STAGES:
        raise ConfigError(f"there is no tiny family for {stage!r}; there are {', '.join(STAGES)}")
    return importlib.import_module(f"rufus_plugins.recipes.tiny.families.{STAGES[stage]}")


def write(stage: str, output: Path, seed: int = 0, sft_rows: int = 4_000, faulty_share: float = 0.6) -> dict[str, Any]:
    """Writes the files and returns row counts, the best constant answer and where things are.

    `faulty_share` is that of recipes/tiny: the likeliest answer is then the wrong one.
    """
    module = family(stage)
    made = module.items(seed)
    parts = splits(made, seed)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    with (output / "sft.jsonl").open("w", encoding="utf-8") as file:
        for item, messages in demonstrations(parts["sft"], seed, sft_rows, faulty_share):
            record = {"messages": [*item.prompt, *messages], "enable_thinking": False}
            if module.FAMILY.tools:
                record["tools"] = list(module.FAMILY.tools)
            file.write(json.dumps(record) + "\n")
    with RLParquet(output / "rl") as parquet:
        for split, name in (("rl", "train"), ("heldout", "heldout")):
            for item in parts[split]:
                parquet.add(
                    name, item.prompt, _text(item), module.FAMILY.data_source, stage, {"id": item.id, **item.extra}
                )
        parquet.commit({"stage": stage, "input": f"recipes/tiny/families/{STAGES[stage]}.py, seed {seed}"})
    answer, share = module.constant_baseline(parts["heldout"])
    report = {
        "stage": stage,
        "seed": seed,
        "items": {name: len(part) for name, part in parts.items()},
        "constant_answer": answer,
        "constant_share": share,
        "reward": dict(module.FAMILY.reward),
        "environment": module.FAMILY.environment and dict(module.FAMILY.environment),
    }
    if stage == "search_agent":
        lines = "".join(json.dumps(d) + "\n" for d in module.corpus(seed))
        (output / "corpus.jsonl").write_text(lines, encoding="utf-8")
    if stage == "general_agent":
        module.write_world(output / "worlds", made)
    if stage == "rlhf":
        for name, part in (("pairs", parts["sft"]), ("pairs_heldout", parts["heldout"])):
            lines = "".join(json.dumps(p) + "\n" for p in module.pairs(part, seed))
            (output / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (output / "family.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _text(item: Item) -> str:
    return item.ground_truth if isinstance(item.ground_truth, str) else json.dumps(item.ground_truth)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.tiny.families")
    parser.add_argument("--stage", required=True, choices=STAGES)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sft-rows", type=int, default=4_000)
    args = parser.parse_args()
    report = write(args.stage, args.output, args.seed, args.sft_rows)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
