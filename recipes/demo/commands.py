"""The two verl commands of the demo, as a user would type them, and the environment they run in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.recipes.chains.commands import TINY
from rufus_plugins.recipes.demo.settings import Settings

CHECKPOINT = "[model,optimizer,extra,hf_model]"
"""`hf_model` is what evaluation and the next stage load."""


def environment(metrics: Path) -> dict[str, str]:
    """Ours plus: one thread per process (two were slower), no hub, a Ray of our own, verl's metrics as JSON lines."""
    return {**os.environ, **TINY, "PYTHONUNBUFFERED": "1", "VERL_FILE_LOGGER_PATH": str(metrics)}


def sft(settings: Settings, model: Path, data: Path, output: Path, steps: int, warmup: int | None = None) -> list[str]:
    """verl's SFT trainer under torchrun, one CPU process."""
    warmup = settings.sft_warmup_steps if warmup is None else warmup
    return [
        sys.executable,
        *("-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=1"),
        *("-m", "verl.trainer.sft_trainer"),
        "trainer.device=cpu",
        f"hydra.run.dir={output.parent / 'logs' / 'hydra'}",
        f"trainer.default_local_dir={output}",
        f"trainer.total_training_steps={steps}",
        f"trainer.total_epochs={steps}",
        "trainer.resume_mode=disable",
        "trainer.project_name=rufus",
        "trainer.experiment_name=demo_sft",
        "trainer.logger=[file]",
        f"checkpoint.save_contents={CHECKPOINT}",
        "engine=fsdp",
        "engine.strategy=fsdp2",
        "engine.dtype=float32",
        # without this verl computes SFT in bf16, which CPUs do slowly
        "+engine.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
        "engine.use_torch_compile=false",
        f"engine.seed={settings.seed}",
        "optim=fsdp",
        f"optim.lr={settings.sft_lr}",
        f"optim.lr_warmup_steps={warmup}",
        "optim.betas=[0.9,0.95]",
        f"model.path={model}",
        "model.use_remove_padding=false",
        "model.enable_gradient_checkpointing=false",
        "+model.override_config.attn_implementation=sdpa",
        f"data.train_files={data}",
        f"data.train_batch_size={settings.sft_batch}",
        f"data.micro_batch_size_per_gpu={settings.sft_batch}",
        f"data.max_length={settings.max_prompt_tokens + settings.max_new_tokens}",
        "data.num_workers=0",
        "data.enable_thinking_default=false",
        "+data.apply_chat_template_kwargs.enable_thinking=false",
    ]


def rl(settings: Settings, model: Path, data: Path, output: Path) -> list[str]:
    """verl's PPO trainer with GSPO and the coding reward. Resumes from the last checkpoint in `output`."""
    return [
        sys.executable,
        *("-m", "verl.trainer.main_ppo", "--config-name", "rufus"),
        "algorithm=gspo",
        "reward=coding_tests",
        "scale=tiny",
        "rufus.reward.require_clean_ending=true",
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files={data / 'train.parquet'}",
        f"data.val_files={data / 'heldout.parquet'}",
        f"data.train_batch_size={settings.rl_prompts}",
        f"data.max_prompt_length={settings.max_prompt_tokens}",
        f"data.max_response_length={settings.max_new_tokens}",
        f"data.seed={settings.seed}",
        "data.dataloader_num_workers=0",
        "+data.apply_chat_template_kwargs.enable_thinking=false",
        f"actor_rollout_ref.rollout.n={settings.rl_group}",
        "actor_rollout_ref.rollout.temperature=1.0",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={settings.rl_prompts // settings.rl_updates}",
        # packed attention costs the square of it on CPU
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024",
        f"actor_rollout_ref.actor.optim.lr={settings.rl_lr}",
        f"actor_rollout_ref.actor.optim.lr_warmup_steps={settings.rl_warmup_steps}",
        f"actor_rollout_ref.actor.checkpoint.save_contents={CHECKPOINT}",
        f"trainer.total_training_steps={settings.rl_steps}",
        f"trainer.total_epochs={settings.rl_steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        f"trainer.save_freq={settings.save_every}",
        "trainer.max_actor_ckpt_to_keep=2",
        f"hydra.run.dir={output.parent / 'logs' / 'hydra'}",
        f"trainer.default_local_dir={output}",
        "trainer.resume_mode=auto",
        "trainer.project_name=rufus",
        "trainer.experiment_name=demo_rl",
        "trainer.logger=[console,file]",
    ]


def evaluate(settings: Settings, model: Path, data: Path, output: Path) -> list[str]:
    return [
        sys.executable,
        *("-m", "rufus_plugins.recipes.demo.evaluate"),
        *("--model", str(model), "--data", str(data / "heldout.parquet"), "--output", str(output)),
        *("--samples", str(settings.eval_samples), "--max-new-tokens", str(settings.max_new_tokens)),
        *("--seed", str(settings.seed)),
    ]


def metrics(directory: Path, stage: str) -> dict[int, dict[str, Any]]:
    """step -> verl's metrics, over every attempt at the stage (a resumed run writes a new file); the latest wins."""
    steps: dict[int, dict[str, Any]] = {}
    for file in sorted(directory.glob(f"{stage}-*.jsonl")):
        for line in file.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the line is still being written
                continue
            if isinstance(entry, Mapping) and isinstance(entry.get("data"), Mapping):
                steps.setdefault(int(entry["step"]), {}).update(entry["data"])
    return steps


def next_metrics_file(directory: Path, stage: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{stage}-{len(list(directory.glob(f'{stage}-*.jsonl'))):03d}.jsonl"
