"""A tiny reward model for the RLHF family: learns from its pairs what is liked (Bradley-Terry), on CPU.

    python -m rufus_plugins.recipes.tiny.families --stage rlhf --output DIR
    python -m rufus_plugins.recipes.tiny.reward_model --pairs DIR/pairs.jsonl --output DIR/reward_model
    rufus data preference-accuracy --input DIR/pairs_heldout.jsonl --output DIR/accuracy.jsonl --model DIR/reward_model

A sequence-classification model of two layers with the tiny tokenizer, such as `reward=preference` loads. Sizes are
ours.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.tiny import tokenizer as tiny_tokenizer

STEPS, BATCH, LEARNING_RATE = 160, 32, 1e-3


def train(pairs: list[dict[str, Any]], output: Path, seed: int = 0, steps: int = STEPS) -> float:
    """Trains on the pairs and saves model and tokenizer; returns the accuracy on the last quarter of the steps."""
    import torch

    if not pairs:
        raise ConfigError("there are no pairs to learn from")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # layers of this size wait for each other's threads most of the time
    try:
        return _train(pairs, Path(output), seed, steps)
    finally:
        torch.set_num_threads(threads)


def _train(pairs: list[dict[str, Any]], output: Path, seed: int, steps: int) -> float:
    import torch
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    from rufus_plugins.rewards.preference import encode

    tokenizer = tiny_tokenizer.build("families")
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, num_labels=1, max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    encoded = [
        [
            encode(tokenizer, [*pair["prompt"], {"role": "assistant", "content": pair[side]}])
            for side in ("chosen", "rejected")
        ]
        for pair in pairs
    ]
    rng = random.Random(f"reward model {seed}")
    right: list[float] = []
    for step in range(steps):
        batch = [encoded[rng.randrange(len(encoded))] for _ in range(BATCH)]
        scores = _scores(model, [ids for sides in zip(*batch, strict=True) for ids in sides])
        margin = scores[:BATCH] - scores[BATCH:]
        loss = -torch.nn.functional.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 3 * steps // 4:
            right.append((margin > 0).float().mean().item())
    model.eval().save_pretrained(output)
    tokenizer.save_pretrained(output)
    return sum(right) / len(right)


def accuracy(pairs: list[dict[str, Any]], folder: Path) -> dict[str, float | int]:
    """Share of pairs whose chosen answer has the higher score, with its 95 % interval (Wilson)."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from rufus_plugins.rewards.preference import encode

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(pairs), 64):
            part = pairs[start : start + 64]
            rows = [
                encode(tokenizer, [*pair["prompt"], {"role": "assistant", "content": pair[side]}])
                for side in ("chosen", "rejected")
                for pair in part
            ]
            scores = _scores(model, rows)
            right += int((scores[: len(part)] > scores[len(part) :]).sum())
    low, high = _wilson(right, len(pairs))
    return {"pairs": len(pairs), "accuracy": right / len(pairs), "low": low, "high": high}


def _wilson(hits: int, of: int, z: float = 1.959964) -> tuple[float, float]:
    share, norm = hits / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / norm
    half = z * (share * (1 - share) / of + z * z / (4 * of * of)) ** 0.5 / norm
    return middle - half, middle + half


def _scores(model: Any, rows: list[list[int]]) -> Any:
    """The last token's logit of each conversation. Padding is on the right and causal: it changes nothing."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
    last = hidden[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]
    return model.score(last)[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.tiny.reward_model")
    parser.add_argument("--pairs", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    pairs = [json.loads(line) for line in args.pairs.read_text(encoding="utf-8").splitlines() if line.strip()]
    print(f"accuracy at the end of training: {train(pairs, args.output, args.seed, args.steps):.3f}")


if __name__ == "__main__":
    main()
