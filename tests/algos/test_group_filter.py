import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_plugins.algos.group_filter import GroupFilter, Verdict, compare_mean, group_filter, reward_histogram
from rufus_plugins.errors import ConfigError

BAND = GroupFilter(low=0.0, high=0.8)


@pytest.mark.parametrize(
    "values, verdict",
    [
        ([0.0] * 8, Verdict.BELOW),
        ([0.0] * 7 + [1.0], Verdict.KEPT),
        ([1.0] * 4 + [0.0], Verdict.KEPT),  # 4/5 = .8 exactly: closed above
        ([1.0] * 12 + [0.0] * 3, Verdict.KEPT),
        ([1.0] * 7 + [0.0], Verdict.ABOVE),  # .875
        ([1.0] * 8, Verdict.ABOVE),
        ([-1.0, 1.0], Verdict.BELOW),  # mean 0: open below
    ],
)
def test_the_band_is_open_below_and_closed_above(values, verdict):
    assert BAND.judge(values) is verdict


def test_rewards_that_travelled_as_float32_meet_the_edge_as_the_user_wrote_it():
    travelled = float(np.float32(0.8))
    assert travelled > 0.8
    assert BAND.judge([travelled] * 4) is Verdict.KEPT
    assert BAND.judge([float(np.float32(0.801))] * 4) is Verdict.ABOVE
    assert GroupFilter(low=0.1).judge([float(np.float32(0.1))] * 3) is Verdict.BELOW
    assert GroupFilter(low=0.1).judge([float(np.float32(0.1))] * 2 + [0.11]) is Verdict.KEPT


@given(st.integers(1, 32), st.data())
def test_the_edge_is_exact_for_every_group_size(n, data):
    passed = data.draw(st.integers(0, n))
    expected = 0 < 5 * passed <= 4 * n  # 0 < passed / n <= .8 in whole numbers
    values = [1.0] * passed + [0.0] * (n - passed)
    assert (GroupFilter(low=0.0, high=0.8, min_rollouts=1).judge(values) is Verdict.KEPT) == expected


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=20), st.integers(-50, 50))
def test_means_of_hundredths_compare_as_whole_numbers_do(hundredths, edge):
    values = [float(np.float32(v / 100)) for v in hundredths]
    total = sum(hundredths)
    expected = (total > edge * len(values)) - (total < edge * len(values))
    assert compare_mean(values, edge / 100) == expected


def test_zero_variance_drops_ties_and_keeps_the_rest():
    rule = GroupFilter(zero_variance=True)
    assert rule.judge([0.3, 0.3, 0.3]) is Verdict.NO_VARIANCE
    assert rule.judge([0.3, 0.3, 0.4]) is Verdict.KEPT


def test_all_or_none_drops_what_every_rollout_solved_or_none_did():
    rule = GroupFilter(all_or_none=True)
    assert rule.judge([1.0] * 8) is Verdict.ALL_SOLVED
    assert rule.judge([0.0, 0.9, 0.2]) is Verdict.NONE_SOLVED
    assert rule.judge([1.0, 0.9]) is Verdict.KEPT


def test_rewards_that_are_not_finite_do_not_count_as_rollouts():
    assert BAND.judge([1.0, math.nan]) is Verdict.TOO_FEW
    assert BAND.judge([1.0, 0.0, math.inf, math.nan]) is Verdict.KEPT
    assert BAND.judge([]) is Verdict.TOO_FEW


def test_without_a_rule_every_group_with_enough_rollouts_is_kept():
    assert not GroupFilter().filters
    assert GroupFilter().judge([0.0, 0.0]) is Verdict.KEPT
    assert GroupFilter().judge([0.0]) is Verdict.TOO_FEW


@pytest.mark.parametrize(
    "values, side",
    [([0.0, 0.0], "below"), ([1.0, 0.0], "inside"), ([1.0, 1.0], "above"), ([math.nan], "unknown")],
)
def test_the_curriculum_names_the_side_with_and_without_a_band(values, side):
    assert BAND.side(values) == side
    assert GroupFilter(zero_variance=True).side(values) == side


@pytest.mark.parametrize(
    "config, words",
    [
        ({"hi": 0.8}, "no hi"),
        ({"low": 0.8, "high": 0.8}, "not below"),
        ({"oversample": 0.5}, "oversample"),
        ({"max_rounds": 0}, "max_rounds"),
        ({"on_short": "shrug"}, "continue or stop"),
        ({"max_wait_s": 0}, "positive"),
        ({"low": math.inf}, "finite"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(config, words):
    with pytest.raises(ConfigError, match=words):
        group_filter(config)


def test_the_histogram_shows_values_when_they_are_few_and_bins_when_they_are_many():
    text = reward_histogram([0.0] * 6 + [1.0] * 2 + [math.nan])
    assert [line.split() for line in text.splitlines()] == [["0", "#" * 40, "6"], ["1", "#" * 13, "2"]]
    many = reward_histogram([i / 100 for i in range(100)])
    assert len(many.splitlines()) == 10 and all(line.endswith(" 10") for line in many.splitlines())
    assert "no group" in reward_histogram([])
