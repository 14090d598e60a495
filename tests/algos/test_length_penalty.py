import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_plugins.algos.length_penalty import OverTarget, ShortestCorrect, length_penalty
from rufus_plugins.errors import ConfigError


def apply(penalty, reward, length, group=None, inside=None, cap=1000):
    n = len(reward)
    return penalty(
        np.array(reward, dtype=float),
        np.array(length),
        np.array(group or [0] * n),
        np.array(inside if inside is not None else [True] * n),
        cap,
    ).tolist()


def test_correct_rollouts_are_discounted_from_the_shortest_correct_one_on():
    # L_min 200 (the wrong one of 100 is no anchor): (600 - 200) / (1000 - 200) = .5 -> 1 - .2 * .5
    rewards = apply(ShortestCorrect(), [1, 1, 0, 1], [200, 600, 100, 1000])
    assert rewards == pytest.approx([1.0, 0.9, 0.0, 0.8])


def test_each_group_has_its_own_anchor():
    assert apply(ShortestCorrect(), [1, 1], [200, 600], group=[0, 1]) == [1.0, 1.0]


def test_a_rollout_outside_its_group_is_no_anchor_and_keeps_its_reward():
    assert apply(ShortestCorrect(), [1, 1, 1], [1, 500, 1000], inside=[False, True, True]) == pytest.approx([1, 1, 0.8])


def test_beyond_the_cap_the_discount_stays_full_and_a_cap_at_the_anchor_does_not_divide_by_zero():
    assert apply(ShortestCorrect(), [1, 1], [500, 2000]) == pytest.approx([1.0, 0.8])
    assert apply(ShortestCorrect(), [1, 1], [1000, 1000]) == [1.0, 1.0]
    assert apply(ShortestCorrect(), [1, 1], [1000, 1001]) == pytest.approx([1.0, 0.8])


def test_over_target_reduces_positive_scores_only():
    penalty = OverTarget(target=400, alpha=0.5)
    # (700 - 400) / 600 = .5 -> 1 - .5 * .5 = .75
    assert apply(penalty, [4, 4, -4, 0], [400, 700, 700, 700]) == pytest.approx([4, 3, -4, 0])


def test_not_finite_rewards_pass_through():
    rewards = apply(ShortestCorrect(), [1, math.nan, math.inf], [10, 900, 900])
    assert rewards[0] == 1 and math.isnan(rewards[1]) and rewards[2] == math.inf


rollout = st.tuples(st.floats(-2, 2, width=32), st.integers(0, 2000), st.integers(0, 2), st.booleans())


@given(st.lists(rollout, min_size=1, max_size=12), st.sampled_from([ShortestCorrect(), OverTarget(target=300)]))
def test_a_penalty_never_raises_a_reward_never_flips_its_sign_and_never_touches_a_wrong_rollout(rows, penalty):
    reward, length, group, inside = zip(*rows, strict=True)
    out = apply(penalty, reward, length, list(group), list(inside))
    for before, after, counts in zip(reward, out, inside, strict=True):
        assert after <= before or before < 0
        assert (before > 0) == (after > 0)
        if before <= 0 or not counts:
            assert after == before


@given(st.lists(st.integers(1, 1500), min_size=2, max_size=8))
def test_among_correct_rollouts_the_longer_never_earns_more_and_the_shortest_loses_nothing(lengths):
    out = apply(ShortestCorrect(), [1] * len(lengths), lengths)
    order = np.argsort(lengths, kind="stable")
    assert out[order[0]] == 1.0
    assert all(out[a] >= out[b] - 1e-12 for a, b in zip(order, order[1:], strict=False))


def test_no_configuration_means_no_penalty():
    assert length_penalty(None) is None and length_penalty({"kind": None}) is None


@pytest.mark.parametrize(
    "config, words",
    [
        ({"kind": "longest"}, "choose from"),
        ({"alpha": 0.1}, "no kind"),
        ({"kind": "shortest_correct", "target": 5}, "has no target"),
        ({"kind": "over_target"}, "needs target"),
        ({"kind": "shortest_correct", "alpha": 1.5}, "between 0 and 1"),
        ({"kind": "shortest_correct", "correct_at": 0}, "positive"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(config, words):
    with pytest.raises(ConfigError, match=words):
        length_penalty(config)
