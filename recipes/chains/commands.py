"""The host's commands of a stage, as a user would type them, and the environment that they run in."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.recipes.chains.spec import Entry

SAVED = "[model,optimizer,extra,hf_model]"
"""`hf_model` is what the next stage and the evaluation load."""
ENGINES = {"air": ("model_engine=megatron",)}
"""scale -> what verl's trainer needs besides `scale=`: Megatron is another of verl's own config groups."""
TINY = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_ADDRESS": "local",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Of commands at scale=tiny: a thread per process (two were slower), no hub, a Ray of its own."""
RUN = "RUFUS_RUN"
"""Names the run folder in the environment of all its processes: a later start finds what outlived a kill -9."""


def rl(entry: Entry, scale: str, seed: int, model: str, data: Path, folder: Path, more: Sequence[str]) -> list[str]:
    """verl's RL trainer. `data` holds train.parquet and heldout.parquet; `folder` is the stage's. Goes on from the last
    checkpoint there."""
    return [
        sys.executable,
        *("-m", "verl.trainer.main_ppo", "--config-name", "rufus"),
        *ENGINES.get(scale, ()),
        f"stage={entry.stage.name}",
        f"scale={scale}",
        f"actor_rollout_ref.model.path={value(model)}",
        f"data.train_files={value(data / 'train.parquet')}",
        f"data.val_files={value(data / 'heldout.parquet')}",
        f"data.seed={seed}",
        f"actor_rollout_ref.actor.checkpoint.save_contents={SAVED}",
        *_common(entry, folder),
        f"rufus.samples.dir={value(folder / 'samples')}",
        *more,
    ]


def sft(
    entry: Entry,
    scale: str,
    seed: int,
    model: str,
    data: Path,
    folder: Path,
    more: Sequence[str],
    machines: tuple[int, int],
) -> list[str]:
    """verl's SFT trainer under torchrun; `machines`: nodes, processes on each."""
    from rufus_plugins.recipes.config import stage_scales

    nodes, processes = machines
    # several nodes: your launcher starts the same command on each and sets MASTER_ADDR
    where = ["--standalone", "--nnodes=1"] if nodes == 1 else [f"--nnodes={nodes}", *RENDEZVOUS]
    scaled = [f"+stage_scale={entry.stage.name}_{scale}"] if scale in stage_scales(entry.stage.config) else []
    return [
        sys.executable,
        *("-m", "torch.distributed.run", *where, f"--nproc-per-node={processes}"),
        *("-m", "verl.trainer.sft_trainer"),
        f"+stage={entry.stage.name}",
        *scaled,
        f"model.path={value(model)}",
        f"data.train_files={value(data / 'train.parquet')}",
        f"data.val_files={value(data / 'heldout.parquet')}",
        f"engine.seed={seed}",
        f"checkpoint.save_contents={SAVED}",
        *_common(entry, folder),
        *more,
    ]


RENDEZVOUS = ("--rdzv-backend=c10d", "--rdzv-endpoint=${MASTER_ADDR}:29500")


def _common(entry: Entry, folder: Path) -> list[str]:
    return [
        f"trainer.default_local_dir={value(folder / 'checkpoints')}",
        f"trainer.experiment_name={entry.name}",
        "trainer.project_name=rufus",
        "trainer.logger=[console,file]",
        "trainer.resume_mode=auto",
        f"hydra.run.dir={value(folder / 'logs' / 'hydra')}",
    ]


def overrides(command: Sequence[str]) -> list[str]:
    """Of a command, what Hydra composes."""
    first = command.index("--config-name") + 2 if "--config-name" in command else command.index("-m", 3) + 2
    return [word for word in command[first:] if not word.startswith("hydra.")]


def shown(command: Sequence[str]) -> str:
    """As typed in a shell."""
    return shlex.join(command).replace(
        "'--rdzv-endpoint=${MASTER_ADDR}:29500'", '--rdzv-endpoint="${MASTER_ADDR}:29500"'
    )


def value(path: Path | str) -> str:
    """As a value of a Hydra override."""
    text = str(path)
    return text if re.fullmatch(r"[\w/.@+-]+", text) else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def environment(run: Path, scale: str, metrics: Path) -> Mapping[str, str]:
    """Of a stage's command. At scale=tiny: a thread per process (two were slower), no hub, a Ray of its own."""
    own: dict[str, Any] = {RUN: str(run), "VERL_FILE_LOGGER_PATH": str(metrics), "PYTHONUNBUFFERED": "1"}
    own["SPT_NOENV"] = "1"  # setproctitle, by which Ray names its workers, would write its titles over RUFUS_RUN
    if scale == "tiny":
        own |= TINY
    return {**os.environ, **own}
