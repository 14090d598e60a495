"""weighted, all_of and by_data_source, on rewards whose values are known."""

import asyncio

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.plugins import registry
from rufus_plugins.rewards.all_of import AllOf
from rufus_plugins.rewards.by_data_source import ByDataSource
from rufus_plugins.rewards.weighted import Weighted
from rufus_plugins.types import Score, Task, Termination, Trajectory


def fixed(value):
    async def reward(trajectory):
        if isinstance(value, Exception):
            raise value
        return Score(value, {"seen": trajectory.task.id}, f"gives {value}")

    return reward


def run(reward, source="a"):
    return asyncio.run(reward(Trajectory(Task("1", source, []))))


def test_a_weighted_sum_uses_the_weights_as_given():
    found = run(Weighted([fixed(0.5), fixed(1.0)]))
    assert found.value == 1.5
    real = Weighted([{"reward": "science_answer", "weight": 0.75}, {"reward": "math_answer", "weight": -0.25}])
    task = Task("1", "a", [], "4")
    score = asyncio.run(real(Trajectory(task, messages=[{"role": "assistant", "content": "\\boxed{4}"}])))
    assert (
        score.value == 0.5 and score.metrics["science_answer"] == 1.0 and score.metrics["math_answer/answered"] is True
    )


def test_all_parts_must_pass():
    assert run(AllOf([fixed(1.0), fixed(1.0)])).value == 1.0
    assert run(AllOf([fixed(1.0), fixed(0.9)])).value == 0.0
    assert run(AllOf([fixed(0.5), fixed(0.9)], threshold=0.5)).value == 1.0


def test_parts_of_the_same_name_keep_their_own_metrics():
    found = run(AllOf([fixed(1.0), fixed(0.0)]))
    assert found.metrics["function_1"] == 1.0 and found.metrics["function_2"] == 0.0
    assert "function_2 = 0: gives 0.0" in found.explanation


@pytest.mark.parametrize("kind", [Weighted, AllOf])
def test_a_fault_in_one_part_is_a_fault_of_the_whole_and_no_half_score(kind):
    fault = InfrastructureError("down", Termination.JUDGE_FAILED)
    with pytest.raises(InfrastructureError, match="down"):
        run(kind([fixed(1.0), fixed(fault)]))


def test_a_fault_ends_the_other_parts():
    ended = []

    async def slow(trajectory):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    with pytest.raises(InfrastructureError):
        run(AllOf([slow, fixed(InfrastructureError("down", Termination.JUDGE_FAILED))]))
    assert ended == [True]


def test_records_are_routed_by_their_source():
    reward = ByDataSource({"gsm8k": fixed(1.0), "puzzle/*": fixed(2.0), "puzzle/hard/*": fixed(3.0)})
    assert run(reward, "gsm8k").value == 1.0 and run(reward, "gsm8k").metrics["data_source"] == "gsm8k"
    assert run(reward, "puzzle/easy").value == 2.0 and run(reward, "puzzle/hard/1").value == 3.0
    assert run(ByDataSource({"*": fixed(4.0)}), "anything").value == 4.0


def test_an_unknown_source_says_what_is_routed():
    with pytest.raises(DataError, match="Did you mean 'gsm8k'") as caught:
        run(ByDataSource({"gsm8k": fixed(1.0), "math": fixed(1.0)}), "gsm8")
    assert "gsm8k, math" in str(caught.value) and "routes" in str(caught.value)


@pytest.mark.parametrize(
    "name, config, said",
    [
        ("weighted", {}, "parts"),
        ("weighted", {"parts": [{"weight": 1}]}, "names no reward"),
        ("weighted", {"parts": [{"reward": "math_answer", "weight": "much"}]}, "weight"),
        ("weighted", {"parts": ["no_such"]}, "no_such"),
        ("weighted", {"parts": [{"reward": "math_answer", "no_field": 1}]}, "no_field"),
        ("weighted", {"parts": "math_answer"}, "list"),
        ("all_of", {}, "parts"),
        ("all_of", {"parts": [3]}, "3"),
        ("by_data_source", {}, "routes"),
        ("by_data_source", {"routes": {"a": "no_such"}}, "no_such"),
    ],
)
def test_a_wrong_composition_is_refused_when_it_is_built(name, config, said):
    with pytest.raises(ConfigError, match=said):
        registry().build("reward", name, config)


def test_compositions_nest():
    reward = registry().build(
        "reward", "by_data_source", {"routes": {"a": {"reward": "all_of", "parts": ["math_answer", "science_answer"]}}}
    )
    task = Task("1", "a", [], "4")
    assert asyncio.run(reward(Trajectory(task, messages=[{"role": "assistant", "content": "\\boxed{4}"}]))).value == 1.0


def test_only_a_star_of_a_route_is_a_pattern():
    reward = ByDataSource({"set[v2]/*": fixed(1.0), "what?/*": fixed(2.0)})
    assert run(reward, "set[v2]/x").value == 1.0 and run(reward, "what?/x").value == 2.0
    for other in ("setv/x", "set2/x", "whats/x"):
        with pytest.raises(DataError, match="no reward"):
            run(reward, other)
