"""The patch on verl's compute_advantage_for_multi_trajectories, called the way verl's trainer calls it."""

import numpy as np
import pytest
import torch

from rufus_plugins.algos.length_penalty import OverTarget, ShortestCorrect
from rufus_plugins.hosts.verl.advantages import StepFacts, step_facts


def proto(keys, rewards, lengths, width=8, tool=None):
    """verl's padded batch; the reward stands on the last response token; `tool[row]` tokens have mask 0."""
    from verl.protocol import DataProto

    mask = torch.zeros(len(keys), width, dtype=torch.int64)
    scores = torch.zeros(len(keys), width)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        mask[row, :length] = 1
        mask[row, : (tool or {}).get(row, 0)] = 0
        scores[row, length - 1] = reward
    data = DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_scores": scores},
        non_tensors={"uid": np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)},
    )
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    return data


def compute(data, keys, name, facts=None, **kwargs):
    import verl.trainer.ppo.core_algos  # noqa: F401  registers the estimators
    from verl.trainer.ppo.v1 import trainer_base

    with step_facts(facts or StepFacts({key: False for key in keys})):
        return trainer_base.compute_advantage_for_multi_trajectories(
            data, batch_keys=keys, adv_estimator=name, num_repeat=2, config=None, **kwargs
        )


def first_trained(data):
    advantages, mask = data.batch["advantages"], data.batch["response_mask"]
    return [round(a[m.bool()][0].item(), 5) if m.any() else 0.0 for a, m in zip(advantages, mask, strict=True)]


def test_segments_share_one_advantage_for_our_names_as_verl_does_for_grpo_alone():
    keys = ["u_0_0", "u_0_1", "u_0_2", "u_1_0"]
    data = compute(proto(keys, [1, 1, 1, 0], [3, 4, 2, 5]), keys, "mean_only")
    assert first_trained(data) == [0.5, 0.5, 0.5, -0.5]
    stock = compute(proto(keys, [1, 1, 1, 0], [3, 4, 2, 5]), keys, "grpo", norm_adv_by_std_in_grpo=False)
    assert first_trained(stock) == [0.5, 0.5, 0.5, -0.5]
    by_rows = compute(proto(keys, [1, 1, 1, 0], [3, 4, 2, 5]), keys, "grpo_vectorized")
    # mean .75 over four rows, std .5: the cut rollout counted three times
    assert first_trained(by_rows) == [0.5, 0.5, 0.5, -1.5]


def test_group_normalised_equals_verls_grpo_on_whole_groups():
    torch.manual_seed(1)
    keys = [f"u{g}_{r}_{s}" for g in range(3) for r in range(4) for s in range(1 + r % 2)]
    rewards = {key.rsplit("_", 1)[0]: float(torch.rand(())) for key in keys}
    values = [rewards[key.rsplit("_", 1)[0]] for key in keys]
    lengths = [1 + i % 8 for i in range(len(keys))]
    ours = compute(proto(keys, values, lengths), keys, "group_normalised")
    stock = compute(proto(keys, values, lengths), keys, "grpo")
    torch.testing.assert_close(ours.batch["advantages"], stock.batch["advantages"], rtol=1e-4, atol=1e-5)


def test_masked_and_padding_rows_are_outside_and_lose_their_mask():
    keys = ["u_0_0", "u_1_0", "u_2_0", "u_3_0", "padabc_0_0"]
    facts = StepFacts({"u_0_0": False, "u_1_0": False, "u_2_0": True, "u_3_0": True}, fault={"u_3_0": True})
    data = compute(proto(keys, [1, 0, 1, 1, 0], [2] * 5), keys, "mean_only", facts)
    assert first_trained(data) == [0.5, -0.5, 0, 0, 0]
    assert data.batch["response_mask"].sum(dim=-1).tolist() == [2, 2, 0, 0, 0]
    assert facts.metrics["rufus/groups/rollouts_outside"] == 2  # padding is nobody's rollout
    assert facts.metrics["rufus/groups/count"] == 1 and facts.metrics["rufus/groups/empty"] == 0


def test_without_our_trainer_padding_is_still_outside():
    from verl.trainer.ppo.v1 import trainer_base

    keys = ["u_0_0", "u_1_0", "padabc_0_0"]
    data = trainer_base.compute_advantage_for_multi_trajectories(
        proto(keys, [1, 0, 0], [2] * 3), batch_keys=keys, adv_estimator="mean_only", config=None
    )
    assert first_trained(data) == [0.5, -0.5, 0]


def test_a_reward_that_is_not_finite_is_reported_and_masked():
    keys = ["u_0_0", "u_1_0", "u_2_0"]
    facts = StepFacts({key: False for key in keys})
    data = compute(proto(keys, [1, 0, float("nan")], [2] * 3), keys, "mean_only", facts)
    assert first_trained(data) == [0.5, -0.5, 0]
    assert facts.not_finite == ["u_2_0"]


def test_the_length_penalty_applies_once_per_rollout_and_does_not_count_tool_tokens():
    # rollout 0: 2 + 2 trained tokens over two segments (3 tool tokens); rollout 1: 8 trained tokens; cap 8
    keys = ["u_0_0", "u_0_1", "u_1_0"]
    facts = StepFacts({key: False for key in keys}, penalty=ShortestCorrect(alpha=0.4), cap=8)
    data = compute(proto(keys, [1, 1, 1], [5, 2, 8], tool={0: 3}), keys, "mean_only", facts)
    # rewards 1 and 1 * (1 - .4 * (8 - 4) / (8 - 4)) = .6, mean .8
    assert first_trained(data) == [0.2, 0.2, -0.2]
    assert facts.metrics["rufus/length_penalty/taken/mean"] == pytest.approx(0.2)
    assert facts.metrics["rufus/length_penalty/rollouts"] == 1
    assert facts.metrics["rufus/groups/reward/mean"] == 1.0  # the raw reward


def test_a_masked_rollout_is_no_anchor_for_the_length_penalty():
    keys = ["u_0_0", "u_1_0", "u_2_0"]
    facts = StepFacts({"u_0_0": True, "u_1_0": False, "u_2_0": False}, penalty=ShortestCorrect(alpha=0.4), cap=8)
    data = compute(proto(keys, [1, 1, 1], [1, 4, 8]), keys, "mean_only", facts)
    assert first_trained(data) == [0, 0.2, -0.2]


def test_kl_in_the_reward_counts_all_segments_of_a_rollout_and_is_not_penalised():
    keys = ["u_0_0", "u_0_1", "u_1_0"]
    data = proto(keys, [1, 1, 1], [4, 4, 4])
    rewards = data.batch["token_level_scores"].clone()
    rewards[0, 1] -= 0.25
    rewards[1, 2] -= 0.5
    rewards[2, 0] -= 0.05
    data.batch["token_level_rewards"] = rewards
    facts = StepFacts({key: False for key in keys}, penalty=OverTarget(target=0, alpha=0.5), cap=8)
    data = compute(data, keys, "mean_only", facts)
    # rollout 0: length 8 of 8 -> .5, KL .75 -> -.25; rollout 1: length 4 -> .75, KL .05 -> .7; mean .225
    assert first_trained(data) == [-0.475, -0.475, 0.475]


def test_an_estimator_of_a_third_party_gets_what_it_names_and_nothing_else(monkeypatch):
    from verl.trainer.ppo import core_algos

    seen = {}

    def theirs(token_level_rewards, response_mask, index, config=None, fault=None, **kwargs):
        seen.update(fault=fault.tolist(), extra=sorted(kwargs))
        return torch.zeros_like(token_level_rewards), torch.zeros_like(token_level_rewards)

    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "theirs", theirs)
    keys = ["u_0_0", "u_1_0"]
    compute(proto(keys, [1, 0], [2, 2]), keys, "theirs", StepFacts({"u_0_0": False, "u_1_0": True}, {"u_1_0": True}))
    assert seen == {"fault": [False, True], "extra": []}
