"""Keeps a few rollouts of a step with their tokens, for the report: `rufus.samples` (recipes/report/samples.py).

Costs one look at the tags on the steps that are kept, and fetches the rows of the chosen rollouts alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.recipes.report.samples import (
    EXPLANATION,
    FORMAT,
    MASKED,
    MAX_EXPLANATION_CHARS,
    MAX_PROMPT_CHARS,
    MAX_TOKENS,
    SAMPLED,
    TOLD,
    SampleRules,
    choose,
    shortened,
    token_texts,
    write,
)

from .faults import is_fault
from .group_values import ending, last_scores
from .tasks import plain, task_of

FIELDS = ("prompts", "responses", "response_mask", "rollout_log_probs", "extra_fields", "uid", "data_source")
TASK_FIELDS = ("extra_info", "reward_model", "raw_prompt")


class RolloutSamples:
    """Two looks at a step's batch: `before` anything is masked, `after` the advantages are known."""

    def __init__(self, rules: SampleRules):
        self.rules = rules
        self._tokenizer: Any = None
        self._kept: dict[str, list[dict[str, Any]]] = {}
        self._seen = -1

    def before(self, batch: Any, step: int, cap: int | None, tokenizer: Any) -> None:
        """Chooses and fetches. A step of several local updates is looked at in the first of them."""
        self._kept, self._tokenizer = {}, tokenizer
        if not self.rules.at(step) or step == self._seen:
            return
        self._seen = step
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        told = last_scores(tags, batch.partition_id, cap)
        scores = {r: None if is_fault(ending(score)) else score["reward"] for r, score in told.items()}
        chosen = choose(scores, self.rules.per_step, step)
        keys = [key for key in batch.keys if key.rpartition("_")[0] in chosen]
        keys.sort(key=lambda key: (list(chosen).index(key.rpartition("_")[0]), int(key.rpartition("_")[2])))
        for key, row in zip(keys, _rows(keys, batch.partition_id, (*FIELDS, *TASK_FIELDS)), strict=True):
            rollout = key.rpartition("_")[0]
            row |= {"key": key, "score": told[rollout], "chosen": chosen[rollout]}
            self._kept.setdefault(rollout, []).append(row)

    def after(self, batch: Any, step: int, outside: Mapping[str, bool]) -> None:
        """Writes. `outside`: row key -> whether the rollout is left out of its group and of the loss."""
        if not self._kept:
            return
        keys = [row["key"] for rows in self._kept.values() for row in rows]
        trained = dict(zip(keys, _rows(keys, batch.partition_id, ("response_mask", "advantages")), strict=True))
        records = [
            _record(step, rows, [trained[row["key"]] for row in rows], outside, self._tokenizer)
            for rows in self._kept.values()
        ]
        self._kept = {}
        try:
            write(self.rules.dir, step, records)
        except OSError as error:  # something to look at is no reason to end a training
            print(f"rufus: the sample rollouts of step {step} are not kept: {error}", file=sys.stderr, flush=True)


def _rows(keys: Sequence[str], partition_id: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """The fields that exist, row by row, without tensors."""
    import torch
    import transfer_queue as tq

    data = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=list(names))
    rows: list[dict[str, Any]] = [{} for _ in keys]
    for name in names:
        column = data.get(name, None)
        if column is None:
            continue
        values = column.unbind() if isinstance(column, torch.Tensor) else list(column)
        for row, value in zip(rows, values, strict=True):
            value = getattr(value, "data", value) if not isinstance(value, torch.Tensor) else value.tolist()
            row[name] = value
    return rows


def _record(
    step: int,
    rows: Sequence[Mapping[str, Any]],
    trained: Sequence[Mapping[str, Any]],
    outside: Mapping[str, bool],
    tokenizer: Any,
) -> dict[str, Any]:
    last, score = rows[-1], rows[-1]["score"]
    uid, rollout, _ = last["key"].rsplit("_", 2)
    extra = last.get("extra_fields") or {}
    info = dict(plain(extra.get("reward_extra_info")) or {})
    explanation = info.pop(EXPLANATION, "")
    for name in ("score", "termination"):
        info.pop(name, None)
    task = task_of({**last, "uid": uid})
    kinds = [_kinds(row["response_mask"], own["response_mask"]) for row, own in zip(rows, trained, strict=True)]
    left_out = any(outside.get(row["key"], False) for row in rows) or not any(SAMPLED in kind for kind in kinds)
    return {
        "format": FORMAT,
        "step": step,
        "group": uid,
        "rollout": int(rollout),
        "task": task.id,
        "data_source": task.data_source,
        "chosen": last["chosen"],
        "score": None if is_fault(ending(score)) else _finite(score["reward"]),
        "metrics": {key: _finite(value) for key, value in info.items()},
        "explanation": shortened(str(explanation), MAX_EXPLANATION_CHARS),
        "termination": score["ending"],
        "left_out": left_out,
        "advantage": _advantage(trained, kinds),
        "segments": [_segment(row, kind, tokenizer) for row, kind in zip(rows, kinds, strict=True)],
    }


def _kinds(own: Sequence[int], trained: Sequence[int]) -> str:
    """One letter per response token."""
    return "".join(TOLD if not m else SAMPLED if t else MASKED for m, t in zip(own, trained, strict=True))


def _advantage(trained: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> float | None:
    """Mean over the trained tokens."""
    values = [
        value
        for row, kind in zip(trained, kinds, strict=True)
        for value, letter in zip(row.get("advantages") or (), kind, strict=False)
        if letter == SAMPLED
    ]
    return _finite(math.fsum(values) / len(values)) if values else None


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _segment(row: Mapping[str, Any], kinds: str, tokenizer: Any) -> dict[str, Any]:
    ids, logprobs, half = row["responses"], row.get("rollout_log_probs"), MAX_TOKENS // 2
    parts = [slice(0, len(ids))] if len(ids) <= MAX_TOKENS else [slice(0, half), slice(len(ids) - half, len(ids))]
    prompt = tokenizer.decode(row["prompts"], skip_special_tokens=False)
    return {
        "prompt": shortened(prompt, MAX_PROMPT_CHARS),
        "prompt_tokens": len(row["prompts"]),
        "response_tokens": len(ids),
        "parts": [
            {
                "first": part.start,
                "texts": token_texts(ids[part], tokenizer),
                "kinds": kinds[part],
                "logprobs": None if logprobs is None else [_rounded(value) for value in logprobs[part]],
            }
            for part in parts
        ],
    }


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
