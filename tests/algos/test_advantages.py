import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_plugins.algos.advantages.group_normalised import group_normalised
from rufus_plugins.algos.advantages.groups import rollout_groups
from rufus_plugins.algos.advantages.mean_only import mean_only


def batch(rewards, lengths=None, width=4):
    """Rewards on the last token of each row, mask 1 on the first `length` tokens."""
    rows = len(rewards)
    lengths = lengths or [width] * rows
    mask = torch.zeros(rows, width, dtype=torch.int64)
    scores = torch.zeros(rows, width)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        mask[row, :length] = 1
        scores[row, max(length - 1, 0)] = reward
    return scores, mask


def labels(text):
    return np.array(text.split(), dtype=object)


def first_tokens(advantages):
    return advantages[:, 0].tolist()


def test_mean_only_subtracts_the_mean_and_never_divides():
    scores, mask = batch([1, 0, 0, 0, 1, 1, 0, 0])
    advantages, returns = mean_only(scores, mask, labels("a a a a b b b b"))
    assert first_tokens(advantages) == [0.75, -0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5]
    assert returns is advantages


def test_group_normalised_divides_by_the_sample_standard_deviation():
    scores, mask = batch([1, 0, 0, 0])
    advantages, _ = group_normalised(scores, mask, labels("a a a a"))
    # mean .25, squares .5625 + 3 * .0625 = .75, over n - 1 = 3 is .25, std .5
    assert first_tokens(advantages) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_group_normalised_agrees_with_verls_grpo_where_verl_is_right():
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    torch.manual_seed(0)
    scores, mask = batch(torch.rand(24).tolist(), [1 + i % 4 for i in range(24)])
    index = labels(" ".join("abc"[i % 3] for i in range(24)))
    theirs, _ = compute_grpo_outcome_advantage(scores.clone(), mask, index)
    ours, _ = group_normalised(scores, mask, index)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    theirs, _ = compute_grpo_outcome_advantage(scores.clone(), mask, index, norm_adv_by_std_in_grpo=False)
    ours, _ = mean_only(scores, mask, index)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", [mean_only, group_normalised])
def test_a_group_of_one_has_no_advantage_where_verl_gives_it_its_reward(estimator):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    scores, mask = batch([1, 1, 0])
    index = labels("lonely b b")
    theirs, _ = compute_grpo_outcome_advantage(scores.clone(), mask, index, norm_adv_by_std_in_grpo=False)
    assert theirs[0, 0] == 1.0  # the trap
    ours, _ = estimator(scores, mask, index)
    assert ours[0].tolist() == [0, 0, 0, 0]
    assert ours[1, 0] > 0 > ours[2, 0]
    assert rollout_groups(np.array([1.0, 1, 0]), index).metrics()["rufus/groups/of_one"] == 1


@pytest.mark.parametrize("estimator", [mean_only, group_normalised])
def test_the_segments_of_a_rollout_count_once_and_share_one_advantage(estimator):
    # rollout x is cut into three segments; by rows the mean would be .75, by rollouts it is .5
    scores, mask = batch([1, 1, 1, 0])
    split, _ = estimator(scores, mask, labels("a a a a"), rollout_id=labels("x x x y"))
    scores, mask = batch([1, 0])
    whole, _ = estimator(scores, mask, labels("a a"))
    assert first_tokens(split) == [whole[0, 0], whole[0, 0], whole[0, 0], whole[1, 0]]


@pytest.mark.parametrize("estimator", [mean_only, group_normalised])
def test_rollouts_outside_change_neither_the_mean_nor_the_size_of_their_group(estimator):
    scores, mask = batch([1, 0, 1, 0, 0])
    outside = np.array([False, False, False, True, True])
    advantages, _ = estimator(scores, mask, labels("a a a a a"), outside=outside)
    scores, mask = batch([1, 0, 1])
    alone, _ = estimator(scores, mask, labels("a a a"))
    assert torch.equal(advantages[:3], alone)
    assert not advantages[3:].any()


def test_one_faulted_segment_takes_its_whole_rollout_out_of_the_group():
    scores, mask = batch([1, 1, 0, 1])
    outside = np.array([False, True, False, False])
    advantages, _ = mean_only(scores, mask, labels("a a a a"), labels("x x y z"), outside)
    assert first_tokens(advantages) == [0, 0, -0.5, 0.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_finite_number_is_outside_and_not_a_zero(bad):
    scores, mask = batch([1, 0, bad])
    advantages, _ = mean_only(scores, mask, labels("a a a"))
    assert first_tokens(advantages) == [0.5, -0.5, 0]
    groups = rollout_groups(np.array([1, 0, bad]), labels("a a a"))
    assert groups.metrics()["rufus/groups/rewards_not_finite"] == 1
    assert groups.metrics()["rufus/groups/reward/mean"] == 0.5


def test_tool_tokens_and_padding_carry_no_advantage():
    scores = torch.tensor([[0.0, 0, 0, 1], [0, 0, 0, 0]])
    mask = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0]])
    advantages, _ = mean_only(scores, mask, labels("a a"))
    assert advantages.tolist() == [[0.5, 0, 0.5, 0], [-0.5, -0.5, 0, 0]]


@pytest.mark.parametrize("estimator", [mean_only, group_normalised])
def test_ties_are_exactly_zero_even_where_their_mean_rounds(estimator):
    scores, mask = batch([0.1] * 3 + [0.7] * 7)
    advantages, _ = estimator(scores, mask, labels("a a a b b b b b b b"))
    assert not advantages.any()


finite = st.floats(-1e6, 1e6, width=32)


@st.composite
def rollouts(draw):
    """(prompt, reward, segments, outside) of up to 12 rollouts, in any order."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.one_of(finite, st.sampled_from([0.0, 1.0, math.nan, math.inf, -math.inf])),
                st.integers(1, 3),
                st.booleans(),
            ),
            min_size=1,
            max_size=12,
        )
    )
    flat = [(p, r, f"{p}{i}", o) for i, (p, r, n, o) in enumerate(rows) for _ in range(n)]
    return rows, draw(st.permutations(flat))


@settings(max_examples=150, deadline=None)
@given(rollouts())
def test_any_batch_agrees_with_exact_fractions(case):
    rows, flat = case
    members: dict[str, list[Fraction]] = {}
    for prompt, reward, _, outside in rows:
        if not outside and math.isfinite(reward):
            members.setdefault(prompt, []).append(Fraction(reward))
    scores, mask = batch([r for _, r, _, _ in flat])
    args = (
        np.array([p for p, *_ in flat], dtype=object),
        np.array([name for *_, name, _ in flat], dtype=object),
        np.array([o for *_, o in flat]),
    )
    means = {p: sum(v) / len(v) for p, v in members.items()}
    ours, _ = mean_only(scores, mask, *args)
    normal, _ = group_normalised(scores, mask, *args)
    for row, (prompt, reward, _, outside) in enumerate(flat):
        group = members.get(prompt, [])
        if outside or not math.isfinite(reward) or len(group) < 2:
            assert not ours[row].any() and not normal[row].any()
            continue
        expected = float(Fraction(reward) - means[prompt])
        scale = max(1.0, float(max(abs(v) for v in group)))
        assert ours[row].tolist() == pytest.approx([expected] * 4, rel=1e-6, abs=1e-9 * scale)
        std = math.sqrt(float(sum((v - means[prompt]) ** 2 for v in group) / (len(group) - 1)))
        assert normal[row, 0].item() == pytest.approx(expected / (std + 1e-6), rel=1e-4, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(case, random):
    _, flat = case
    order = list(range(len(flat)))
    random.shuffle(order)

    def run(rows):
        scores, mask = batch([r for _, r, _, _ in rows])
        return mean_only(
            scores,
            mask,
            np.array([p for p, *_ in rows], dtype=object),
            np.array([name for *_, name, _ in rows], dtype=object),
            np.array([o for *_, o in rows]),
        )[0]

    torch.testing.assert_close(run(flat)[order], run([flat[i] for i in order]), rtol=1e-5, atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=n)))
def test_whatever_the_mask_every_trained_token_of_a_row_carries_its_advantage_and_no_other_token_does(masks):
    mask = torch.tensor(masks)
    scores = torch.zeros(mask.shape)
    scores[:, -1] = torch.arange(len(masks), dtype=torch.float32)  # also where the last token is a tool's
    advantages, _ = mean_only(scores, mask, np.array(["a"] * len(masks), dtype=object))
    expected = (torch.arange(len(masks)) - (len(masks) - 1) / 2) if len(masks) > 1 else torch.zeros(1)
    assert torch.equal(advantages, expected.unsqueeze(-1) * mask)


def test_an_empty_batch_gives_an_empty_answer():
    advantages, _ = mean_only(torch.zeros(0, 4), torch.zeros(0, 4), np.array([], dtype=object))
    assert advantages.shape == (0, 4)
