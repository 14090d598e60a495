"""`rufus prepare axion_rl`: questions with an answer and a chain of intermediate targets to the Parquet of
`environment=search` and `reward=progress_chain`.

A record is `{"question", "answer", "targets", "id"}`, a target `{"name", "value", "unit", "tolerance", "absolute",
"depends_on"}` (rewards/progress_chain.py). Set aside: records without question, answer or targets, and targets that the
reward refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rufus_plugins.recipes.data.records import Raw, Refused, read
from rufus_plugins.recipes.data.stage_rows import Row, text_of, write_rows
from rufus_plugins.rewards.progress_chain import targets_of

ABILITY = "search"


def prepare(
    input: str,
    output_dir: Path,
    *,
    split: str = "train",
    subset: str | None = None,
    data_source: str = "axion",
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the last."""
    return write_rows(
        "axion_rl",
        ABILITY,
        ((None, item) for item in read(input, split, subset)),
        lambda _, item: convert(item, data_source),
        output_dir,
        heldout_share=heldout_share,
        manifest={"input": input},
    )


def convert(item: Raw, data_source: str) -> Row:
    """Raises `DataError`."""
    record = item.record
    question = text_of(record.get("question"), "question")
    answer = record.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise Refused("no_answer", f"the answer is {answer!r:.100}")
    truth = {"answer": str(answer).strip(), "targets": list(record.get("targets") or ())}
    if not targets_of(truth):
        raise Refused("no_targets", "there is no intermediate target; `reward=search_answer` needs none")
    prompt = [{"role": "user", "content": question}]
    return Row(prompt, truth, data_source, question, {"id": str(record.get("id") or "")})
