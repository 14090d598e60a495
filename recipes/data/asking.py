"""What `solve-rate` and `trajectories` share: options, the pass that makes attempts, and its live table."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.attempt_store import AttemptStore
from rufus_plugins.recipes.data.attempts import Attempts, Plan
from rufus_plugins.recipes.data.backends import Sampling
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.run import Job
from rufus_plugins.recipes.data.task_records import task_of
from rufus_plugins.recipes.data.tool import RecordTool
from rufus_plugins.types import Task

EVERY_S = 30.0
"""Between two lines of progress where stderr is no terminal. Ours."""


@dataclass(kw_only=True)
class Asking(Sampling, RecordTool):
    """Attempts are made in a pass before the records are written; they stay in the attempts file, whatever happens."""

    reward: str
    """Scores each attempt; `rufus list reward` shows what there is."""
    reward_fields: tuple[str, ...] = ()
    """field=value of the reward's config, as for `rufus score`."""
    attempts: int = 8
    """Per record."""
    environment: str = ""
    """Environment of an episode with tools (`rufus list environment`); empty: one answer to the prompt."""
    environment_fields: tuple[str, ...] = ()
    """field=value of the environment and of the rules of its episodes."""
    system: str = ""
    """System message put in front of each prompt."""
    retries: int = 3
    """How often an attempt that failed on our side is made anew. Ours."""
    attempts_file: str = ""
    """Where attempts are kept and looked for (SQLite); default OUTPUT.attempts.sqlite. Runs may share one."""
    prompt_column: str = ""
    """Column of the prompt, text or messages, if it has no usual name."""
    answer_column: str = ""
    """Column of the ground truth, if it has no usual name."""

    chunk_records: ClassVar[int] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attempts < 1 or self.retries < 0:
            raise ConfigError("--attempts must be at least 1, and --retries at least 0")
        from rufus_plugins.cli_score import config_of

        self._plan = Plan(
            Sampling(**{name: getattr(self, name) for name in Sampling.__dataclass_fields__}),
            self.reward,
            config_of(self.reward_fields),
            self.environment,
            config_of(self.environment_fields),
            self.system,
        )
        self._path = ""
        self._store: AttemptStore | None = None
        self._faults: dict[str, int] = {}

    def survey(self, job: Job) -> None:
        self._path = self.attempts_file or f"{job.output}.attempts.sqlite"
        store = AttemptStore(Path(self._path))
        try:
            with Table(self, job.progress) as table:
                attempts = Attempts(self._plan, store, self.attempts, self.retries, table.show)
                asyncio.run(attempts.run(self._tasks(job)))
                table.show(attempts, last=True)
            self._faults = dict(sorted(attempts.faults.items()))
        finally:
            store.close()

    def _tasks(self, job: Job) -> Iterator[Task]:
        for raw in job.records():
            try:
                yield self.task(raw)
            except Refused:
                continue  # the main pass sets it aside

    def task(self, raw: Raw) -> Task:
        return task_of(raw, self.prompt_column, self.answer_column)

    def start(self) -> None:
        self._store = AttemptStore(Path(self._path), writable=False)

    def scores(self, task: Task) -> list[dict[str, Any]]:
        """The scores of all attempts. Raises `Refused` where one is missing or the record cannot be scored."""
        found = [self._store.get("scores", self._plan.keys(task, n)[1]) for n in range(self.attempts)]
        for score in found:
            if score is not None and "data" in score:
                raise Refused("data", score["data"])
        there = [score for score in found if score is not None]
        if len(there) < self.attempts:
            raise Refused(
                "incomplete",
                f"{len(there)} of {self.attempts} attempts; the others failed on our side: run again with --overwrite, "
                "only they are made",
            )
        return there


class Table:
    """How it goes, on stderr: a live table on a terminal, a line now and then elsewhere."""

    def __init__(self, tool: Asking, wanted: bool):
        self.title = f"{tool.model}: {tool.attempts} attempts each, {tool.reward}"
        self._live: Any = None
        self._wanted, self._began, self._said = wanted, time.monotonic(), time.monotonic()
        if wanted and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=False)

    def __enter__(self) -> Table:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live:
            self._live.stop()

    def show(self, attempts: Attempts, last: bool = False) -> None:
        if not self._wanted:
            return
        now = time.monotonic()
        if not last and now - self._said < (0.25 if self._live else EVERY_S):
            return
        self._said = now
        if self._live:
            self._live.update(self.table(attempts))
        else:
            print(f"{self.title}: {'; '.join(f'{k} {v}' for k, v in self.rows(attempts))}", file=sys.stderr, flush=True)

    def rows(self, attempts: Attempts) -> Sequence[tuple[str, str]]:
        rate = attempts.made / max(time.monotonic() - self._began, 1e-9)
        mean = attempts.score / max(sum(attempts.rates.values()), 1)
        rows = [
            ("records done", str(attempts.tasks)),
            ("attempts made", f"{attempts.made} ({rate:.1f}/s)"),
            ("attempts kept from before", str(attempts.kept)),
            ("mean score", f"{mean:.3f}"),
        ]
        rows += [("not scorable", str(attempts.unscorable))] if attempts.unscorable else []
        return rows + [(f"fault: {name}", str(count)) for name, count in sorted(attempts.faults.items())]

    def table(self, attempts: Attempts) -> Any:
        from rich.table import Table as RichTable

        table = RichTable(title=self.title)
        table.add_column("")
        table.add_column("", justify="right")
        table.add_column("records by mean score")
        rows, total = list(self.rows(attempts)), max(sum(attempts.rates.values()), 1)
        bars = [
            f"{tenth / 10:3.1f} {'#' * round(30 * attempts.rates[tenth] / total)} {attempts.rates[tenth]}"
            for tenth in range(11)
        ]
        for i in range(max(len(rows), len(bars))):
            left = rows[i] if i < len(rows) else ("", "")
            table.add_row(*left, bars[i] if i < len(bars) else "")
        return table
