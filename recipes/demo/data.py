"""Writes the demo's three Parquet files: demonstrations for SFT, problems for RL, held-out problems."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rufus_plugins.recipes.data.rl_parquet import RLParquet
from rufus_plugins.recipes.demo.settings import Settings
from rufus_plugins.recipes.tiny import tasks

DATA_SOURCE = "rufus_tiny_programs"


def write(settings: Settings, output: Path) -> dict[str, int]:
    """Writes `output/sft.parquet` and `output/rl/{train,heldout}.parquet`; returns row counts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    output.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "messages": [
                {"role": "user", "content": problem.statement},
                {"role": "assistant", "content": tasks.fenced(program)},
            ],
            "enable_thinking": False,
        }
        for problem, program in tasks.demonstrations(settings.seed, settings.sft_rows, settings.faulty_share)
    ]
    pq.write_table(pa.Table.from_pylist(rows), output / "sft.parquet")
    with RLParquet(output / "rl") as parquet:
        counts = {"sft": len(rows)}
        for split, name in (("rl", "train"), ("heldout", "heldout")):
            problems = tasks.problems(settings.seed, split)
            counts[name] = len(problems)
            for problem in problems:
                parquet.add(
                    name,
                    [{"role": "user", "content": problem.statement}],
                    json.dumps(problem.tests),
                    DATA_SOURCE,
                    "code",
                    {"id": problem.combination},
                )
        parquet.commit({"stage": "coding_rl", "input": f"recipes/tiny/tasks.py, seed {settings.seed}"})
    return counts


def constant_baseline(problems: Sequence[tasks.Problem]) -> float:
    """Pass rate of the best program that prints a constant, chosen for each problem by an oracle."""
    solved = sum(len(set(problem.outputs)) == 1 for problem in problems)
    return solved / len(problems)
