"""Axion's reward: 1, else max(0, 0.3 P - 0.1 (1 - A)), worked out by hand."""

import asyncio

import pytest

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.progress_chain import ProgressChain, progress, targets_of
from rufus_plugins.types import Task, Termination, Trajectory

MASS = {"name": "mass", "value": 12.0, "unit": "kg"}
SPEED = {"name": "speed", "value": 3.5, "unit": "m/s", "depends_on": ["mass"]}
ENERGY = {"name": "energy", "value": 73.5, "unit": "J", "tolerance": 0.02, "depends_on": ["speed"]}
CHAIN = [ENERGY, MASS, SPEED]  # out of order on purpose


def score(*messages, answer="250 J", targets=CHAIN, ending=Termination.ANSWERED, **config):
    trajectory = Trajectory(
        Task(
            "1", "axion", [{"role": "user", "content": "A ball of 73.5 J ..."}], {"answer": answer, "targets": targets}
        ),
        messages=[{"role": role, "content": text} for role, text in messages],
        termination=ending,
    )
    return asyncio.run(ProgressChain(**config)(trajectory))


def said(text):
    return ("assistant", text)


def test_a_correct_answer_is_1_whatever_the_chain_says():
    assert score(said("Answer: 250 J")).value == 1.0


def test_the_chain_pays_for_its_passed_head():
    assert score(said("mass 12 kg, speed 3.5 m/s, E = 73.5 J\nAnswer: 99 J")).value == pytest.approx(0.3)
    assert score(said("mass 12 kg, speed 3.5 m/s\nAnswer: 99 J")).value == pytest.approx(0.2)
    assert score(said("mass 12 kg\nAnswer: 99 J")).value == pytest.approx(0.1)
    assert score(said("Answer: 99 J")).value == 0.0


def test_a_step_counts_only_if_all_before_it_passed():
    assert score(said("speed 3.5 m/s, E = 73.5 J\nAnswer: 99 J")).value == 0.0
    found = score(said("mass 12 kg, E = 73.5 J\nAnswer: 99 J"))
    assert found.value == pytest.approx(0.1) and found.metrics["targets_passed"] == 2
    assert progress([True, False, True]) == pytest.approx(1 / 3) and progress([]) == 0.0


def test_no_answer_costs_a_tenth_and_the_floor_is_0():
    full = ("assistant", "mass 12 kg, speed 3.5 m/s, E = 73.5 J")
    assert score(full, ending=Termination.CONTEXT_LENGTH).value == pytest.approx(0.2)
    assert score(said("nothing"), ending=Termination.CONTEXT_LENGTH).value == 0.0
    assert score(said("nothing"), ending=Termination.CONTEXT_LENGTH, floor=None).value == pytest.approx(-0.1)


def test_evidence_may_come_from_a_tool_result_in_another_unit():
    found = score(said("I look it up"), ("tool", "weight: 12000 g; pace 12.6 km/h"), said("Answer: 99 J"))
    assert found.value == pytest.approx(0.2)


def test_a_bare_number_does_not_meet_a_target_with_a_unit():
    assert score(said("12 and 3.5 and 73.5\nAnswer: 99 J")).value == 0.0


def test_a_target_without_a_unit_needs_a_bare_number():
    ratio = [{"name": "ratio", "value": 0.75, "tolerance": 0}]
    assert score(said("ratio = 0.75\nAnswer: 9"), targets=ratio).value == pytest.approx(0.3)
    assert score(said("it weighs 0.75 kg\nAnswer: 9"), targets=ratio).value == 0.0


def test_the_task_itself_is_no_evidence():
    assert score(said("Answer: 99 J"), targets=[{"name": "energy", "value": 73.5, "unit": "J"}]).value == 0.0


def test_tolerances_are_relative_or_absolute():
    loose = [{"name": "t", "value": 20.0, "unit": "°C", "tolerance": 0, "absolute": 0.5}]
    assert score(said("It is 20.4 °C\nAnswer: 9"), targets=loose).value == pytest.approx(0.3)
    assert score(said("It is 20.6 °C\nAnswer: 9"), targets=loose).value == 0.0


def test_listing_numbers_earns_nothing():
    spam = " ".join(f"{i / 10} J {i} kg {i / 10} m/s" for i in range(1000))
    assert score(said(spam + "\nAnswer: 99 J")).value == 0.0


def test_an_infrastructure_fault_is_never_scored():
    with pytest.raises(InfrastructureError):
        score(said("Answer: 250 J"), ending=Termination.ENGINE_FAILED)


def test_the_order_follows_the_dependencies():
    assert [t.name for t in targets_of({"targets": CHAIN})] == ["mass", "speed", "energy"]
    free = [{"name": n, "value": 1} for n in "bca"]
    assert [t.name for t in targets_of({"targets": free})] == ["b", "c", "a"]


@pytest.mark.parametrize(
    "targets, said",
    [
        ([{"name": "a", "value": 1, "depends_on": ["b"]}, {"name": "b", "value": 1, "depends_on": ["a"]}], "cycle"),
        ([{"name": "a", "value": 1, "depends_on": ["z"]}], "z"),
        ([{"name": "a", "value": 1}, {"name": "a", "value": 2}], "twice"),
        ([{"name": "a", "value": "1"}], "target"),
        ([{"name": "a", "value": 1, "unit": "wibbles"}], "wibbles"),
        ([{"name": "a", "value": 1, "tolerance": -1}], "tolerance"),
        ("a", "list"),
    ],
)
def test_targets_of_the_wrong_shape_make_the_record_unusable(targets, said):
    with pytest.raises(DataError, match=said):
        targets_of({"targets": targets})


def test_the_answer_is_decided_by_another_reward():
    assert score(said("\\boxed{\\frac{1}{2}}"), answer="0.5", answer_reward="math_answer").value == 1.0
    with pytest.raises(ConfigError, match="no_such"):
        ProgressChain(answer_reward="no_such")


def test_a_record_without_an_answer_is_set_aside():
    trajectory = Trajectory(Task("1", "axion", [], {"targets": []}))
    with pytest.raises(DataError, match="answer"):
        asyncio.run(ProgressChain()(trajectory))
