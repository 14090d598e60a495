"""`rufus prepare reasoning_rl`: mathematics, science and puzzles to the Parquet that verl trains on.

`--input` is `sources`, a file, a directory or a hub name (recipes/data/source_list.py), or `sample`: generated
mathematics and science beside puzzles. `--puzzles N` adds N puzzles of reasoning-gym, generated here from `--seed`.

`data_source` begins with `math/`, `science/` or `puzzle/`, by which train.yaml routes rows to `math_answer`,
`science_answer` and `puzzle`. A gold answer that its own reward cannot read is set aside: no answer could be right.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data import source_list
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.source_list import Source, column
from rufus_plugins.recipes.data.stage_rows import Row, text_of, write_rows
from rufus_plugins.recipes.reasoning_rl import puzzles as gym
from rufus_plugins.recipes.reasoning_rl import sample
from rufus_plugins.rewards.final_answer import final_answer

ABILITY = "reasoning"
BOX = "\n\nReason step by step, and put the final answer in \\boxed{}."
ANSWER = "\n\nGive the final answer alone on the last line, after `Answer:`."
"""What the rewards look for, told to the model. Ours."""
LONGEST_GOLD = 200
"""Characters. A longer gold is a proof or an essay, which no matcher compares. Ours."""


def prepare(
    input: str,
    output_dir: Path,
    *,
    source: str = "",
    sources: str = "",
    split: str | None = None,
    subset: str | None = None,
    puzzles: int | None = None,
    count: int = 200,
    seed: int = 0,
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the manifest.

    `count` is the size of each part of `sample`. Raises `ConfigError` if the input cannot be read or nothing is usable.
    """
    if puzzles is None:
        puzzles = count if input == "sample" else 0
    if count < 1 or puzzles < 0:
        raise ConfigError(f"--count is {count} and --puzzles {puzzles}; they are numbers of records.")
    if input == "puzzles":
        puzzles = puzzles or count
    own = {"sample": lambda: sample.records(count, seed), "puzzles": lambda: iter(())}
    file = Path(sources) if sources else Path(__file__).with_name("sources.yaml")
    items = source_list.of_input(input, own, file, source, split, subset)
    items = itertools.chain(items, gym.records(puzzles, seed))
    return write_rows(
        "reasoning_rl",
        ABILITY,
        items,
        convert,
        output_dir,
        heldout_share=heldout_share,
        manifest={"input": input, "source": source, "puzzles": puzzles, "seed": seed},
    )


def convert(source: Source, item: Raw) -> Row:
    """One row; `source.kind` is math, science or puzzle. Raises `Refused`."""
    if source.kind == "puzzle":
        return gym.row(item)
    if source.kind not in ("math", "science"):
        raise ConfigError(f"source {source.name} has the kind {source.kind!r}; here it is math or science.")
    record = item.record
    if not source_list.wanted(source, record):
        raise Refused("other_part", f"not among {dict(source.where)}")
    question = _question(source, record)
    gold = _gold(source, column(record, source.columns["answer"]))
    if source.kind == "math":
        _readable_math(gold)
        prompt = question if "\\boxed" in question else question + BOX
    else:
        prompt = question + ANSWER
    return Row(
        [{"role": "user", "content": prompt}],
        gold,
        f"{source.kind}/{source.name}",
        question,
        {"id": str(record.get("id") or ""), "where": item.where},
    )


def _question(source: Source, record: dict[str, Any]) -> str:
    if "messages" in source.columns:
        messages = column(record, source.columns["messages"])
        asked = [m for m in messages or () if isinstance(m, dict) and m.get("role") == "user"]
        return text_of(asked[-1].get("content") if asked else None, "question")
    return text_of(column(record, source.columns["question"]), "question")


def _gold(source: Source, value: Any) -> str:
    text = text_of(value, "answer")
    if source.reading == "hashes":
        head, found, tail = text.rpartition("####")
        if not found or not tail.strip():
            raise Refused("no_answer", "nothing follows ####")
        text = tail.strip()
    elif source.reading == "boxed":
        found = final_answer(text, last_line=False) if "\\boxed" in text else None
        if found is None:
            raise Refused("no_answer", "the solution has no \\boxed{}")
        text = found
    elif source.reading:
        raise ConfigError(f"source {source.name} has the reading {source.reading!r}; it is boxed, hashes or nothing.")
    if len(text) > LONGEST_GOLD:
        raise Refused("long_answer", f"the answer has {len(text)} characters: a proof or an essay cannot be matched")
    return text


def _readable_math(gold: str) -> None:
    """A gold must be right when it is given as the answer; prose, proofs and `see figure` are not."""
    if final_answer(f"\\boxed{{{gold}}}") is None:
        raise Refused("unreadable_answer", f"math_answer finds no answer in {gold!r}")
    words = [word for word in gold.replace("\\text", " ").split() if word.isalpha() and len(word) > 3]
    if len(words) > 4:
        raise Refused("prose_answer", f"{gold!r} is prose, which math_answer does not compare")
