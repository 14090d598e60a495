"""Rules that do not fit the config, and what the rollout side is told."""

import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.hosts.verl.response_budget import limited
from rufus_plugins.hosts.verl.score_tags import score_tag


@pytest.fixture(scope="module")
def compose():
    import verl.trainer.ppo.core_algos  # noqa: F401
    from hydra import compose, initialize_config_module

    def build(*overrides):
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("rufus", overrides=["algorithm=mean_only", *overrides])

    return build


def check(config):
    from rufus_plugins.hosts.verl.algorithm_steps import check_rules

    check_rules(config)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (
            ["rufus.length_penalty={kind:shortest_correct}", "algorithm.adv_estimator=grpo"],
            "group_normalised, mean_only",
        ),
        (["rufus.response_budgets={budgets:[64,128]}"], "data.max_response_length=512"),
        (["rufus.response_budgets={budget:[64]}"], "has no budget"),
        (["rufus.response_budgets={}"], "needs budgets"),
        (["rufus.group_filter={low:0}", "algorithm.filter_groups.enable=true"], "both set"),
        (
            [
                "rufus.group_filter={low:0}",
                "trainer.v1.sampler.custom_sampler.path=mine.py",
                "trainer.v1.sampler.custom_sampler.name=Mine",
            ],
            "mine.py:Mine",
        ),
        (["rufus.group_filter={low:0}", "reward.reward_model.enable=true"], "enable_resource_pool=True"),
        (["rufus.mask_terminations=[sandbox_lost]"], "always masked"),
    ],
)
def test_rules_that_do_not_fit_the_config_are_refused_with_the_mend(compose, overrides, words):
    with pytest.raises(ConfigError, match=words):
        check(compose(*overrides))


def test_rules_that_fit_pass(compose):
    check(compose("rufus.group_filter={low:0.0,high:0.8}", "rufus.length_penalty={kind:over_target,target:100}"))
    check(compose("rufus.response_budgets={budgets:[256,512]}", "rufus.mask_terminations=[max_turns]"))


def test_the_sampler_is_put_into_verls_place_unless_another_one_is_there(compose):
    from rufus_plugins.algos.truncation import masked_terminations
    from rufus_plugins.hosts.verl.algorithm_steps import SAMPLER, _select_sampler

    config = compose("scale=tiny")
    _select_sampler(config, {"low": 0.0, "high": 0.8}, masked_terminations(None))
    sampler = config.trainer.v1.sampler
    assert (sampler.custom_sampler.path, sampler.custom_sampler.name) == SAMPLER
    assert sampler.sampler_kwargs.group_filter == {"low": 0.0, "high": 0.8}
    assert sampler.sampler_kwargs.mask_terminations == ["context_length", "response_length"]
    assert sampler.sampler_kwargs.poll_interval_s == 0.1  # the scale's own
    assert sampler.sampler_kwargs.history.endswith("curriculum.jsonl")

    config = compose("trainer.v1.sampler.custom_sampler.path=mine.py", "trainer.v1.sampler.custom_sampler.name=Mine")
    _select_sampler(config, None, frozenset())
    assert config.trainer.v1.sampler.custom_sampler.path == "mine.py"


def test_a_response_budget_becomes_the_engines_limit_and_a_smaller_own_limit_stays():
    assert limited({"temperature": 1.0}, None) == {"temperature": 1.0}
    assert limited({"temperature": 1.0}, 64) == {"temperature": 1.0, "max_tokens": 64}
    assert limited({"max_tokens": 32}, 64) == {"max_tokens": 32}
    assert limited({"max_tokens": 128}, 64) == {"max_tokens": 64}


def test_a_score_tag_keeps_numbers_and_the_ending():
    info = {"score": 0.5, "termination": "tool_budget", "passed": True, "note": "text", "calls": 3}
    tag = score_tag(0.5, {"reward_extra_info": info})
    assert tag == {"reward": 0.5, "ending": "tool_budget", "metrics": {"score": 0.5, "passed": 1.0, "calls": 3.0}}


def test_a_response_as_long_as_its_budget_was_truncated_if_nobody_says_otherwise():
    assert score_tag(1.0, {}, response_tokens=64, cap=64)["ending"] == "response_length"
    assert score_tag(1.0, {}, response_tokens=63, cap=64)["ending"] is None
    told = {"reward_extra_info": {"termination": "answered"}}
    assert score_tag(1.0, told, response_tokens=64, cap=64)["ending"] == "answered"


def test_verls_worker_class_carries_our_patches():
    """Ray ships the class by value: what the driver patched is what runs in the worker."""
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    assert worker._agent_loop_postprocess.__module__ == "verl.trainer.ppo.v1.agent_loop_tq"  # functools.wraps
    assert worker._agent_loop_postprocess.__code__.co_filename.endswith("score_tags.py")
    assert worker._run_agent_loop.__code__.co_filename.endswith("response_budget.py")
