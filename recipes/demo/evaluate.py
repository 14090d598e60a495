"""Held-out pass rates of a checkpoint: once greedy, several times sampled at temperature 1.

`python -m rufus_plugins.recipes.demo.evaluate --model DIR --data heldout.parquet --output result.json`

Generates with transformers, scores with the reward `coding_tests` in its sandbox, exactly as in training.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rufus_plugins import Task, Termination, Trajectory

CONCURRENT_SCORES = 4
BATCH = 192


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.demo.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory in the transformers format")
    parser.add_argument("--data", type=Path, required=True, help="Parquet in verl's RL format")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--samples", type=int, default=4, help="samples per problem at temperature 1")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    result = evaluate(
        options.model, options.data, options.samples, options.max_new_tokens, options.seed, progress=print_progress
    )
    part = options.output.with_suffix(".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(options.output)
    return 0


def print_progress(done: int, total: int) -> None:
    print(f"evaluated {done}/{total}", flush=True)


def evaluate(
    model_dir: Path, data: Path, samples: int, max_new_tokens: int, seed: int, progress: Any = lambda done, total: None
) -> dict[str, Any]:
    """`{"greedy": {problem: [0/1]}, "sampled": {problem: [0/1, ...]}, "run_on", "truncated", ...}`; the last two are
    shares of the sampled answers."""
    import pyarrow.parquet as pq
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    started = time.monotonic()
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(model_dir, local_files_only=True).float().eval()
    rows = pq.read_table(data).to_pylist()
    tasks = [
        Task(
            id=row["extra_info"]["id"],
            data_source=row["data_source"],
            prompt=row["prompt"],
            ground_truth=row["reward_model"]["ground_truth"],
            extra=row["extra_info"],
        )
        for row in rows
    ]
    prompts = [
        tokenizer.apply_chat_template(task.prompt, add_generation_prompt=True, enable_thinking=False, return_dict=False)
        for task in tasks
    ]
    passes = 1 + samples
    answers: list[list[tuple[str, bool]]] = []
    for number in range(passes):
        answers.append(generate(model, tokenizer, prompts, max_new_tokens, greedy=number == 0))
        progress((number + 1) * len(tasks), 2 * passes * len(tasks))
    trajectories = [
        Trajectory(
            task=task,
            messages=({"role": "assistant", "content": text},),
            termination=Termination.ANSWERED if ended else Termination.RESPONSE_LENGTH,
        )
        for given in answers
        for task, (text, ended) in zip(tasks, given, strict=True)
    ]
    scores = asyncio.run(_score(trajectories, progress))
    greedy = {task.id: [scores[i][0]] for i, task in enumerate(tasks)}
    sampled: dict[str, list[int]] = {task.id: [] for task in tasks}
    for i, trajectory in enumerate(trajectories[len(tasks) :], len(tasks)):
        sampled[trajectory.task.id].append(scores[i][0])
    drawn = range(len(tasks), len(trajectories))
    ends = [trajectory.termination is Termination.ANSWERED for trajectory in trajectories]
    return {
        "model": str(model_dir),
        "greedy": greedy,
        "sampled": sampled,
        "run_on": sum(scores[i][1] for i in drawn) / len(drawn),
        "truncated": sum(not ends[i] for i in drawn) / len(drawn),
        "seconds": time.monotonic() - started,
    }


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, greedy: bool
) -> list[tuple[str, bool]]:
    """`(text, ended by a stop token)` per prompt. Plain ancestral sampling at temperature 1."""
    import torch

    pad = tokenizer.pad_token_id
    stops = set(model.generation_config.eos_token_id)
    results: list[tuple[str, bool]] = []
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        width = max(map(len, batch))
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in batch])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
        how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, **how)
        for row in out[:, width:].tolist():
            end = next((i for i, token in enumerate(row) if token in stops), None)
            results.append((tokenizer.decode(row[:end], skip_special_tokens=True), end is not None))
    return results


async def _score(trajectories: Sequence[Trajectory], progress: Any) -> list[tuple[int, bool]]:
    """`(passed, ran on)` each. Equal answers to one problem are scored once."""
    from rufus_plugins.plugins import registry

    reward = registry().build("reward", "coding_tests", {"require_clean_ending": True})
    known: dict[tuple[str, str, str], tuple[int, bool]] = {}
    keys = [(t.task.id, t.response, str(t.termination)) for t in trajectories]
    todo = dict(zip(keys, trajectories, strict=True))
    gate = asyncio.Semaphore(CONCURRENT_SCORES)

    async def one(key: tuple[str, str, str], trajectory: Trajectory) -> None:
        async with gate:
            score = await reward(trajectory)
        known[key] = (int(score.value == 1.0), bool(score.metrics.get("run_on", False)))
        if len(known) % 50 == 0:
            progress(len(trajectories) + len(trajectories) * len(known) // len(todo), 2 * len(trajectories))

    await asyncio.gather(*(one(key, trajectory) for key, trajectory in todo.items()))
    return [known[key] for key in keys]


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raise SystemExit(main())
