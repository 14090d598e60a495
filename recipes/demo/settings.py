"""What the demo does, in numbers. A run with other numbers gets a folder of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Values are ours, found by trying (docs/recipes.md), unless marked otherwise."""

    seed: int = 0
    """Everything follows from it: weights, split, wordings, demonstrations, order of batches, sampling."""

    sft_rows: int = 4000
    faulty_share: float = 0.6
    """Share of demonstrations in which the teacher makes the mistake of the kind."""
    sft_steps: int = 240
    sft_batch: int = 32
    sft_lr: float = 4e-3
    sft_warmup_steps: int = 20

    rl_steps: int = 40
    rl_prompts: int = 8
    rl_group: int = 8
    rl_updates: int = 2
    """Optimizer steps per rollout batch (GSPO paper: 4)."""
    rl_lr: float = 2e-4
    rl_warmup_steps: int = 5
    save_every: int = 10
    """A stopped run resumes from the last multiple of this."""

    max_prompt_tokens: int = 64
    max_new_tokens: int = 64

    eval_samples: int = 4
    """Samples at temperature 1 per held-out problem; one more, greedy."""

    def folder(self, root: Path) -> Path:
        """`demo-seed0`, with a digest behind it as soon as another field than `seed` is not the default."""
        name = f"demo-seed{self.seed}"
        if self != Settings(seed=self.seed):
            digest = hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode()).hexdigest()[:6]
            name += f"-{digest}"
        return root / name
