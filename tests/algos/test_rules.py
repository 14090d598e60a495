"""Every rule under `rufus:` refuses what it cannot mean, in the same words, before a run starts."""

import pytest

from rufus_plugins.algos.group_filter import group_filter
from rufus_plugins.algos.length_penalty import length_penalty
from rufus_plugins.algos.truncation import masked_terminations, response_budget
from rufus_plugins.errors import ConfigError

OVER = {"kind": "over_target", "target": 10}
SHORTEST = {"kind": "shortest_correct"}


@pytest.mark.parametrize(
    ("build", "config", "words"),
    [
        (group_filter, {"zero_variance": "false"}, "rufus.group_filter.zero_variance='false': bool is needed"),
        (group_filter, {"low": "0"}, "rufus.group_filter.low='0': float | None is needed"),
        (group_filter, {"low": True}, "rufus.group_filter.low=True"),
        (group_filter, {"low": float("nan")}, "rufus.group_filter.low=nan"),
        (group_filter, {"max_rounds": 1.5}, "rufus.group_filter.max_rounds=1.5: int is needed"),
        (group_filter, {"max_age_steps": float("nan")}, "rufus.group_filter.max_age_steps=nan"),
        (group_filter, {"solved_at": float("nan")}, "rufus.group_filter.solved_at=nan"),
        (group_filter, {"metric": 5}, "rufus.group_filter.metric=5: str is needed"),
        (group_filter, {5: 1}, "rufus.group_filter has no 5"),
        (group_filter, "productive", "rufus.group_filter is a mapping of fields, or null, not 'productive'"),
        (group_filter, True, "rufus.group_filter is a mapping"),
        (length_penalty, OVER | {"target": "10"}, "rufus.length_penalty (over_target).target='10': int is needed"),
        (length_penalty, OVER | {"target": 1.5}, "rufus.length_penalty (over_target).target=1.5: int is needed"),
        (length_penalty, OVER | {"cap": 10}, "rufus.length_penalty.cap is a token count above 10, or null, not 10"),
        (length_penalty, SHORTEST | {"cap": -1}, "rufus.length_penalty.cap is a token count above 0"),
        (length_penalty, SHORTEST | {"alpha": None}, "rufus.length_penalty (shortest_correct).alpha=None"),
        (length_penalty, {"kind": ["over_target"]}, "rufus.length_penalty.kind=['over_target'] does not exist"),
        (length_penalty, "over_target", "rufus.length_penalty is a mapping"),
        (response_budget, {"budgets": 7}, "rufus.response_budgets.budgets=7: a list is needed"),
        (response_budget, {"budgets": [7], "patience": "5"}, "rufus.response_budgets.patience='5': int is needed"),
        (response_budget, [7, 8], "rufus.response_budgets is a mapping"),
        (masked_terminations, 5, "rufus.mask_terminations is a list, not 5"),
        (masked_terminations, {"response_length": True}, "rufus.mask_terminations is a list"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(build, config, words):
    with pytest.raises(ConfigError) as error:
        build(config)
    assert words in str(error.value)


def test_whole_numbers_are_taken_where_a_field_is_a_float():
    assert group_filter({"low": 0, "high": 1}).judge([1, 0]) == "kept"
    assert length_penalty(OVER | {"cap": 20, "alpha": 1}).alpha == 1
