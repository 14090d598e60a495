"""`rufus prepare coding_agent`: Harbor and terminal-bench task directories to Parquet and baked environments.

Each task's environment is built once. Unless `check=no`, the task's own solution is then run in it and its tests must
give a reward above 0: a task that nobody can solve here is found now, not by a model. What cannot be used is set aside
with its reason.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.recipes.coding_agent.bake import bake
from rufus_plugins.recipes.data.rl_parquet import RLParquet
from rufus_plugins.rollouts import harbor
from rufus_plugins.rollouts.dockerfile import CannotBuild
from rufus_plugins.rollouts.harbor import HarborTask
from rufus_plugins.rollouts.harbor_run import begin_step, sandbox_fields, solve, verify
from rufus_plugins.types import Task, Termination, Trajectory

ABILITY = "agent"


def prepare(
    input: str,
    output_dir: Path,
    *,
    backend: str = "local",
    stand_in: str = "",
    check: str = "yes",
    build_network: str = "no",
    data_source: str | None = None,
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the manifest.

    Local snapshots go to the folder `<output>-environments` beside it, named by what they were built from, and are used
    again. Raises `ConfigError` if there is no task or none can be used.
    """
    for name, value in (("check", check), ("build-network", build_network)):
        if value not in ("yes", "no"):
            raise ConfigError(f"--{name} is {value!r}; it is yes or no.")
    if not 0.0 <= heldout_share < 1.0:
        raise ConfigError(f"--heldout-share is {heldout_share}; it is a share, at least 0 and below 1.")
    source = Path(input)
    folders = harbor.find(source) if source.is_dir() else []
    if not folders:
        raise ConfigError(
            f"{input} holds no task: give a folder with task.toml (Harbor) or task.yaml (terminal-bench) directories."
        )
    patterns = [part for part in stand_in.split(",") if part]
    output_dir = Path(output_dir)
    store = output_dir.resolve().with_name(f"{output_dir.resolve().name}-environments")
    kinds: Counter[str] = Counter()
    with RLParquet(output_dir) as output:
        for at, folder in enumerate(folders):
            try:
                task = harbor.load(folder)
                environment = asyncio.run(_made(task, backend, store, patterns, check == "yes", build_network == "yes"))
            except CannotBuild as error:
                output.set_aside(str(folder), "cannot_build", str(error))
                continue
            except _Unsolved as error:
                output.set_aside(str(folder), "solution_fails", str(error))
                continue
            except DataError as error:
                output.set_aside(str(folder), "bad_task", str(error))
                continue
            kinds["multi_step" if task.multi_step else "terminal_bench" if _legacy(task) else "harbor"] += 1
            held_out = (at * 0.6180339887498949) % 1.0 < heldout_share  # spread evenly over the sorted names
            output.add(
                "heldout" if held_out else "train",
                [{"role": "user", "content": task.steps[0].instruction}],
                "",
                data_source or "harbor",
                ABILITY,
                {
                    "id": task.name,
                    "task_dir": str(task.folder),
                    "environment": json.dumps(environment, sort_keys=True),
                    "multi_step_reward_strategy": task.strategy,
                },
            )
        return output.commit(
            {
                "stage": "coding_agent",
                "input": input,
                "backend": backend,
                "formats": dict(sorted(kinds.items())),
                "checked": check == "yes",
                "heldout_share": heldout_share,
            }
        )


class _Unsolved(DataError):
    """The task's own solution does not pass its own tests here."""


async def _made(
    task: HarborTask, backend: str, store: Path, stand_in: list[str], check: bool, network: bool
) -> dict[str, Any]:
    environment = await bake(task, backend, store, stand_in=stand_in, network=network)
    if check and all(step.solution for step in task.steps):
        value = await oracle_reward(task, environment)
        if not value > 0:
            raise _Unsolved(f"its own solution gets the reward {value:g} here")
    return environment


async def oracle_reward(task: HarborTask, environment: dict[str, Any], *, solved: bool = True) -> float:
    """The reward of the task's own solution (or of doing nothing) in its baked environment."""
    from rufus_plugins.plugins import registry
    from rufus_plugins.rewards.task_tests import TaskTests

    backend = environment["backend"]
    sandbox = registry().build("sandbox", backend, sandbox_fields(task, backend, environment))
    records = []
    try:
        where = await sandbox.exec("pwd", 60.0)
        workdir = where.stdout.strip() or "/"
        for at, step in enumerate(task.steps):
            await begin_step(sandbox, task, step, workdir, first=at == 0)
            if solved:
                await solve(sandbox, task, step, workdir)
            found = await verify(sandbox, task, step, workdir)
            records.append({"name": step.name, "verifier": found, "min_reward": step.min_reward})
        extra = {"multi_step_reward_strategy": task.strategy}
        artifacts = {"verifier_steps": records} if task.multi_step else {"verifier": records[0]["verifier"]}
        trajectory = Trajectory(Task(task.name, "harbor", [], extra=extra), artifacts=artifacts)
        return (await TaskTests()(trajectory)).value
    except InfrastructureError as error:
        if error.termination is Termination.REWARD_FAILED:
            raise _Unsolved(f"its tests give no reward here: {error}") from error
        raise _Unsolved(f"it does not run here: {error}") from error
    finally:
        await sandbox.close()


def _legacy(task: HarborTask) -> bool:
    return not (task.folder / "task.toml").is_file()
