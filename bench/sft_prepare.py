"""SFT data preparation against verl's MultiTurnSFTDataset: the same conversations to ids, positions and loss mask.

    python -m bench.sft_prepare [--quick] [--texts FOLDER --suffix .py]

Both start from one Parquet file of conversations and end when every row was fetched once as tensors, in one process
without tokenizer threads. Ours is the whole way: reading, rendering, tokenising, shards, the file of tokens and its
rows (`SFTConversations`). verl's does the same work again in every further epoch, ours does not; only one epoch is
counted here. The ids must be the same. verl's needs a template that renders each message alone as it renders it in the
conversation, so that is what both get; masks differ by verl's also supervising the line break after the end token.

The corpus is generated: a fifth each of long single answers and of agent trajectories (30 turns), the rest chats of 2
to 10 turns; the tokenizer is a byte-level BPE with 16,000 entries, trained on it. Words are drawn by Zipf's law from
30,000; ours gives each piece of text to the tokenizer once, so its rate depends on how often pieces come again. With
--texts the conversations are made of the files in a folder instead.

Bars: 3 times verl's tokens per second; and linear: at four times the corpus at most 1.25 times the CPU seconds per
token.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

BAR = 3.0
LINEAR = 1.25
TEMPLATE = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


class Prose:
    def __init__(self, rng: random.Random, size: int = 30_000):
        self.rng = rng
        self.words = ["".join(rng.choice("aeioubcdfglmnprst") for _ in range(rng.randint(2, 9))) for _ in range(size)]
        self.weights = [1 / (i + 2) for i in range(size)]

    def __call__(self, count: int) -> str:
        said = self.rng.choices(self.words, self.weights, k=count)
        for at in range(0, count, 11):
            said[at] = self.rng.choice((f"{said[at]}.\n", f"${at} + x^2$", said[at].capitalize(), f"`{said[at]}(x)`;"))
        return " ".join(said)


def conversation(rng: random.Random, prose: Prose) -> list[dict[str, str]]:
    kind = rng.random()
    if kind < 0.2:
        return [{"role": "user", "content": prose(60)}, {"role": "assistant", "content": prose(rng.randint(800, 3000))}]
    if kind < 0.4:
        messages = [{"role": "system", "content": prose(150)}, {"role": "user", "content": prose(80)}]
        for _ in range(14):
            messages.append({"role": "assistant", "content": prose(rng.randint(20, 80))})
            messages.append({"role": "tool", "content": prose(rng.randint(20, 120))})
        return [*messages, {"role": "assistant", "content": prose(60)}]
    turns = rng.randint(1, 5)
    return [
        {"role": role, "content": prose(rng.randint(10, size))}
        for _ in range(turns)
        for role, size in (("user", 60), ("assistant", 250))
    ]


def conversations_of(folder: Path, suffix: str) -> list[list[dict[str, str]]]:
    """Each file with 400 characters or more as a chat of two to eight turns."""
    rng = random.Random(0)
    chats = []
    for path in sorted(folder.rglob(f"*{suffix}")):
        text = path.read_text(encoding="utf-8", errors="ignore")[:30_000] if path.is_file() else ""
        if len(text) >= 400:
            parts = 2 * rng.randint(1, 4)
            size = len(text) // parts
            said = [text[i * size : (i + 1) * size].strip() or "x" for i in range(parts)]
            chats.append([{"role": ("user", "assistant")[i % 2], "content": part} for i, part in enumerate(said)])
    rng.shuffle(chats)
    return chats


def build_tokenizer(texts: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16_000, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=TEMPLATE
    )


def write(path: Path, conversations: list[list[dict[str, str]]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([{"messages": c} for c in conversations]), path)
    return path


CONFIG = {"pad_mode": "no_padding", "max_length": 131_072, "truncation": "error"}


def ours(path: Path, tokenizer: Any, cache: Path) -> tuple[float, float, list[Any]]:
    """Seconds, seconds of CPU time, rows."""
    from omegaconf import OmegaConf

    from rufus_plugins.recipes.data.sft_dataset import SFTConversations

    settings = {"mask": "axion", "cache_dir": str(cache), "workers": 1}
    start, worked = time.perf_counter(), time.process_time()
    rows = SFTConversations(str(path), tokenizer, OmegaConf.create({**CONFIG, "rufus": settings}))
    fetched = [rows[i] for i in range(len(rows))]
    return time.perf_counter() - start, time.process_time() - worked, fetched


def verls(path: Path, tokenizer: Any) -> tuple[float, float, list[Any]]:
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    start, worked = time.perf_counter(), time.process_time()
    rows = MultiTurnSFTDataset(str(path), tokenizer, OmegaConf.create(CONFIG))
    fetched = [rows[i] for i in range(len(rows))]
    return time.perf_counter() - start, time.process_time() - worked, fetched


def tokens_of(rows: list[Any]) -> int:
    return sum(len(r["input_ids"]) for r in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller corpus")
    parser.add_argument("--texts", type=Path, help="folder of texts that conversations are made of")
    parser.add_argument("--suffix", default=".txt", help="of the files in --texts (default .txt)")
    args = parser.parse_args()
    count, repeats = (150, 2) if args.quick else (800, 3)
    import torch

    torch.set_num_threads(1)
    if args.texts:
        conversations = conversations_of(args.texts, args.suffix)[: 4 * count]
        count = len(conversations) // 4
        if not count:
            parser.exit(2, f"{args.texts} holds fewer than 4 long {args.suffix} files\n")
    else:
        rng = random.Random(0)
        prose = Prose(rng)
        conversations = [conversation(rng, prose) for _ in range(4 * count)]
    tokenizer = build_tokenizer([m["content"] for c in conversations[:count] for m in c])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        small, large = (write(place / f"{n}.parquet", conversations[: n * count]) for n in (1, 4))
        ours(write(place / "warm.parquet", conversations[:3]), tokenizer, place / "warm")  # imports
        verls(place / "warm.parquet", tokenizer)
        mine: list[tuple[float, float]] = []
        peer: list[tuple[float, float]] = []
        for i in range(repeats):  # in turns, so that a busy machine is busy for both
            *seconds, found = ours(small, tokenizer, place / f"cache{i}")
            mine.append(tuple(seconds))
            *seconds, expected = verls(small, tokenizer)
            peer.append(tuple(seconds))
        same = len(found) == len(expected) and all(
            torch.equal(a["input_ids"], b["input_ids"]) and torch.equal(a["position_ids"], b["position_ids"])
            for a, b in zip(found, expected, strict=True)
        )
        tokens = tokens_of(found)
        growth = []
        for i in range(repeats):
            _, again, rows = ours(small, tokenizer, place / f"again{i}")
            _, worked, all_rows = ours(large, tokenizer, place / f"large{i}")
            growth.append((worked / tokens_of(all_rows)) / (again / tokens_of(rows)))
    rate, peers = (tokens / min(seconds for seconds, _ in some) for some in (mine, peer))
    worked = min(worked for _, worked in peer) / min(worked for _, worked in mine)
    print(f"{count} conversations, {tokens} tokens, the same ids: {same}")
    print(f"ours {rate:,.0f} tokens/s, verl {peers:,.0f} tokens/s (best of {repeats})")
    print(f"in CPU seconds, which other work on the machine leaves alone: {worked:.2f} times")
    print(f"CPU seconds per token at four times the corpus: {min(growth):.2f} times")
    ok = same and rate >= BAR * peers and min(growth) <= LINEAR
    result = {
        "bench": "sft_prepare",
        "ours": round(rate),
        "peer": round(peers),
        "ratio": round(rate / peers, 2),
        "cpu_ratio": round(worked, 2),
        "bar": BAR,
        "growth": round(min(growth), 3),
        "same_ids": same,
        "ok": ok,
    }
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
