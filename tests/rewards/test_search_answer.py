"""Search Agent reward: R = s (1 - 0.5 m), worked out by hand on trajectories made by hand."""

import asyncio

import pytest

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.rewards.search_answer import SearchAnswer
from rufus_plugins.types import CallStatus, Score, Task, Termination, ToolCall, Trajectory

OK, ERROR, BAD = CallStatus.OK, CallStatus.ERROR, CallStatus.MALFORMED


def fixed(value):
    async def judge(question, candidate, reference=None):
        return Score(value, {"judge_latency_s": 0.5}, "said so")

    return judge


def rollout(
    calls, answer="It is Paris.", ending=Termination.ANSWERED, tool="Paris is the capital.", gold="Paris", **more
):
    messages = [
        {"role": "assistant", "content": "I search."},
        {"role": "tool", "content": tool},
        {"role": "assistant", "content": answer},
    ]
    return Trajectory(
        Task("1", "search", [{"role": "user", "content": "Capital of France?"}], gold),
        messages=messages,
        tool_calls=[ToolCall("search", {}, status, i, status is not BAD) for i, status in enumerate(calls)],
        termination=ending,
        **more,
    )


def score(trajectory, judge=1.0):
    return asyncio.run(SearchAnswer(judge=fixed(judge) if isinstance(judge, float) else judge)(trajectory))


@pytest.mark.parametrize(
    "calls, s, reward",
    [
        ([OK, OK], 1.0, 1.0),
        ([OK, OK, BAD, BAD], 1.0, 0.75),  # m = 1/2
        ([OK, OK, OK, BAD], 0.8, 0.7),  # 0.8 * (1 - 0.5/4)
        ([OK, OK, ERROR], 1.0, 1.0),  # an error is no malformed call
        ([OK], 1.0, 0.0),  # two successful calls are needed
        ([OK, ERROR, ERROR], 1.0, 0.0),
        ([], 1.0, 0.0),
        ([OK, OK], 0.0, 0.0),
    ],
)
def test_the_formula(calls, s, reward):
    assert score(rollout(calls), s).value == pytest.approx(reward)


@pytest.mark.parametrize("ending", [Termination.TOOL_BUDGET, Termination.MAX_TURNS, Termination.CONTEXT_LENGTH])
def test_a_budget_that_ends_without_an_answer_costs_a_tenth(ending):
    assert score(rollout([OK] * 100, "", ending)).value == -0.1


def test_no_answer_without_a_spent_budget_is_0():
    assert score(rollout([OK, OK], "", Termination.STOPPED)).value == 0.0
    assert score(rollout([OK, OK], "<think>Paris", Termination.ANSWERED)).value == 0.0


def test_an_infrastructure_fault_is_never_scored():
    for ending in (Termination.ENVIRONMENT_LOST, Termination.CANCELLED):
        with pytest.raises(InfrastructureError) as caught:
            score(rollout([OK, OK], ending=ending))
        assert caught.value.termination is ending


def test_a_failing_judge_is_passed_on_and_never_a_0():
    async def broken(question, candidate, reference=None):
        raise InfrastructureError("down", Termination.JUDGE_FAILED)

    with pytest.raises(InfrastructureError, match="down"):
        score(rollout([OK, OK]), broken)


def test_an_answer_that_no_earlier_tool_result_holds_is_flagged():
    found = score(rollout([OK, OK], tool="Nothing of use."))
    assert found.value == 1.0 and found.metrics["incidental"] is True and found.metrics["evidence"] is False
    found = score(rollout([OK, OK]))
    assert found.metrics["incidental"] is False and found.metrics["evidence"] is True


def test_evidence_that_comes_after_the_answer_does_not_count():
    base = rollout([OK, OK], tool="Nothing of use.")
    late = Trajectory(
        base.task, messages=[*base.messages, {"role": "tool", "content": "Paris"}], tool_calls=base.tool_calls
    )
    assert score(late).metrics["evidence"] is False


def test_evidence_may_be_kept_as_an_artifact():
    found = score(rollout([OK, OK], tool="", artifacts={"evidence": [{"text": "the city of Paris"}]}))
    assert found.metrics["evidence"] is True


def test_the_judge_sees_the_question_the_answer_and_all_golds():
    seen = []

    async def judge(question, candidate, reference=None):
        seen.append((question, candidate, reference))
        return Score(1.0)

    score(rollout([OK, OK], "<think>hm</think>Paris", gold=["Paris", "Lutetia"]), judge)
    assert seen == [("Capital of France?", "Paris", "Paris ||| Lutetia")]


def test_the_rule_judge_reads_alternatives():
    assert score(rollout([OK, OK], "Answer: Lutetia", gold=["Paris", "Lutetia"]), "rule").value == 1.0


def test_calls_are_counted_in_the_metrics():
    found = score(rollout([OK, OK, BAD, ERROR])).metrics
    assert (found["tool_calls"], found["tool_calls_ok"], found["tool_calls_malformed"]) == (4, 2, 1)
    assert found["malformed_fraction"] == 0.25 and found["judge_latency_s"] == 0.5
