"""`stage=<name>` of every stage with data of its own: the recipe's values, and the parts that its rows are made for."""

import pytest
from hydra import compose, initialize_config_module

from rufus_plugins.plugins import registry


def composed(stage, *overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("rufus", overrides=[f"stage={stage}", *overrides])


@pytest.mark.parametrize(
    ("stage", "reward", "environment", "estimator"),
    [
        ("reasoning_rl", "by_data_source", None, "group_normalised"),
        ("instruction_rl", "rubrics", None, "group_normalised"),
        ("general_agent", "post_state", "mcp", "group_normalised"),
        ("search_agent", "search_answer", "search", "mean_only"),
        ("rlhf", "preference", None, "group_normalised"),
        ("axion_rl", "progress_chain", "search", "group_normalised"),
    ],
)
def test_a_stage_selects_reward_environment_and_advantage(stage, reward, environment, estimator):
    config = composed(stage)
    assert config.rufus.reward.name == reward
    assert (config.rufus.get("environment") or {}).get("name") == environment
    assert config.algorithm.adv_estimator == estimator
    assert stage in registry().parts["stage"]


def test_the_values_that_the_recipe_names():
    reasoning = composed("reasoning_rl").rufus
    assert (reasoning.group_filter.low, reasoning.group_filter.high) == (0.0, 0.8)
    assert reasoning.length_penalty.kind == "shortest_correct"
    assert dict(reasoning.reward.routes)["puzzle/*"] == "puzzle"
    assert composed("general_agent").rufus.group_filter.zero_variance is True
    search = composed("search_agent")
    assert search.actor_rollout_ref.rollout.n == 16
    assert list(search.rufus.mask_terminations) == ["response_length"]  # a spent budget is trained on
    axion = composed("axion_rl")
    assert (axion.rufus.reward.progress_weight, axion.rufus.reward.no_answer_penalty) == (0.3, 0.1)
    assert (axion.actor_rollout_ref.actor.optim.lr, axion.actor_rollout_ref.rollout.n) == (2e-6, 8)
    assert axion.trainer.v1.trainer_mode == "separate_async" and axion.rufus.routing_replay == "rollout"
    assert composed("rlhf").rufus.length_penalty.kind == "over_target"
