"""Which rollouts of a training step are kept to be looked at, and the file they are kept in.

`rufus.samples: {dir, every, per_step}`; hosts/verl/rollout_samples.py writes, the report reads. One file per step,
`step-000010.jsonl`, written at once: a step that a resumed run does again replaces its file.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError

FORMAT = 1
EXPLANATION = "explanation"
"""Key of verl's `reward_extra_info` that holds the reward's explanation while samples are kept."""
SAMPLED, MASKED, TOLD = "s", "m", "t"
"""Kinds of a response token: sampled and trained on; sampled, but left out of the loss; put in by the environment."""
MAX_TOKENS = 4000
"""Response tokens kept of one segment: half from its start, half from its end. Ours."""
MAX_PROMPT_CHARS = 8000
"""Of a segment's prompt, in the same way. Ours."""
MAX_EXPLANATION_CHARS = 4000
"""Ours."""


@dataclass(frozen=True)
class SampleRules:
    """`rufus.samples`."""

    dir: str
    every: int = 10
    """Every so many steps; the first step is always kept."""
    per_step: int = 4
    """Rollouts of such a step: one of the best, one of the worst, the others at random."""

    def at(self, step: int) -> bool:
        return step == 1 or step % self.every == 0


def sample_rules(value: Mapping[str, Any] | None) -> SampleRules | None:
    """None where nothing is to be kept. Raises `ConfigError`."""
    if value is None:
        return None
    names = [f.name for f in fields(SampleRules)]
    if not isinstance(value, Mapping) or set(value) - set(names):
        raise ConfigError(f"rufus.samples holds {value!r}; it is a mapping with the keys {', '.join(names)}.")
    for name in ("every", "per_step"):
        number = value.get(name, 1)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"rufus.samples.{name} is {number!r}; a whole number of at least 1 is needed.")
    folder = value.get("dir")
    if folder is None:
        return None
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"rufus.samples.dir is {folder!r}; a folder is needed, or null for none.")
    return SampleRules(**value)


def choose(scores: Mapping[str, float | None], count: int, seed: int) -> dict[str, str]:
    """Rollout -> "best", "worst" or "random", `count` of them at most; the same for the same seed.

    `scores`: rollout -> score, None where it has none (a fault). Where all scores are equal, none is best.
    """
    order = sorted(scores)
    random.Random(seed).shuffle(order)
    scored = [rollout for rollout in order if scores[rollout] is not None and math.isfinite(scores[rollout])]
    chosen: dict[str, str] = {}
    if scored and min(scores[r] for r in scored) < max(scores[r] for r in scored):
        chosen[max(scored, key=lambda r: scores[r])] = "best"
        if count > 1:
            chosen[min(scored, key=lambda r: scores[r])] = "worst"
    for rollout in order:
        if len(chosen) >= count:
            break
        chosen.setdefault(rollout, "random")
    return chosen


def shortened(text: str, limit: int) -> str:
    """Start and end of a text that is too long, and between them how much is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def token_texts(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """One text per token; together they are the text of all. A character of several tokens belongs to its last one.

    Texts are told apart by what a further token adds to the few before it, since a token alone may read differently
    (a leading space, half a character).
    """
    texts: list[str] = []
    start, known = 0, 0
    for end in range(1, len(ids) + 1):
        before = tokenizer.decode(ids[start:known], skip_special_tokens=False)
        text = tokenizer.decode(ids[start:end], skip_special_tokens=False)
        if text.endswith("\ufffd") and end < len(ids) and end - known < 8:  # UTF-8 has 4 bytes; more is no character
            texts.append("")
            continue
        texts.append(text[len(before) :])
        start, known = known, end
    return texts


def write(folder: str | os.PathLike[str], step: int, records: Sequence[Mapping[str, Any]]) -> Path:
    """Raises `OSError`."""
    path = Path(folder) / f"step-{step:06d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    # half surrogate pairs, which byte-level tokens can hold, stay escapes
    partial.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="ascii")
    os.replace(partial, path)
    return path
