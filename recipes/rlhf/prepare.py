"""`rufus prepare rlhf`: preference pairs to the prompts that the policy answers itself.

The policy is scored on its own rollouts by a reward model. What people chose and rejected is never trained on: it goes
to `pairs.jsonl` in the folder `<output>-pairs` beside the output, for `rufus data preference-accuracy`, which says how
often a reward model agrees with them.

`--input` is `sources`, a file, a directory or a hub name, or `sample`: generated pairs in HH-RLHF's shape.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from rufus_plugins.recipes.data import source_list
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.source_list import Source
from rufus_plugins.recipes.data.stage_rows import Row, write_rows
from rufus_plugins.recipes.data.writing import write_atomically
from rufus_plugins.recipes.rlhf import sample
from rufus_plugins.recipes.rlhf.transcripts import pair

ABILITY = "chat"
LONGEST_PROMPT = 20_000
"""Characters. Ours."""


def prepare(
    input: str,
    output_dir: Path,
    *,
    source: str = "",
    sources: str = "",
    split: str | None = None,
    subset: str | None = None,
    count: int = 300,
    seed: int = 0,
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the last."""
    file = Path(sources) if sources else Path(__file__).with_name("sources.yaml")
    items = source_list.of_input(input, {"sample": lambda: sample.records(count, seed)}, file, source, split, subset)
    output_dir = Path(output_dir).resolve()
    folder = output_dir.with_name(f"{output_dir.name}-pairs")
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", errors="backslashreplace", dir=output_dir.parent, prefix=f".{folder.name}."
    ) as file:

        def convert(from_: Source, item: Raw) -> Row:
            prompt, chosen, rejected = pair(item.record)
            key = "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
            if len(key) > LONGEST_PROMPT:
                raise Refused("long_prompt", f"the prompt has {len(key)} characters")
            # written before duplicates are known: a second pair for the same prompt is still a comparison
            line = {"id": item.where, "prompt": prompt, "chosen": chosen, "rejected": rejected}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            return Row(prompt, "", f"rlhf/{from_.name}", key, {"id": "", "where": item.where})

        manifest = write_rows(
            "rlhf",
            ABILITY,
            items,
            convert,
            output_dir,
            heldout_share=heldout_share,
            manifest={"input": input, "source": source, "seed": seed},
        )
        file.flush()
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "pairs.jsonl", Path(file.name).read_bytes())
    return manifest
