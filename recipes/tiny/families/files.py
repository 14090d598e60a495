"""Coding Agent: three commands in a shell, for `task_tests` and `environment=shell` with the local sandbox.

"Look up red in KoRa, open that file, write its number to out." `grep red KoRa` names a file, that file holds a number,
and the number goes to `out`. The careless teacher writes the file's name. Every item is a Harbor task with a test
script of its own; one baked environment serves all.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rufus_plugins.recipes.tiny.families import Family, Item, calls, names, says, tool, user

FAMILY = Family(
    "coding_agent",
    "harbor",
    {"name": "task_tests"},
    {"name": "shell"},
    (tool("bash", command="string", timeout_s="number"),),
)
LISTS, TARGETS = 120, 60
"""Files that name files, and files with a number. Ours."""
COLOURS = "red green blue white amber".split()
WORDINGS = (
    "Look up {colour} in {first}, open that file, write its number to out.",
    "{first} names a file for {colour}. Its number goes to out.",
    "Put into out the number of the {colour} file of {first}.",
)
SILENT = "[no output]"


def world(seed: int) -> tuple[dict[str, dict[str, str]], dict[str, int]]:
    """List -> colour -> file, and file -> number."""
    rng = random.Random(f"files {seed}")
    drawn = names(LISTS + TARGETS, rng)
    lists, targets = drawn[:LISTS], drawn[LISTS:]
    numbers = dict(zip(targets, rng.sample(range(10, 100), TARGETS), strict=True))
    return {name: dict(zip(COLOURS, rng.sample(targets, len(COLOURS)), strict=True)) for name in lists}, numbers


def items(seed: int) -> list[Item]:
    lists, numbers = world(seed)
    rng = random.Random(f"errands {seed}")
    return [
        _item(first, colour, second, numbers[second], rng)
        for first, lines in lists.items()
        for colour, second in lines.items()
    ]


def _item(first: str, colour: str, second: str, number: int, rng: random.Random) -> Item:
    look = calls("bash", {"command": f"grep {colour} {first}"}, f"{colour} {second}")
    read = calls("bash", {"command": f"cat {second}"}, str(number))
    return Item(
        f"{first}-{colour}",
        user(rng.choice(WORDINGS).format(first=first, colour=colour)),
        "",
        (*look, *read, *calls("bash", {"command": f"echo {number} > out"}, SILENT), *says("Done.")),
        (*look, *calls("bash", {"command": f"echo {second} > out"}, SILENT), *says("Done.")),
        {"number": str(number)},
        str(number),
    )


def files(folder: Path, found: Sequence[Item], seed: int) -> None:
    """`tasks/<id>/` and the baked environment `environment/`, its name noted in `environment.json`."""
    import asyncio

    from rufus_plugins.recipes.coding_agent.bake import bake
    from rufus_plugins.rollouts.harbor import load

    lists, numbers = world(seed)
    base = folder / "environment-source"
    context = base / "environment"
    (context / "work").mkdir(parents=True)
    for name, lines in lists.items():
        (context / "work" / name).write_text("".join(f"{c} {second}\n" for c, second in lines.items()))
    for name, number in numbers.items():
        (context / "work" / name).write_text(f"{number}\n")
    _task(base, "Nothing.", "0")
    (context / "Dockerfile").write_text("FROM scratch\nCOPY work /work\nWORKDIR /work\n")
    baked = asyncio.run(bake(load(base), "local", folder / "environments", stand_in=["*"]))
    (folder / "environment.json").write_text(json.dumps(baked, sort_keys=True))
    for item in found:
        _task(folder / "tasks" / item.id, item.prompt[0]["content"], item.extra["number"])


def _task(folder: Path, instruction: str, number: str) -> None:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(
        'schema_version = "1.4"\n[environment]\nnetwork_mode = "no-network"\nworkdir = "/work"\n'
        "[agent]\ntimeout_sec = 120\n[verifier]\ntimeout_sec = 60\n"
    )
    (folder / "instruction.md").write_text(instruction + "\n")
    (folder / "tests" / "test.sh").write_text(
        f'[ "$(cat /work/out 2>/dev/null)" = {number} ] && won=1 || won=0\necho $won > /logs/verifier/reward.txt\n'
    )


def extra(item: Item, written: Path, folder: Path) -> dict[str, str]:
    """`written` is where the data lies now, `folder` where it will."""
    environment = json.loads((written / "environment.json").read_text())
    environment["snapshot"] = str(folder / Path(environment["snapshot"]).relative_to(written.resolve()))
    return {
        "task_dir": str(folder / "tasks" / item.id),
        "environment": json.dumps(environment, sort_keys=True),
        "multi_step_reward_strategy": "mean",
    }


def constant_baseline(found: Sequence[Item]) -> tuple[str, float]:
    """The fixed command that solves most items, and its share: only what is in `out` at the end counts."""
    number, count = Counter(item.extra["number"] for item in found).most_common(1)[0]
    return json.dumps([{"name": "bash", "arguments": {"command": f"echo {number} > out"}}]), count / len(found)
