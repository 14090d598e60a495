"""`rufus data filter`: applies registered data filters, and draws the solve rates before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.recipes.data import writing
from rufus_plugins.recipes.data.rate_histogram import counted, note, svg
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.task_records import extra_of, rates_of, task_of
from rufus_plugins.recipes.data.texts import id_of
from rufus_plugins.recipes.data.tool import RecordTool
from rufus_plugins.types import Task


@dataclass
class Filter(RecordTool):
    """Keeps the records that every filter keeps; the others are set aside under the filter's name."""

    filters: tuple[str, ...]
    """NAME or NAME:field=value,field=value, in order; `rufus list data_filter` shows what there is."""
    label: str = ""
    """Solve rate that the picture shows; default: the label of the first filter that has one."""
    prompt_column: str = ""
    """Column of the prompt, if it has no usual name."""
    answer_column: str = ""
    """Column of the ground truth, if it has no usual name."""

    name = "filter"

    def __post_init__(self) -> None:
        if not self.filters:
            raise ConfigError("--filters is empty: name at least one; `rufus list data_filter` shows what there is")
        labels = [getattr(f, "label", "") for _, f in self._built()]
        self._label = self.label or next(filter(None, labels), "")
        self._filters: list[tuple[str, Any]] = []

    def _built(self) -> list[tuple[str, Any]]:
        from rufus_plugins.cli_score import config_of
        from rufus_plugins.plugins import registry

        built = []
        for text in self.filters:
            name, _, fields = text.partition(":")
            config = config_of([f for f in fields.split(",") if f])
            built.append((name, registry().build("data_filter", name, config)))
        return built

    def start(self) -> None:
        self._filters = self._built()

    def record(self, raw: Raw) -> Mapping[str, Any]:
        try:
            task = task_of(raw, self.prompt_column, self.answer_column)
        except Refused:  # a filter may not need the prompt
            task = Task(
                id_of(raw.record) or raw.where, str(raw.record.get("data_source") or ""), [], None, extra_of(raw.record)
            )
        mean = self._mean(task)
        if mean is not None:
            self.notes[note("before", mean)] += 1
        for name, keeps in self._filters:
            try:
                keep, reason = keeps(task)
            except DataError as error:
                raise Refused(f"{name}_unknown", str(error)) from error
            if not keep:
                raise Refused(name, reason)
        if mean is not None:
            self.notes[note("after", mean)] += 1
        return raw.record

    def _mean(self, task: Task) -> float | None:
        try:
            return rates_of(task, self._label)["mean"] if self._label else None
        except DataError:
            return None

    def finish(self, job: Job) -> Mapping[str, Any]:
        found = counted(job, ["before", "after"])
        if any(map(sum, found.values())):
            title = f"{', '.join(self.filters)}: mean score of {self._label}"
            writing.write_atomically(job.extra("histogram.svg"), svg(title, found))
        return {}
