"""`rufus data solve-rate`: how often a model solves each record (Rufus-Air and Axion, difficulty filters).

Samples `attempts` answers (or episodes) per record, scores them by any reward, and writes what they came to into the
record, under a label: `policy`, `teacher`, `closed_book`, `tool_free` are the ones that the filters of `rufus data
filter` look for. Several runs put several labels into one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.recipes.data import writing
from rufus_plugins.recipes.data.asking import Asking
from rufus_plugins.recipes.data.rate_histogram import counted, note, svg
from rufus_plugins.recipes.data.records import Raw
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.task_records import with_rates


@dataclass(kw_only=True)
class SolveRate(Asking):
    """Adds to each record how often the model solved it."""

    label: str = "policy"
    """Name under which the rates stand in the record."""
    solved_at: float = 1.0
    """Score from which on an attempt counts as correct."""

    name = "solve-rate"

    def record(self, raw: Raw) -> Mapping[str, Any]:
        scores = self.scores(self.task(raw))
        values = [score["value"] for score in scores]
        mean = sum(values) / len(values)
        self.notes[note(self.label, mean)] += 1
        rates = {
            "model": self.model,
            "reward": self.reward,
            "attempts": len(values),
            "correct": sum(value >= self.solved_at for value in values),
            "mean": round(mean, 6),
            "values": values,
            "solved_at": self.solved_at,
            "truncated": sum(score["termination"] == "response_length" for score in scores),
        }
        return with_rates(raw.record, self.label, rates)

    def finish(self, job: Job) -> Mapping[str, Any]:
        found = counted(job, [self.label])
        writing.write_atomically(job.extra("histogram.svg"), svg(f"{self.model}: {self.reward}", found))
        return {"faults_of_this_run": self._faults}
