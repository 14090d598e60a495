"""`stage=coding_rl`: the recipe's values, still open to the command line."""

import pytest
from hydra import compose, initialize_config_module


def composed(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("rufus", overrides=["stage=coding_rl", *overrides])


def test_the_stage_selects_gspo_the_coding_reward_and_long_answers():
    config = composed()
    assert "gspo" in config.actor_rollout_ref.actor.policy_loss.loss_mode
    assert config.rufus.reward.name == "coding_tests" and config.rufus.reward.max_tests == 50
    assert config.data.max_response_length == 131072
    assert list(config.rufus.mask_terminations) == ["response_length"]
    assert config.reward.reward_manager.name == "RufusRewardManager"


@pytest.mark.parametrize("scale", ["tiny", "single_node", "air"])
def test_it_goes_with_every_scale_and_a_value_given_by_hand_wins(scale):
    config = composed(f"scale={scale}", "rufus.reward.timeout_s=2.5", "data.max_response_length=64")
    assert config.rufus.reward.timeout_s == 2.5
    assert config.data.max_response_length == 64
