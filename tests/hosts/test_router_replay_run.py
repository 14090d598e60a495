"""verl's own command with a bf16 rollout against an fp32 trainer, with and without replay, same seeds, on CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# slow: three trainings, five to ten minutes
pytestmark = [pytest.mark.e2e, pytest.mark.slow]
REWARDS = Path(__file__).with_name("run_reward.py")
STEPS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    from rufus_plugins.recipes.tiny import model

    path = tmp_path_factory.mktemp("replay")
    made, tokenizer = model.build(seed=0)
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        if parameter.dim() >= 2:  # three times the usual spread: routers and answers that are not uniform
            parameter.data.copy_(0.06 * torch.randn(parameter.shape, generator=generator))
    made.save_pretrained(path / "model")
    tokenizer.save_pretrained(path / "model")
    rows = [
        {
            "data_source": "coin",
            "prompt": [{"role": "user", "content": f"Print {i}."}],
            "reward_model": {"style": "rule", "ground_truth": str(i)},
            "extra_info": {"index": i},
        }
        for i in range(64)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path / "train.parquet")
    return path


def run(folder, name, *overrides, steps=STEPS):
    metrics, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    command = [
        sys.executable,
        *("-m", "verl.trainer.main_ppo", "--config-name", "rufus", "algorithm=gspo", "scale=tiny"),
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'train.parquet'}",
        *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=48", "data.seed=1"),
        *("data.dataloader_num_workers=0", "+data.apply_chat_template_kwargs.enable_thinking=false"),
        *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("actor_rollout_ref.rollout.dtype=bfloat16", "actor_rollout_ref.rollout.temperature=1.0"),
        *("actor_rollout_ref.rollout.calculate_log_probs=true", "actor_rollout_ref.actor.optim.lr=1e-4"),
        # one row at a time: in bf16 a row's company in a batch changes the rounding, and so what is sampled
        "actor_rollout_ref.rollout.max_num_seqs=1",
        "actor_rollout_ref.model.enable_gradient_checkpointing=true",
        f"reward.custom_reward_function.path={REWARDS}",
        "reward.custom_reward_function.name=coin",
        *("trainer.total_epochs=9", "trainer.val_before_train=false", "trainer.test_freq=-1"),
        *("trainer.save_freq=-1", "trainer.resume_mode=disable", "trainer.logger=[console,file]"),
        "rufus.mask_terminations=[]",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder / name}",
        *overrides,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_ADDRESS": "local",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    with log.open("w") as stream:
        done = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, timeout=500, cwd=folder
        )
    text = log.read_text(errors="replace")
    found = [json.loads(line)["data"] for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return done.returncode, text, [step for step in found if "actor/grad_norm" in step]


def summary(steps):
    keys = ("training/rollout_logp_absdiff_mean", "training/rollout_kl_k3", "actor/grad_norm")
    means = {key: sum(step[key] for step in steps) / len(steps) for key in keys}
    return {**means, "grad_norm_max": max(step["actor/grad_norm"] for step in steps)}


@pytest.fixture(scope="module")
def runs(folder):
    found = {}
    for name in ("off", "rollout", "record"):
        code, text, steps = run(folder, name, f"rufus.routing_replay={name}")
        assert code == 0 and len(steps) == STEPS, text[-5000:]
        found[name] = steps
        print(name, json.dumps(summary(steps)))
        for step in steps:
            print("  ", {key: value for key, value in step.items() if "routing_replay" in key or "grad_norm" in key})
    return found


def test_replay_brings_the_trainer_closer_to_a_bf16_rollout(runs):
    native, replayed = summary(runs["off"]), summary(runs["rollout"])
    assert runs["rollout"][0]["actor/routing_replay/match_rate"] < 1.0  # else there was nothing to replay
    for key in ("training/rollout_logp_absdiff_mean", "training/rollout_kl_k3"):
        assert replayed[key] < native[key]


def test_routes_and_gradients_are_in_verls_logger(runs):
    for step in runs["rollout"]:
        assert 0.5 < step["actor/routing_replay/match_rate"] <= 1.0
        assert step["actor/routing_replay/native_share"] == 0.0
        assert step["actor/routing_replay/bytes"] > 0
        assert step["actor/grad_norm_max"] >= step["actor/grad_norm"] > 0


def test_the_old_policys_routes_are_replayed_in_the_update(runs):
    for step in runs["record"]:
        # the first mini-batch is trained with the weights that chose the routes, the second one step later
        assert 0.9 < step["actor/routing_replay/match_rate"] <= 1.0


def test_a_run_without_replay_logs_nothing_of_it(runs):
    assert not [key for step in runs["off"] for key in step if "routing_replay" in key]
