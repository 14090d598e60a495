"""Our worlds, from the task to the score: what solves a task scores 1, what does not 0."""

from __future__ import annotations

import asyncio
import json
import runpy
import sqlite3
from pathlib import Path

import pytest

from rufus_plugins.recipes.general_agent.worlds import pack
from rufus_plugins.rewards.post_state import PostState
from rufus_plugins.rollouts.environments.mcp import Mcp
from rufus_plugins.rollouts.environments.world_data import library
from rufus_plugins.types import CallStatus, Task, Trajectory

_given = runpy.run_path(str(Path(__file__).with_name("world_solutions.py")))
SOLUTIONS, NEAR = _given["SOLUTIONS"], _given["NEAR"]
WORLDS = list(SOLUTIONS)


def turn(*calls):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ],
    }


def task_of(scenario: str, index: int) -> Task:
    worlds = library("builtin")
    return Task(
        f"{scenario}-{index}",
        "agent_world_model",
        [{"role": "user", "content": worlds.tasks(scenario)[index]}],
        {"verifier": worlds.verifier(scenario, index)},
        {"scenario": scenario},
    )


async def play(scenario: str, index: int, calls, answer: str, folder: Path):
    """The trajectory of scripted calls."""
    task, environment = task_of(scenario, index), Mcp(folder=str(folder))
    statuses = []
    try:
        await environment.start(task)
        for call in calls:
            statuses += [m["status"] for m in (await environment.step(turn(call))).messages]
        final = {"role": "assistant", "content": answer}
        assert (await environment.step(final)).done
        artifacts = await environment.finish()
    finally:
        await environment.close()
    return Trajectory(task, messages=[final], artifacts=artifacts), statuses


async def scores(scenario, attempts, folder):
    played = await asyncio.gather(
        *(play(scenario, i, calls, answer, folder) for i, (calls, answer) in enumerate(attempts))
    )
    return [(await PostState()(one)).value for one, _ in played], played


def judged(trajectory: Trajectory, source: str, answer: str) -> bool:
    space: dict = {}
    exec(source, space)
    paths = trajectory.artifacts
    return space["verify_task_completion"](paths["db_before"], paths["db_after"], answer)["result"] == "complete"


@pytest.mark.parametrize("scenario", WORLDS)
def test_reference_solutions_score_one_and_no_fixed_sequence_solves_a_second_task(scenario, tmp_path):
    values, played = asyncio.run(scores(scenario, SOLUTIONS[scenario], tmp_path))
    assert values == [1.0] * 10
    # every solution against every verifier, with an answer that contains all that any of them asks for
    everything = " ".join(answer for _, answer in SOLUTIONS[scenario])
    solved = [
        [judged(one, task_of(scenario, i).ground_truth["verifier"], everything) for i in range(10)] for one, _ in played
    ]
    assert solved == [[i == j for i in range(10)] for j in range(10)]  # so a constant policy gets one in ten


@pytest.mark.parametrize("scenario", WORLDS)
def test_nearly_right_and_idle_runs_score_zero(scenario, tmp_path):
    values, _ = asyncio.run(scores(scenario, NEAR[scenario], tmp_path))
    assert values == [0.0] * 10
    idle = [([], answer) for _, answer in SOLUTIONS[scenario]]
    values, _ = asyncio.run(scores(scenario, idle, tmp_path))
    assert values == [0.0] * 10


def test_every_task_takes_three_calls_and_some_recover_from_an_error(tmp_path):
    recovered = {}
    for scenario in WORLDS:
        assert all(len(calls) >= 3 for calls, _ in SOLUTIONS[scenario])
        _, played = asyncio.run(scores(scenario, SOLUTIONS[scenario], tmp_path))
        recovered[scenario] = sum(CallStatus.ERROR in statuses for _, statuses in played)
    assert recovered == {"shop": 7, "desk": 6, "bank": 8}


def test_the_worlds_have_fifteen_to_thirty_five_tools_with_descriptions():
    async def tools(scenario):
        environment = Mcp()
        try:
            await environment.start(task_of(scenario, 0))
            return [tool["function"] for tool in environment.tools]
        finally:
            await environment.close()

    for scenario in WORLDS:
        found = asyncio.run(tools(scenario))
        assert 15 <= len(found) <= 35
        assert all(tool["description"] for tool in found)
        assert len({tool["name"] for tool in found}) == len(found)


def test_the_packed_files_are_those_of_the_folders():
    for name, content in pack.packed().items():
        assert (pack.HERE / name).read_text() == content, f"{name} is old: run {pack.__name__}"


def test_the_initial_state_stays_as_it_is(tmp_path):
    calls, answer = SOLUTIONS["bank"][0]
    one, _ = asyncio.run(play("bank", 0, calls, answer, tmp_path))
    with sqlite3.connect(one.artifacts["db_before"]) as before, sqlite3.connect(one.artifacts["db_after"]) as after:
        query = "SELECT balance_cents FROM accounts WHERE id IN (21, 22) ORDER BY id"
        assert before.execute(query).fetchall() == [(30000,), (90000,)]
        assert after.execute(query).fetchall() == [(0,), (58000,)]


def test_sql_conditions_judge_a_world_as_well(tmp_path):
    calls, answer = SOLUTIONS["bank"][2]

    async def score(condition):
        one, _ = await play("bank", 2, calls, answer, tmp_path)
        task = Task(one.task.id, "x", one.task.prompt, json.dumps({"sql": [condition]}))
        return (await PostState()(Trajectory(task, messages=one.messages, artifacts=one.artifacts))).value

    changed = {"query": "SELECT amount_cents, day FROM standing_orders WHERE id = 1", "rows": [[5200, 10]]}
    assert asyncio.run(score(changed)) == 1.0
    assert asyncio.run(score({**changed, "rows": [[5200, 5]]})) == 0.0
