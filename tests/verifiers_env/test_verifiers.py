"""Tasks of a real `verifiers` taskset played by our episodes: tools, state, hooks, stops, rewards, refusals."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.verifiers import VerifiersReward
from rufus_plugins.rollouts.environments.verifiers import Verifiers
from rufus_plugins.rollouts.episode import Episode, Limits
from rufus_plugins.rollouts.rules import EpisodeRules
from rufus_plugins.testing import check_environment
from rufus_plugins.types import CallStatus, Task, Termination

pytestmark = pytest.mark.slow
_endings = Path(__file__).parents[1] / "rollouts" / "test_segment_endings.py"
_spec = importlib.util.spec_from_file_location("endings", _endings)
endings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(endings)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(taskset, *lines, idx=1, config=None, extra=None):
    environment = Verifiers(taskset, config or {})
    task = Task("t", "verifiers", (), None, extra or {"idx": str(idx)})
    script, limits = endings.Script(*lines), Limits(100_000, 50_000)
    rollout = asyncio.run(Episode(task, environment, script, endings.Letters(), EpisodeRules(), limits).run())
    return rollout, environment, script


def score(rollout):
    return asyncio.run(VerifiersReward()(rollout.trajectory))


def test_an_episode_earns_what_the_tasks_own_rewards_say(taskset):
    lines = call("counter_increase", by=2) + call("counter_increase"), call("counter_increase", by=2), "It is 5."
    rollout, environment, script = play(taskset, *lines)
    assert script.prompts[0] == "Use the tools.Count to 5."
    trajectory = rollout.trajectory
    assert trajectory.termination is Termination.ANSWERED
    results = [m["content"] for m in trajectory.messages if m["role"] == "tool"]
    assert results == [f"the counter stands at {n} of 7" for n in (2, 3, 5)]
    found = score(rollout)
    assert found.value == 2.5  # 2 x exact + 0.5 x said
    assert found.metrics == {"reward_exact": 1.0, "reward_said": 1.0, "metric_calls": 3.0}
    assert trajectory.artifacts["verifiers"]["rewards"]["exact"] == {"score": 1.0, "weight": 2.0}


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (["It is 5."], 0.5),
        ([call("counter_increase", by=5), "done"], 2.0),
        ([call("counter_increase", by=4), "4"], 0.0),
    ],
)
def test_each_reward_counts_by_its_weight(taskset, lines, value):
    assert score(play(taskset, *lines)[0]).value == value


def test_tools_have_their_schemas_and_their_errors_are_results(taskset):
    lines = (
        call("counter_increase", by=-1),
        call("counter_increase", by="x"),
        call("counter_read"),
        call("nothing"),
        "no",
    )
    rollout, environment, _ = play(taskset, *lines)
    assert [t["function"]["name"] for t in environment.tools] == ["counter_increase", "counter_read"]
    schema = environment.tools[0]["function"]
    assert (
        schema["description"] == "Adds to the counter."
        and schema["parameters"]["properties"]["by"]["type"] == "integer"
    )
    statuses = [c.status for c in rollout.trajectory.tool_calls]
    assert statuses == [CallStatus.ERROR, CallStatus.ERROR, CallStatus.OK, CallStatus.ERROR]
    contents = [m["content"] for m in rollout.trajectory.messages if m["role"] == "tool"]
    assert "only upwards" in contents[0] and "valid integer" in contents[1] and '"value"' in contents[2]


def test_a_stop_of_the_task_ends_the_episode(taskset):
    rollout, _, _ = play(taskset, call("counter_increase", by=200), "never said")
    assert rollout.trajectory.termination is Termination.STOPPED and score(rollout).value == 0.0


def test_state_is_the_episodes_own_and_setup_ran_with_a_runtime(taskset):
    async def two():
        environments = [Verifiers(taskset) for _ in range(2)]
        for environment in environments:
            await environment.start(Task("t", "v", (), None, {"idx": 0}))
        function = {"name": "counter_increase", "arguments": {"by": 3}}
        message = {"role": "assistant", "content": "", "tool_calls": [{"id": "0", "function": function}]}
        await environments[0].step(message)
        traces = [environment._episode.trace for environment in environments]
        for environment in environments:
            await environment.close()
        return [(trace.state.value, trace.state.note) for trace in traces]

    assert asyncio.run(two()) == [(3, "ready"), (0, "ready")]


def test_config_reaches_the_taskset_and_validation_may_differ(taskset):
    config = {"task": {"counter": {"step": 5}}}
    rollout, _, _ = play(taskset, call("counter_increase"), "5", config=config)
    assert score(rollout).value == 2.5
    environment = Verifiers(taskset, validation={"taskset_config": config})
    task = Task("t", "v", (), None, {"idx": 1, "validate": True})
    asyncio.run(environment.start(task))
    assert environment._episode.task.config.counter.step == 5
    asyncio.run(environment.close())


def test_a_scorer_that_breaks_is_our_fault_and_never_a_0(taskset):
    rollout, _, _ = play(taskset, "break the scorer")
    assert rollout.trajectory.termination is Termination.ENVIRONMENT_LOST
    assert "the scorer is broken" in rollout.problem
    with pytest.raises(InfrastructureError):
        score(rollout)


def test_records_name_their_task_by_index_or_key(taskset):
    key = Verifiers(taskset)._tasks.first(None)[2].key
    assert "Count to 7." in play(taskset, "x", extra={"key": key})[2].prompts[0]
    for extra in ({}, {"idx": 3}, {"idx": "one"}, {"key": "nobody"}):
        environment = Verifiers(taskset)
        with pytest.raises(DataError):
            asyncio.run(environment.start(Task("t", "v", (), None, extra)))


def test_a_wrong_setup_is_told_before_anything_runs(taskset):
    with pytest.raises(ConfigError, match="no-such-taskset"):
        Verifiers("no-such-taskset")
    with pytest.raises(ConfigError, match="does not load"):
        Verifiers(taskset, {"typo": 1})
    with pytest.raises(ConfigError, match="no rufus.environment.validation.x"):
        Verifiers(taskset, validation={"x": 1})


def test_it_keeps_the_contract_of_environments(taskset):
    task = Task("t", "v", (), None, {"idx": 0})
    assert check_environment(lambda: Verifiers(taskset), task, ["3"])[0].done


def test_its_tasks_become_records(taskset, tmp_path):
    import pyarrow.parquet as pq

    from rufus_plugins.recipes.adapters.verifiers import prepare

    manifest = prepare(taskset, tmp_path / "out", heldout_share=0.3)
    rows = [row for name in manifest["files"] for row in pq.read_table(tmp_path / "out" / name).to_pylist()]
    assert manifest["kept"] == len(rows) == 3
    row = next(row for row in rows if row["extra_info"]["idx"] == "1")
    assert [m["content"] for m in row["prompt"]] == ["Use the tools.", "Count to 5."]
    rollout, _, _ = play(taskset, call("counter_increase", by=5), "5", extra=row["extra_info"])
    assert score(rollout).value == 2.5
