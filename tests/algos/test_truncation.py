import pytest

from rufus_plugins.algos.truncation import ResponseBudget, masked_terminations, truncation_rate
from rufus_plugins.errors import ConfigError
from rufus_plugins.types import Termination as T


def test_truncations_are_masked_by_default_and_a_stage_may_choose():
    assert masked_terminations(None) == {T.RESPONSE_LENGTH, T.CONTEXT_LENGTH}
    assert masked_terminations([]) == set()
    assert masked_terminations(["max_turns"]) == {T.MAX_TURNS}


@pytest.mark.parametrize(
    "names, words",
    [
        (["length"], "choose from"),
        (["sandbox_lost"], "always masked"),
        ("response_length", r"write \[response_length\]"),
    ],
)
def test_a_wrong_ending_says_what_exists(names, words):
    with pytest.raises(ConfigError, match=words):
        masked_terminations(names)


def test_the_truncation_rate_leaves_infrastructure_faults_out():
    endings = [T.ANSWERED, T.RESPONSE_LENGTH, T.CONTEXT_LENGTH, T.TOOL_BUDGET, T.SANDBOX_LOST]
    assert truncation_rate(endings) == 0.5
    assert truncation_rate([T.SANDBOX_LOST]) == 0.0
    assert truncation_rate([None, T.RESPONSE_LENGTH]) == 0.5


def test_the_schedule_warns_after_patience_and_does_not_move_unless_told():
    budget = ResponseBudget([65536, 131072], threshold=0.1, patience=2)
    assert budget.observe(0.3) is None
    assert "move_on=true" in budget.observe(0.3)
    assert budget.current == 65536
    assert budget.observe(0.1) is None and budget.above == 0  # at the threshold is not above it


def test_the_schedule_moves_on_if_told_and_says_when_no_budget_is_left():
    budget = ResponseBudget([65536, 131072], threshold=0.1, patience=2, move_on=True)
    budget.observe(0.2)
    assert "131072" in budget.observe(0.2)
    assert budget.current == 131072
    assert budget.observe(0.2) is None  # patience starts again
    assert "last budget" in budget.observe(0.2)


def test_the_schedule_resumes_where_it_was():
    budget = ResponseBudget([64, 128], threshold=0.1, patience=2, move_on=True)
    for rate in (0.5, 0.5, 0.5):
        budget.observe(rate)
    again = ResponseBudget([64, 128], threshold=0.1, patience=2)
    again.resume(budget.state())
    assert (again.current, again.above) == (128, 1)
    changed = ResponseBudget([64, 256])
    changed.resume(budget.state())
    assert (changed.current, changed.above) == (256, 0)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"budgets": []},
        {"budgets": [128, 64]},
        {"budgets": [0]},
        {"budgets": [64], "threshold": 1.0},
        {"budgets": [64], "patience": 0},
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(kwargs):
    with pytest.raises(ConfigError):
        ResponseBudget(**kwargs)
