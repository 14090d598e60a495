"""verl's checkpoint folders: which is the last whole one, and where in it the model lies that others load.

verl writes `latest_checkpointed_iteration.txt` after all of `global_step_N` (trainer/ppo/v1/trainer_base.py:1021,
utils/checkpoint/checkpoint_handler.py:125, verl 0.9.1), so a folder above that number is half written.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"
MODELS = ("actor/huggingface", "actor/model/huggingface", "huggingface", "model/huggingface")
"""Of RL by FSDP and by Megatron, of SFT by either."""


def steps(folder: Path) -> list[int]:
    found = (re.fullmatch(r"global_step_(\d+)", path.name) for path in folder.glob("global_step_*") if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def last_whole(folder: Path) -> int:
    """0 if there is none."""
    try:
        text = (folder / TRACKER).read_text().strip()
    except FileNotFoundError:
        return 0
    there = steps(folder)
    if not text.isdigit():
        # RL's trainer opens the file anew once the folder is whole: killed in between, the newest folder is whole
        return there[-1] if there else 0
    return int(text) if int(text) in there else 0


def remove_partial(folder: Path) -> list[int]:
    """Removes what a killed run left half written, and mends the tracker; returns the steps removed."""
    whole = last_whole(folder)
    removed = [step for step in steps(folder) if step > whole]
    for step in removed:
        shutil.rmtree(folder / f"global_step_{step}")
    tracker = folder / TRACKER
    if whole and tracker.read_text().strip() != str(whole):
        part = tracker.with_suffix(".part")
        part.write_text(str(whole))
        part.replace(tracker)
    return removed


def model_in(folder: Path, step: int) -> Path | None:
    """The folder of the transformers model of a step, if it was saved whole enough to be loaded."""
    for name in MODELS:
        found = folder / f"global_step_{step}" / name
        if (found / "config.json").is_file() and (any(found.glob("*.safetensors")) or any(found.glob("*.bin"))):
            return found
    return None
