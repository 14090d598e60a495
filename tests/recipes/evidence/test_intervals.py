"""The demo's intervals: right on textbook cases, and honest about samples of one problem not being independent."""

import math

import pytest

from rufus_plugins.recipes.evidence.intervals import gain, pass_rate


def test_the_interval_of_independent_trials_matches_the_normal_approximation():
    passes = {str(i): [int(i < 120)] for i in range(400)}  # p = 0.3
    interval = pass_rate(passes)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 400)
    assert interval.value == pytest.approx(0.3)
    assert interval.low == pytest.approx(0.3 - half, abs=0.004)
    assert interval.high == pytest.approx(0.3 + half, abs=0.004)


def test_more_samples_of_the_same_problems_do_not_narrow_an_interval_that_problems_make_wide():
    few = pass_rate({str(i): [i % 2] for i in range(100)})
    many = pass_rate({str(i): [i % 2] * 50 for i in range(100)})
    assert (many.low, many.high) == (few.low, few.high)


def test_a_gain_is_paired_by_problem():
    before = {str(i): [i % 2, i % 2] for i in range(60)}
    after = {str(i): [i % 2, 1] for i in range(60)}  # +0.5 on every even problem, 0 on the others
    change = gain(before, after)
    assert change.value == pytest.approx(0.25)
    assert change.excludes_zero
    half = 1.96 * 0.25 / math.sqrt(60)
    assert change.low == pytest.approx(0.25 - half, abs=0.01)


def test_no_change_includes_zero_and_a_loss_excludes_it_from_below():
    same = {str(i): [i % 3 == 0] for i in range(90)}
    assert not gain(same, same).excludes_zero
    worse = gain({str(i): [1] for i in range(90)}, {str(i): [i % 2] for i in range(90)})
    assert worse.high < 0 and worse.excludes_zero


def test_rates_on_different_problems_are_not_compared():
    with pytest.raises(ValueError, match="different problems"):
        gain({"a": [1]}, {"b": [1]})
