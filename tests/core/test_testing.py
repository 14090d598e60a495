"""The contract checks notice what they are there to notice."""

import itertools
from dataclasses import dataclass

import pytest

from rufus_plugins import DataError, InfrastructureError, Score, StepResult
from rufus_plugins.testing import (
    ContractError,
    check_advantage_estimator,
    check_data_filter,
    check_environment,
    check_judge,
    check_name,
    check_plugin,
    check_reward,
    sample_task,
    sample_trajectory,
)


def reward(body):
    class Reward:
        async def __call__(self, trajectory):
            return body(trajectory)

    return Reward


ONE = [sample_trajectory("42", ground_truth="42")]


def test_a_reward_that_keeps_the_contract_gives_its_scores_in_order():
    lengths = reward(lambda t: Score(float(len(t.response)), {"long": len(t.response) > 2}))
    scores = check_reward(lengths, [sample_trajectory("a"), sample_trajectory("abc")])
    assert [s.value for s in scores] == [1.0, 3.0]


def test_the_config_reaches_the_reward():
    @dataclass
    class Reward:
        value: float = 0.0

        async def __call__(self, trajectory):
            return Score(self.value)

    assert check_reward(Reward, ONE, {"value": 0.25})[0].value == 0.25


COUNTER = itertools.count()


@pytest.mark.parametrize(
    "body, said",
    [
        (lambda t: 1.0, "returned float, not a rufus_plugins.Score"),
        (lambda t: Score(float("nan")), "not a finite number"),
        (lambda t: Score(True), "not a finite number"),
        (lambda t: Score("1"), "not a finite number"),
        (lambda t: Score(1.0, {"a": [1]}), "metric 'a'"),
        (lambda t: Score(float(int(t.response))), "raised ValueError"),
        (lambda t: Score(1.0, {t.response[:1] or "empty": 1}), "the same keys"),
        (lambda t: Score(float(next(COUNTER))), "pass deterministic=False"),
    ],
)
def test_a_reward_that_breaks_the_contract_is_told_which_rule(body, said):
    with pytest.raises(ContractError) as error:
        check_reward(reward(body), ONE)
    assert said in str(error.value)


def test_a_judge_may_vary():
    check_reward(reward(lambda t: Score(float(next(COUNTER)))), ONE, deterministic=False)


@pytest.mark.parametrize("error", [DataError("no tests"), InfrastructureError("sandbox is gone")])
def test_unusable_records_and_lost_infrastructure_are_not_the_rewards_fault(error):
    def body(trajectory):
        raise error

    with pytest.raises(type(error)):
        check_reward(reward(body), ONE)


def test_a_check_without_a_trajectory_checks_nothing_and_says_so():
    with pytest.raises(ContractError, match="at least one trajectory"):
        check_reward(reward(lambda t: Score(1.0)), [])


def test_names_and_kinds():
    assert check_name("reward", "mine") == "mine"
    with pytest.raises(ContractError, match="identifier"):
        check_name("reward", "not mine")
    with pytest.raises(ContractError, match="kinds are reward"):
        check_name("rewards", "mine")


def test_a_plugin_module_is_checked_without_being_installed(plugin, good):
    assert [*check_plugin(good("short").value).parts["reward"]] == ["short"]
    with pytest.raises(ContractError, match="ZeroDivisionError"):
        check_plugin(plugin("1/0").value)


class Echo:
    tools = ()
    closed = 0

    async def start(self, task):
        return list(task.prompt)

    async def step(self, message):
        return StepResult([{"role": "user", "content": message["content"]}], done=message["content"] == "bye")

    async def finish(self):
        return {}

    async def close(self):
        type(self).closed += 1


def test_an_environment_is_played_until_it_is_done_and_closed_once():
    before = Echo.closed
    steps = check_environment(Echo, sample_task(), ["hi", "bye", "never reached"])
    assert [s.done for s in steps] == [False, True] and Echo.closed == before + 1


@pytest.mark.parametrize(
    "change, said",
    [
        ({"step": lambda self, m: None}, "is not async"),
        ({"tools": ({"name": "f"},)}, "no OpenAI function schema"),
    ],
)
def test_an_environment_that_breaks_the_contract_is_told_which_rule(change, said):
    with pytest.raises(ContractError) as error:
        check_environment(type("Changed", (Echo,), change), sample_task(), ["hi"])
    assert said in str(error.value)


def test_a_data_filter_needs_a_reason_for_what_it_drops():
    class Silent:
        def __call__(self, task):
            return False, ""

    with pytest.raises(ContractError, match="needs one"):
        check_data_filter(Silent, [sample_task()])


def test_a_judge_gives_a_score():
    class Judge:
        async def __call__(self, question, candidate, reference=None):
            return Score(float(candidate == reference))

    assert check_judge(Judge, "q", "a", "a").value == 1.0


def test_an_estimator_must_not_touch_masked_tokens():
    def unmasked(token_level_rewards, response_mask, **kwargs):
        ones = token_level_rewards.new_ones(token_level_rewards.shape)
        return ones, ones

    with pytest.raises(ContractError, match="mask 0"):
        check_advantage_estimator(unmasked)
