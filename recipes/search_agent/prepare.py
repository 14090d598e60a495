"""`rufus prepare search_agent`: question sets to the Parquet of `environment=search` and `reward=search_answer`.

`--input` is `sources`, a file, a directory or a hub name (recipes/data/source_list.py), or `sample`: the generated
world of recipes/search_agent/world.py, whose documents go to `corpus.jsonl` beside the output.

`ground_truth` is the gold, or JSON text of the list of alternatives. A question that contains its answer, or whose
answer is yes or no (a coin finds it), is set aside; `--keep yes_no` keeps the latter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data import source_list
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.source_list import Source, column
from rufus_plugins.recipes.data.stage_rows import Row, text_of, write_rows
from rufus_plugins.recipes.search_agent import world
from rufus_plugins.rewards.text_match import contains, normalise

ABILITY = "search"
ASK = "\n\nSearch before you answer. Give the final answer after `Answer:`, in as few words as possible."
"""Ours."""
LONGEST = 120
"""Characters of an answer; a longer one is no short answer. Ours."""


def prepare(
    input: str,
    output_dir: Path,
    *,
    source: str = "",
    sources: str = "",
    split: str | None = None,
    subset: str | None = None,
    count: int = 400,
    seed: int = 0,
    keep: str = "",
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the last."""
    if keep not in ("", "yes_no"):
        raise ConfigError(f"--keep is {keep!r}; it can be yes_no.")
    file = Path(sources) if sources else Path(__file__).with_name("sources.yaml")
    items = source_list.of_input(input, {"sample": lambda: world.records(count, seed)}, file, source, split, subset)
    manifest = write_rows(
        "search_agent",
        ABILITY,
        items,
        lambda from_, item: convert(from_, item, keep == "yes_no"),
        output_dir,
        heldout_share=heldout_share,
        manifest={"input": input, "source": source, "seed": seed},
    )
    if input == "sample":
        corpus = Path(output_dir).resolve().with_name(f"{Path(output_dir).resolve().name}-corpus")
        corpus.mkdir(exist_ok=True)
        with (corpus / "corpus.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(document) + "\n" for document in world.corpus(seed))
    return manifest


def convert(source: Source, item: Raw, yes_no: bool = False) -> Row:
    record = item.record
    if not source_list.wanted(source, record):
        raise Refused("other_part", f"not among {dict(source.where)}")
    question = text_of(column(record, source.columns["question"]), "question")
    answers = alternatives(column(record, source.columns["answers"]))
    if "aliases" in source.columns:
        answers = list(
            dict.fromkeys([*answers, *alternatives(column(record, source.columns["aliases"]), needed=False)])
        )
    short = [answer for answer in answers if len(answer) <= LONGEST]
    if not short:
        raise Refused("long_answer", f"no answer of at most {LONGEST} characters")
    if not yes_no and all(normalise(a) in ("yes", "no") for a in short):
        raise Refused("yes_no", "the answer is yes or no: a guess is right every other time")
    leaked = next((a for a in short if len(normalise(a)) > 2 and contains(question, a)), None)
    if leaked and all(normalise(a) not in ("yes", "no") for a in short):
        raise Refused("answer_in_question", f"the question contains {leaked!r}")
    return Row(
        [{"role": "user", "content": question + ASK}],
        short[0] if len(short) == 1 else short,
        f"search/{source.name}",
        question,
        {
            "id": str(record.get("id") or record.get("_id") or ""),
            "where": item.where,
            "kind": str(column(record, source.columns.get("kind", "")) or ""),
        },
    )


def alternatives(value: Any, needed: bool = True) -> list[str]:
    """The answers of a record. Raises `Refused` if there is none and one is needed."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            pass  # an answer may begin with a bracket
    if hasattr(value, "tolist"):
        value = value.tolist()
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    kept = [str(v).strip() for v in found if isinstance(v, (str, int, float)) and not isinstance(v, bool)]
    kept = list(dict.fromkeys(v for v in kept if v and normalise(v)))
    if needed and not kept:
        raise Refused("no_answer", f"the answer is {value!r:.100}")
    return kept
