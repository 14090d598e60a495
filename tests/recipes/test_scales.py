"""Every stage at every scale: composed, accepted by verl, and, for GPUs, within their memory."""

from pathlib import Path

import pytest

from rufus_plugins import cli
from rufus_plugins.plugins import registry
from rufus_plugins.recipes.config import stage_scales

RECIPES = Path(__file__).parents[2] / "recipes"
NEEDS = {"rlhf": ["rufus.reward.model=Skywork/Skywork-Reward-V2-Qwen3-8B"]}


def stages():
    made = [part.factory() for part in registry().parts["stage"].values() if part.plugin == "rufus_recipes"]
    return [stage for stage in made if stage.config.endswith("/train") and stage.name != "sft"]


@pytest.fixture
def services(monkeypatch):
    for name, value in (("URL", "http://127.0.0.1:1/v1"), ("MODEL", "judge"), ("KEY", "none")):
        monkeypatch.setenv(f"RUFUS_JUDGE_{name}", value)
    for name, value in (("URL", "http://127.0.0.1:1/v1"), ("MODEL", "small"), ("KEY", "none")):
        monkeypatch.setenv(f"RUFUS_COMPACTION_{name}", value)
    monkeypatch.setenv("RUFUS_SEARCH_URL", "http://127.0.0.1:1/retrieve")
    monkeypatch.setenv("SERPER_API_KEY", "none")


@pytest.mark.parametrize("scale", ["air", "single_node"])
@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.name)
def test_a_stage_composes_for_gpus_is_accepted_by_verl_and_fits(stage, scale, services, capsys):
    assert scale in stage_scales(stage.config)
    engine = ["model_engine=megatron"] if scale == "air" else []
    code = cli.main(["check", *engine, f"stage={stage.name}", f"scale={scale}", *NEEDS.get(stage.name, [])])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "verl accepts this config" in out and "GPUs of 141 GB" in out
    assert "training: about" in out and "routes:" in out


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.name)
def test_a_stage_at_scale_tiny_fits_its_family_and_the_runner(stage):
    from rufus_plugins.cli_check import composed

    made = composed("rufus", [f"stage={stage.name}", "scale=tiny"])
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    assert made.data.train_batch_size % actor.ppo_mini_batch_size == 0 and rollout.n >= 4
    assert rollout.temperature == 1.0 and rollout.calculate_log_probs is True
    assert "hf_model" in actor.checkpoint.save_contents
    assert made.rufus.routing_replay == "rollout" and made.data.apply_chat_template_kwargs.enable_thinking is False
    longest = made.data.max_prompt_length + made.data.max_response_length
    assert longest <= 256 <= actor.ppo_max_token_len_per_gpu
    assert list(made.trainer.logger) == ["console", "file"] and made.trainer.save_freq == 10
    assert made.trainer.total_training_steps <= made.trainer.total_epochs  # never ended by the data


def test_a_stage_at_a_scale_overrides_the_scale(capsys):
    from rufus_plugins.cli_check import composed

    made = composed("rufus", ["model_engine=megatron", "stage=coding_agent", "scale=air"])
    assert (made.trainer.nnodes, made.data.train_batch_size, made.actor_rollout_ref.rollout.n) == (32, 64, 16)
    assert made.rufus.routing_replay == "rollout"
    made = composed("rufus", ["model_engine=megatron", "stage=coding_agent", "scale=air", "trainer.nnodes=2"])
    assert made.trainer.nnodes == 2


@pytest.mark.parametrize("missing", ["RUFUS_JUDGE_URL", "RUFUS_JUDGE_MODEL", "RUFUS_JUDGE_KEY", "RUFUS_SEARCH_URL"])
def test_a_service_that_the_environment_does_not_name_is_said_before_the_start(missing, services, monkeypatch, capsys):
    monkeypatch.delenv(missing)
    assert cli.main(["check", "stage=search_agent", "scale=single_node"]) == 1
    assert missing in capsys.readouterr().out
