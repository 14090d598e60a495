"""The data types and the error model."""

import pickle

import pytest

from rufus_plugins import Fault, InfrastructureError, Task, Termination, Trajectory

TASK = Task("1", "x", [{"role": "user", "content": "q"}])

FAULTS = {
    "policy": {"answered", "stopped", "malformed"},
    "budget": {"max_turns", "tool_budget", "response_length", "context_length", "episode_timeout"},
    "infrastructure": {
        "environment_lost",
        "sandbox_lost",
        "judge_failed",
        "reward_failed",
        "engine_failed",
        "tokens_diverged",
        "timeout_infra",
        "cancelled",
    },
}


def test_every_ending_has_the_fault_that_the_error_model_gives_it():
    assert {t.value: t.fault.value for t in Termination} == {
        ending: fault for fault, endings in FAULTS.items() for ending in endings
    }


@pytest.mark.parametrize("ending", [t for t in Termination if t.fault is not Fault.INFRASTRUCTURE])
def test_what_the_policy_or_a_budget_ended_is_no_infrastructure_error(ending):
    with pytest.raises(ValueError, match="no infrastructure fault"):
        InfrastructureError("x", ending)


def test_an_infrastructure_error_keeps_its_ending():
    assert InfrastructureError("judge is down", Termination.JUDGE_FAILED).termination is Termination.JUDGE_FAILED
    assert InfrastructureError("late").termination is Termination.TIMEOUT_INFRA


@pytest.mark.parametrize(
    "messages, response",
    [
        ([], ""),
        ([{"role": "tool", "content": "t"}], ""),
        ([{"role": "assistant", "content": "a"}, {"role": "tool", "content": "t"}], "a"),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], "b"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], ""),
        ([{"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "image"}, {"text": "y"}]}], "xy"),
    ],
)
def test_the_response_is_the_text_of_the_last_assistant_message(messages, response):
    assert Trajectory(TASK, messages=messages).response == response


def test_a_trajectory_travels_between_processes():
    trajectory = Trajectory(TASK, messages=[{"role": "assistant", "content": "a"}], termination=Termination.MAX_TURNS)
    assert pickle.loads(pickle.dumps(trajectory)) == trajectory


def test_types_are_frozen():
    with pytest.raises(AttributeError):
        TASK.id = "2"
