"""`rufus prepare general_agent`: AgentWorldModel's JSONL to the Parquet of `environment=mcp` and `reward=post_state`.

`--input` is a folder with the data card's files (rollouts/environments/world_data.py names them), or `builtin`: the
worlds that come with rufus-plugins. Every task is one row: its text is the prompt, its verifier the ground truth.

Set aside are tasks whose world lacks a part, whose verifier is missing or has no `def verify_*`, and, unless
`--check no`, whose world's database cannot be made or whose verifier is content before anything was done (a policy
would be paid for nothing).
"""

from __future__ import annotations

import ast
import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.recipes.data.records import Raw, Refused, Unreadable
from rufus_plugins.recipes.data.stage_rows import Row, write_rows
from rufus_plugins.types import Task, Trajectory

ABILITY = "tools"


def prepare(
    input: str,
    output_dir: Path,
    *,
    check: str = "yes",
    data_source: str = "agent_world_model",
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the last.

    The held-out share is of scenarios: a world that was trained on is not held out.
    """
    from rufus_plugins.rollouts.environments.world_data import library

    if check not in ("yes", "no"):
        raise ConfigError(f"--check is {check!r}; it is yes or no.")
    if not 0.0 <= heldout_share < 1.0:
        raise ConfigError(f"--heldout-share is {heldout_share}; it is a share, at least 0 and below 1.")
    if input != "builtin" and not Path(input).is_dir():
        raise ConfigError(f"{input} is no folder: give one with AgentWorldModel's JSONL files, or `builtin`.")
    try:
        worlds = library(input if input == "builtin" else str(Path(input).resolve()))
        scenarios = sorted(worlds.scenarios)
    except DataError as error:
        raise ConfigError(str(error)) from error
    held = {name for at, name in enumerate(scenarios) if (at * 0.6180339887498949) % 1.0 >= 1.0 - heldout_share}
    with tempfile.TemporaryDirectory(prefix="rufus-worlds-") as cache:
        items = _tasks(worlds, scenarios, Path(cache) if check == "yes" else None)
        return write_rows(
            "general_agent",
            ABILITY,
            items,
            lambda worlds_, item: _row(item, input, data_source, held),
            output_dir,
            manifest={"input": input, "checked": check == "yes", "scenarios": len(scenarios), "held_out": sorted(held)},
        )


def _tasks(worlds: Any, scenarios: list[str], cache: Path | None) -> Iterator[tuple[Any, Raw | Unreadable]]:
    from rufus_plugins.rollouts.environments.world_data import initial_database

    for scenario in scenarios:
        database: Path | None = None
        try:
            world = worlds.world(scenario)
            tasks = worlds.tasks(scenario)
            if cache:
                database = asyncio.run(initial_database(world, cache))
        except DataError as error:
            yield worlds, Unreadable(scenario, "bad_world", str(error))
            continue
        if not tasks:
            yield worlds, Unreadable(scenario, "no_tasks", "gen_tasks has no task for this scenario")
        for index, task in enumerate(tasks):
            where = f"{scenario} task {index}"
            try:
                source = worlds.verifier(scenario, index)
            except DataError as error:
                yield worlds, Unreadable(where, "no_verifier", str(error))
                continue
            record = {"scenario": scenario, "task_idx": index, "task": task, "verifier": source}
            yield worlds, Raw(where, {**record, "problem": problem(source, database, task)})


def problem(source: str, database: Path | None, task: str) -> list[str] | None:
    """[reason, detail] of a verifier that cannot be used, None for one that can."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ["bad_verifier", f"does not parse: {error}"]
    if not any(isinstance(node, ast.FunctionDef) and node.name.startswith("verify_") for node in tree.body):
        return ["bad_verifier", "has no function verify_*"]
    if database is None:
        return None
    from rufus_plugins.rewards.post_state import PostState

    untouched = Trajectory(
        Task("", "", [{"role": "user", "content": task}], {"verifier": source}),
        messages=[{"role": "assistant", "content": "Done."}],
        artifacts={"db_before": str(database), "db_after": str(database)},
    )
    try:
        score = asyncio.run(PostState()(untouched))
    except DataError as error:
        return ["bad_verifier", str(error)]
    except InfrastructureError as error:
        return ["bad_verifier", f"gives no verdict on the untouched state: {error}"]
    return ["already_done", "the verifier is content before anything was done"] if score.value > 0 else None


def _row(item: Raw, folder: str, data_source: str, held: set[str]) -> Row:
    record = item.record
    if record["problem"]:
        raise Refused(*record["problem"])
    if not record["task"].strip():
        raise Refused("no_task", "the task has no text")
    return Row(
        [{"role": "user", "content": record["task"].strip()}],
        {"verifier": record["verifier"]},
        data_source,
        f"{record['scenario']}\n{record['task']}",
        {
            "id": f"{record['scenario']}-{record['task_idx']}",
            "scenario": record["scenario"],
            "task_idx": str(record["task_idx"]),
            "worlds": folder if folder == "builtin" else str(Path(folder).resolve()),
            "where": item.where,
        },
        split="heldout" if record["scenario"] in held else "train",
    )
