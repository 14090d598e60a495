"""`rufus prepare sft` and `+stage=sft`: from chat records to verl's SFT trainer."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_module

from rufus_plugins import cli
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.sft.prepare import prepare


def composed(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("sft_trainer_engine", overrides=["+stage=sft", *overrides])


def corpus(path, count=40):
    with path.open("w") as out:
        for n in range(count):
            turns = [{"from": "human", "value": f"What is {n} times {n}?"}, {"from": "gpt", "value": f"It is {n * n}."}]
            out.write(json.dumps({"conversations": turns * (n % 3 + 1), "category": "ab"[n % 2]}) + "\n")
        out.write('{"conversations": []}\n')
    return path


def test_the_stage_selects_our_dataset_and_the_recipes_values():
    config = composed()
    assert config.data.custom_cls.name == "SFTConversations"
    assert (config.data.max_length, config.data.pad_mode) == (131072, "no_padding")
    assert (config.optim.lr, config.optim.lr_scheduler_type, config.optim.min_lr_ratio) == (5e-5, "cosine", 0.1)
    assert config.trainer.total_epochs == 3 and config.model.use_remove_padding


@pytest.mark.parametrize(("scale", "batch"), [("tiny", 28), ("air", 4096)])
def test_scales_and_settings_by_hand_go_with_it(scale, batch):
    from rufus_plugins.recipes.data.mixture import override

    weights = override({"math": 2.0, "general chat": 0.5, "a:b,(none)": 1.0})
    config = composed(f"+stage_scale=sft_{scale}", "data.rufus.pack_to=131072", weights)
    assert config.data.train_batch_size == batch and config.data.rufus.pack_to == 131072
    assert dict(config.data.rufus.category_weights) == {"math": 2.0, "general chat": 0.5, "a:b,(none)": 1.0}


def test_every_setting_of_the_dataset_is_in_the_stages_config():
    from dataclasses import fields

    from rufus_plugins.recipes.data.sft_dataset import Settings

    assert set(composed().data.rufus) == {f.name for f in fields(Settings)}


def test_prepare_holds_out_conversations_by_what_they_say(tmp_path, capsys):
    source = corpus(tmp_path / "in.jsonl")
    output = tmp_path / "out"
    assert cli.main(["prepare", "sft", "--input", str(source), "--output", str(output), "--heldout-share", "0.25"]) == 0
    train, held = (pq.read_table(output / f"{n}.parquet").to_pylist() for n in ("train", "heldout"))
    said = [json.dumps(r["messages"]) for r in train + held]
    assert len(said) == len(set(said)) == 40 and 3 <= len(held) <= 20
    assert "set aside: no_messages" in capsys.readouterr().out
    manifest = prepare(str(source), output, heldout_share=0.25)
    assert manifest["records"] == 41 and manifest["dropped"] == {"no_messages": 1}
    assert sum(f["rows"] for f in manifest["files"].values()) == 40


def test_prepare_refuses_an_input_without_one_conversation(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "no chat"}\n')
    with pytest.raises(ConfigError, match="unknown_shape 1"):
        prepare(str(tmp_path / "in.jsonl"), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.e2e
def test_verls_trainer_learns_from_packed_conversations(tmp_path):
    from rufus_plugins.recipes.tiny import model

    model.save(tmp_path / "model", seed=0)
    prepare(str(corpus(tmp_path / "in.jsonl", 200)), tmp_path / "data", heldout_share=0.3)
    metrics = tmp_path / "metrics.jsonl"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=1"),
        *("-m", "verl.trainer.sft_trainer", "+stage=sft", "+stage_scale=sft_tiny"),
        f"model.path={tmp_path / 'model'}",
        f"data.train_files={tmp_path / 'data/train.parquet'}",
        f"data.val_files={tmp_path / 'data/heldout.parquet'}",
        "data.train_batch_size=4",
        "data.micro_batch_size_per_gpu=4",
        "data.rufus.pack_to=512",
        "data.rufus.mask=every_turn",
        "trainer.total_epochs=8",
        "trainer.total_training_steps=12",
        "optim.lr=2.0e-3",
        "trainer.test_freq=6",
        "trainer.resume_mode=disable",
        "trainer.logger=[file]",
        f"trainer.default_local_dir={tmp_path / 'checkpoints'}",
        f"hydra.run.dir={tmp_path / 'hydra'}",
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [s["data"]["train/loss"] for s in steps if "train/loss" in s["data"]]
    assert len(losses) == 12 and losses[-1] < 0.7 * losses[0]
    held_out = [s["data"]["val/loss"] for s in steps if "val/loss" in s["data"]]
    assert len(held_out) == 2 and 0 < held_out[-1] < held_out[0]
    # every row of the first step is one of at most 512 tokens that several conversations share
    assert 4 * 300 < steps[0]["data"]["train/global_tokens"] <= 4 * 512


def test_check_composes_the_config_of_the_sft_trainer(capsys):
    given = ["+stage=sft", "model.path=model", "data.train_files=rows.parquet"]
    assert cli.main(["check", "--config-name", "sft_trainer_engine", *given]) == 0
    assert "the config composes" in capsys.readouterr().out
    assert cli.main(["check", "--config-name", "sft_trainer_engine", "+stage=no_such_stage"]) == 1
    assert "no_such_stage" in capsys.readouterr().out
