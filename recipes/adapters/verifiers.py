"""`rufus prepare verifiers --input TASKSET`: the tasks of an installed `verifiers` taskset as records.

A record holds the prompt and names its task; the environment (rollouts/environments/verifiers.py) loads the task
itself, with its tools and rewards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.rl_parquet import RLParquet

ABILITY = "agent"


def prepare(
    input: str,
    output_dir: Path,
    *,
    count: int | None = None,
    data_source: str | None = None,
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the manifest.

    `input` is the taskset's id; `count` takes its first tasks, and is needed where it is endless.
    """
    from rufus_plugins.rewards.judge import text_of
    from rufus_plugins.rollouts.environments.verifiers import Verifiers, opening_of

    if not 0.0 <= heldout_share < 1.0:
        raise ConfigError(f"--heldout-share is {heldout_share}; it is a share, at least 0 and below 1.")
    tasks = Verifiers(input)._tasks.first(count)
    with RLParquet(output_dir) as output:
        for at, task in enumerate(tasks):
            where = f"{input} task {task.data.idx}"
            opening = [{"role": m["role"], "content": text_of(m)} for m in opening_of(task.data)]
            if task.data.prompt is None:
                output.set_aside(where, "no_prompt", "a user opens its conversation")
                continue
            held_out = (at * 0.6180339887498949) % 1.0 < heldout_share  # spread evenly
            output.add(
                "heldout" if held_out else "train",
                opening,
                "",
                data_source or f"verifiers/{input}",
                ABILITY,
                {"id": task.key, "taskset": input, "idx": str(task.data.idx), "key": task.key},
            )
        return output.commit({"stage": "verifiers", "input": input, "heldout_share": heldout_share})
