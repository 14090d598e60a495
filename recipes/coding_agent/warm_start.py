"""A tiny model that solves some Coding Agent tasks by heart, to see the whole stage run on a CPU.

    python -m rufus_plugins.recipes.coding_agent.warm_start --data data/agent/train.parquet --output model

Each chosen task is played in its own sandbox with the commands of its own solution, and only episodes that the tests
reward are taught. What such a model scores says nothing about learning; it says that prompts, calls, sandboxes, tests
and rewards fit together.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, RufusError
from rufus_plugins.recipes.tiny.by_heart import Lesson, Script, chat_of, play, small_model, teach
from rufus_plugins.types import Task

LIMIT = 1024
"""Tokens of an episode that can be taught. Ours."""


def commands(folder: str) -> str:
    """The task's own solution as one command. Raises `ConfigError` for others."""
    from rufus_plugins.rollouts.harbor import load, solution_files

    task = load(folder)
    files = solution_files(task.steps[0])
    if task.multi_step or set(files) != {"solve.sh"}:
        raise ConfigError(f"{task.name}: only tasks of one step whose solution is one script can be taught")
    script = files["solve.sh"].decode().strip()
    return script.partition("\n")[2].strip() if script.startswith("#!") else script


def say(command: str) -> Any:
    """What the model is to say: the command, then a closing word."""
    argument = f"<arg_key>command</arg_key>\n<arg_value>{command}</arg_value>"
    call = f"\n<think></think>\n<tool_call>bash\n{argument}\n</tool_call>"

    def said(prompt: str) -> str:
        done = prompt.rindex("<|user|>") < prompt.rfind("<|observation|>")
        return "\n<think></think>\nDone.<|endoftext|>" if done else f"{call}<|observation|>"

    return said


async def lessons_of(row: Mapping[str, Any], chat: Any, tokenizer: Any) -> list[Lesson]:
    """One episode of the task, solved. Raises `RufusError` where its tests do not reward that."""
    from rufus_plugins.rewards.task_tests import TaskTests
    from rufus_plugins.rollouts.environments.shell import Shell
    from rufus_plugins.rollouts.episode import Limits
    from rufus_plugins.rollouts.rules import EpisodeRules

    extra = row["extra_info"]
    script = Script(tokenizer, say(commands(extra["task_dir"])))
    task = Task(extra["id"], row["data_source"], row["prompt"], extra=extra)
    lessons, rollout = await play(task, Shell(), chat, script, EpisodeRules(retries=0), Limits(LIMIT, LIMIT))
    if rollout.problem or (await TaskTests()(rollout.trajectory)).value < 1:
        raise RufusError(f"{task.id}: the commands of its solution get no reward: {rollout.problem or 'tests failed'}")
    return lessons


async def learnt(rows: list[Mapping[str, Any]], tasks: int, chat: Any, tokenizer: Any) -> dict[str, list[Lesson]]:
    """Task -> lessons, of the `tasks` tasks that are shortest to tell."""
    fit = []
    for row in rows:
        try:
            fit.append((len(tokenizer.encode(commands(row["extra_info"]["task_dir"]))), row))
        except ConfigError:
            continue
    fit.sort(key=lambda pair: pair[0])
    return {row["extra_info"]["id"]: await lessons_of(row, chat, tokenizer) for _, row in fit[:tasks]}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rufus_plugins.recipes.coding_agent.warm_start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="Parquet that `rufus prepare coding_agent` wrote")
    parser.add_argument("--output", type=Path, required=True, help="directory for the model")
    parser.add_argument("--tasks", type=int, default=4, help="how many tasks it learns")
    options = parser.parse_args(argv)
    import pyarrow.parquet as pq

    model, tokenizer = small_model()
    try:
        rows = pq.read_table(options.data).to_pylist()
        found = asyncio.run(learnt(rows, options.tasks, chat_of(model, tokenizer), tokenizer))
        if not found:
            raise ConfigError(f"{options.data} holds no task that can be taught")
        steps = teach(model, [lesson for lessons in found.values() for lesson in lessons])
    except (RufusError, OSError) as error:
        parser.exit(2, f"{error}\n")
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    print(f"wrote {options.output}: knows {', '.join(sorted(found))} by heart after {steps} steps")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
