"""`rufus prepare instruction_rl`: requests with necessary constraints to the Parquet of `reward=rubrics`.

`--input` is

- `sample`: generated requests, each with 2 to 6 constraints (single_turn.py);
- a file, a directory or a hub name with requests (`sources.yaml` says in which columns): constraints are added;
- records that bring their own: `instruction_id_list` and `kwargs` (IFEval, IFBench), or `rubrics` and `prompt`
  (`rufus data dialogues`): they are checked and kept as they are.

Every rubric is necessary. A record with an optional or weighted one is set aside, as the reward would refuse it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.recipes.data import source_list
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.source_list import Source, column
from rufus_plugins.recipes.data.stage_rows import Row, text_of, write_rows
from rufus_plugins.recipes.instruction_rl import single_turn
from rufus_plugins.recipes.instruction_rl.single_turn import worded
from rufus_plugins.recipes.instruction_rl.witness import witness

ABILITY = "instructions"
SAMPLE = Source("sample", "generated", "", {})
LONGEST_REQUEST = 4_000
"""Characters. Ours."""


def prepare(
    input: str,
    output_dir: Path,
    *,
    source: str = "",
    sources: str = "",
    split: str | None = None,
    subset: str | None = None,
    count: int = 500,
    seed: int = 0,
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the last."""
    if count < 1:
        raise ConfigError(f"--count is {count}; at least 1 is needed.")
    file = Path(sources) if sources else Path(__file__).with_name("sources.yaml")
    items = source_list.of_input(input, {"sample": lambda: _generated(count, seed)}, file, source, split, subset)
    return write_rows(
        "instruction_rl",
        ABILITY,
        items,
        lambda from_, item: convert(from_, item, seed),
        output_dir,
        heldout_share=heldout_share,
        manifest={"input": input, "source": source, "seed": seed},
    )


def _generated(count: int, seed: int) -> Iterator[tuple[Source, Raw]]:
    for number, made in enumerate(single_turn.prompts(count, seed)):
        yield SAMPLE, Raw(f"sample {seed}/{number}", {"prompt": made})


def convert(source: Source, item: Raw, seed: int) -> Row:
    record = item.record
    if source.kind == "generated":
        made = record["prompt"]
        rubrics = [c.as_rubric() for c in made.constraints]
        return _row(source, item, [{"role": "user", "content": made.text}], {"rubrics": rubrics})
    if source.kind == "constrained":
        return _row(source, item, _messages(source, record), _own(source, record))
    if source.kind != "requests":
        raise ConfigError(f"source {source.name} has the kind {source.kind!r}; here it is constrained or requests.")
    if not source_list.wanted(source, record):
        raise Refused("other_part", f"not among {dict(source.where)}")
    request = text_of(column(record, source.columns["request"]), "request")
    context = column(record, source.columns["context"]) if "context" in source.columns else None
    if isinstance(context, str) and context.strip():
        request = f"{request}\n\n{context.strip()}"
    if len(request) > LONGEST_REQUEST:
        raise Refused("long_request", f"the request has {len(request)} characters")
    rng = random.Random(f"{seed} {request}")
    for _ in range(100):
        drawn = single_turn.draw(rng, request, rng.randint(single_turn.FEWEST, single_turn.MOST))
        if drawn and witness(drawn):
            prompt = [{"role": "user", "content": worded(request, drawn)}]
            return _row(source, item, prompt, {"rubrics": [c.as_rubric() for c in drawn]})
    raise Refused("no_constraints", "no constraints that go together were found for the request")


def _own(source: Source, record: dict[str, Any]) -> dict[str, Any]:
    if "rubrics" in source.columns:
        found = column(record, source.columns["rubrics"])
        return {"rubrics": json.loads(found) if isinstance(found, str) else found}
    return {
        "instruction_id_list": column(record, source.columns["ids"]),
        "kwargs": column(record, source.columns["kwargs"]),
    }


def _messages(source: Source, record: dict[str, Any]) -> list[dict[str, str]]:
    found = column(record, source.columns["prompt"])
    if isinstance(found, str):
        return [{"role": "user", "content": text_of(found, "prompt")}]
    if not isinstance(found, list) or not found or not all(isinstance(m, dict) for m in found):
        raise Refused("no_prompt", f"the prompt is {found!r:.80}")
    messages = [{"role": str(m.get("role")), "content": text_of(m.get("content"), "text")} for m in found]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()  # what the data set answered
    if not messages or messages[-1]["role"] != "user":
        raise Refused("no_prompt", "the conversation does not end with a request")
    return messages


def _row(source: Source, item: Raw, prompt: list[dict[str, str]], truth: dict[str, Any]) -> Row:
    from rufus_plugins.rewards.rubric_records import read_rubrics

    try:
        kinds = [rubric.kind for rubric in read_rubrics(truth)]
    except DataError as error:
        raise Refused("bad_rubrics", str(error)) from error
    turns = sum(m["role"] == "user" for m in prompt)
    return Row(
        prompt,
        truth,
        f"instructions/{source.name}",
        "\n".join(m["content"] for m in prompt),
        {"id": str(item.record.get("id") or ""), "where": item.where, "turns": str(turns), "rubrics": str(len(kinds))},
    )
