"""`rufus data preference-accuracy`: how often a reward model prefers what people preferred."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.tool import RecordTool, SetAside
from rufus_plugins.recipes.rlhf.transcripts import pair
from rufus_plugins.types import Task, Trajectory


@dataclass
class PreferenceAccuracy(RecordTool):
    """How often the reward `preference` gives the chosen answer of a pair the higher score.

    Input: the pairs that `rufus prepare rlhf` keeps for analysis, HH-RLHF's own records, or any pairs with `chosen` and
    `rejected`. Output: a line per pair; the manifest has the accuracy with its interval, in all and by length.
    """

    model: str
    """Folder of the reward model, or its hub name if it is in the local cache."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu or cuda."""
    max_tokens: int = 16384
    """Longest conversation that is scored, in tokens."""
    batch_size: int = 16
    """Conversations that are scored at a time."""

    name = "preference-accuracy"
    chunk_records = 64

    def start(self) -> None:
        from rufus_plugins.rewards.preference import Preference

        self._reward = Preference(
            self.model, device=self.device, max_tokens=self.max_tokens, batch_size=self.batch_size
        )

    def batch(self, raws: Sequence[Raw]) -> Iterator[Mapping[str, Any] | SetAside]:
        return iter(asyncio.run(self._all(raws)))

    async def _all(self, raws: Sequence[Raw]) -> list[Mapping[str, Any] | SetAside]:
        return await asyncio.gather(*(self._one(raw) for raw in raws))

    async def _one(self, raw: Raw) -> Mapping[str, Any] | SetAside:
        try:
            prompt, chosen, rejected = pair(raw.record)
        except Refused as error:
            return SetAside(raw, error.reason, str(error))
        try:
            good, bad = await asyncio.gather(self._score(prompt, chosen), self._score(prompt, rejected))
        except DataError as error:
            return SetAside(raw, "not_scorable", str(error))
        self.notes["right"] += good > bad
        self.notes["ties"] += good == bad
        self.notes["chosen is longer"] += len(chosen) > len(rejected)
        return {
            "id": str(raw.record.get("id") or raw.where),
            "chosen": good,
            "rejected": bad,
            "margin": good - bad,
            "chosen_characters": len(chosen),
            "rejected_characters": len(rejected),
        }

    async def _score(self, prompt: list[dict[str, str]], answer: str) -> float:
        messages = [{"role": "assistant", "content": answer}]
        return (await self._reward(Trajectory(Task("", "", prompt), messages=messages))).value

    def finish(self, job: Job) -> Mapping[str, Any]:
        rows = []
        for shard in job.shards():
            with shard.with_name(shard.name + ".jsonl").open("rb") as stream:
                rows += [json.loads(line) for line in stream]
        longer = [r for r in rows if r["chosen_characters"] > r["rejected_characters"]]
        shorter = [r for r in rows if r["chosen_characters"] < r["rejected_characters"]]
        return {
            "accuracy": accuracy(rows),
            "accuracy_where_chosen_is_longer": accuracy(longer),
            "accuracy_where_chosen_is_shorter": accuracy(shorter),
        }


def accuracy(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Share of pairs in which the chosen answer has the higher score, ties as half, with Wilson's 95 % interval."""
    if not rows:
        return {"pairs": 0, "accuracy": None, "interval": None}
    n = len(rows)
    p = sum(1.0 if r["margin"] > 0 else 0.5 if r["margin"] == 0 else 0.0 for r in rows) / n
    z = 1.959963984540054
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return {
        "pairs": n,
        "accuracy": p,
        "interval": [max(0.0, middle - half), min(1.0, middle + half)],
        "mean_margin": sum(r["margin"] for r in rows) / n,
    }
