"""`rufus data construct`: questions whose answer was computed before they were written (Axion 1.0)."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.recipes.audit import AuditLog
from rufus_plugins.recipes.construct import draw, verbalise
from rufus_plugins.recipes.construct.spec import Solved, Unfit
from rufus_plugins.recipes.construct.tables import Table, TableSet, open_tables
from rufus_plugins.recipes.data.records import Raw, Refused
from rufus_plugins.recipes.data.stage_rows import Row, write_rows
from rufus_plugins.recipes.data.writing import write_atomically
from rufus_plugins.recipes.teacher import ChatModel, chat_model

ASK = "\n\nLook up what you need and compute the rest. Give the final answer with its unit after `Answer:`."
"""Ours."""
STAGE, ABILITY = "construct", "search"


@dataclass
class Construct:
    """Filter, select, compute, verbalise: tasks for environment=search and reward=progress_chain.

    Writes the Parquet folder OUTPUT, and beside it OUTPUT.tasks.jsonl (each task with its construction),
    OUTPUT.corpus.jsonl (one document per row, to search in: `rufus prepare search_corpus`) and OUTPUT.audit.jsonl
    (every question asked of a model, with its answer and what became of it).
    """

    output: Path
    """Folder that is made for train.parquet and heldout.parquet; more files are put beside it."""
    tables: str = ""
    """Description of your tables (YAML, docs/data.md); empty: the built-in set."""
    count: int = 200
    """Tasks."""
    seed: int = 0
    """Of the drawing: the same seed gives the same tasks."""
    heldout_share: float = 0.0
    """Share of the tasks that goes to heldout.parquet."""
    base_url: str = ""
    """OpenAI-compatible server of a model that rewords the questions; empty: templates."""
    model: str = ""
    """Its name at that server."""
    api_key_env: str = ""
    """Environment variable that holds the server's key."""
    tries: int = 3
    """Rewordings asked for before the template is kept. Ours."""
    closed_book_url: str = ""
    """Server of the model that will be trained: what it answers without tools is left out; empty: nothing is asked."""
    closed_book_model: str = ""
    """Its name at that server."""
    closed_book_samples: int = 4
    """Answers asked for; one right one leaves the task out. Ours."""
    cache_dir: str = ""
    """Where models' answers are kept, so that a killed run goes on; empty: OUTPUT.cache."""

    name = "construct"

    def __call__(self) -> int:
        from rich.console import Console

        manifest = self.run()
        console = Console()
        for reason, number in sorted(manifest["refused"].items(), key=lambda item: -item[1]):
            console.print(f"  draws refused: {reason} {number}")
        for reason, number in sorted(manifest["dropped"].items()):
            console.print(f"  tasks set aside: {reason} {number}")
        console.print(f"{manifest['kept']} tasks, {manifest['wordings']}: {self.output}", soft_wrap=True)
        return 0

    def run(self) -> dict[str, Any]:
        """Raises `ConfigError` if the tables give no task."""
        if self.count < 1 or self.tries < 1 or self.closed_book_samples < 1:
            raise ConfigError("count, tries and closed-book-samples must be at least 1.")
        if bool(self.base_url) != bool(self.model) or bool(self.closed_book_url) != bool(self.closed_book_model):
            raise ConfigError("A server needs both its address and the name of the model.")
        output = Path(self.output).resolve()
        cache = self.cache_dir or str(output.with_name(f"{output.name}.cache"))
        tables = open_tables(self.tables or None, self.seed)
        refused: Counter[str] = Counter()
        audit = AuditLog(output.with_name(f"{output.name}.audit.jsonl"))
        with audit:
            made = asyncio.run(self._tasks(tables, refused, cache, audit))
        if not made:
            reasons = ", ".join(f"{r} {n}" for r, n in refused.most_common()) or "no table has a formula"
            raise ConfigError(f"These tables give no task ({reasons}).")
        blocked = json.dumps(list(tables.blocked))
        manifest = write_rows(
            STAGE,
            ABILITY,
            ((None, Raw(task["id"], task)) for task in made),
            lambda _, item: _row(item, blocked),
            output,
            heldout_share=self.heldout_share,
            manifest={
                "tables": self.tables or "built-in",
                "seed": self.seed,
                "refused": dict(sorted(refused.items())),
                "wordings": dict(Counter(task["wording"] for task in made if "refused" not in task)),
                "models": [m for m in (self.model, self.closed_book_model) if m],
            },
        )
        lines = (json.dumps(task, ensure_ascii=False) + "\n" for task in made if "refused" not in task)
        write_atomically(output.with_name(f"{output.name}.tasks.jsonl"), "".join(lines))
        lines = (json.dumps(document, ensure_ascii=False) + "\n" for document in corpus(tables))
        write_atomically(output.with_name(f"{output.name}.corpus.jsonl"), "".join(lines))
        return manifest

    async def _tasks(
        self, tables: TableSet, refused: Counter[str], cache: str, audit: AuditLog
    ) -> list[dict[str, Any]]:
        writer = solver = None
        if self.base_url:
            writer = chat_model(self.base_url, self.model, api_key_env=self.api_key_env, cache_dir=cache)
        if self.closed_book_url:
            solver = chat_model(
                self.closed_book_url, self.closed_book_model, api_key_env=self.api_key_env, cache_dir=cache
            )
        made: list[dict[str, Any]] = []
        source = _worded(tables, self.seed, refused)
        kept = 0
        try:
            while kept < self.count:
                part = [p for _, p in zip(range(min(32, self.count - kept)), source, strict=False)]
                if not part:
                    break
                found = await asyncio.gather(
                    *(self._finish(tables, solved, text, writer, solver, audit) for solved, text in part)
                )
                for task in found:
                    kept += "refused" not in task
                    made.append({"id": f"{self.seed}-{len(made)}", **task})
        finally:
            for model in (writer, solver):
                if model:
                    await model.aclose()
        return made

    async def _finish(
        self,
        tables: TableSet,
        solved: Solved,
        text: str,
        writer: ChatModel | None,
        solver: ChatModel | None,
        audit: AuditLog,
    ) -> dict[str, Any]:
        table = tables.tables[solved.spec.table]
        wording = "template"
        if writer:
            reworded = await self._reword(writer, text, solved, table, audit)
            text, wording = (reworded, "model") if reworded else (text, "template")
        task = as_task(solved, text, wording)
        if solver and await self._closed_book(solver, task, audit):
            task["refused"] = "closed_book"
        return task

    async def _reword(self, writer: ChatModel, text: str, solved: Solved, table: Table, audit: AuditLog) -> str | None:
        messages = verbalise.prompt(text, table)
        for at in range(self.tries):
            try:
                said = await writer.ask(messages, sample=at)
            except InfrastructureError as error:
                audit.write("reword", model=writer.model, asked=text, failed=str(error))
                raise
            said = said.strip().strip('"').strip()
            try:
                verbalise.check(said, solved, table)
            except Unfit as error:
                audit.write("reword", model=writer.model, asked=text, said=said, refused=error.reason, why=str(error))
                continue
            audit.write("reword", model=writer.model, asked=text, said=said, kept=True)
            return said
        return None

    async def _closed_book(self, solver: ChatModel, task: dict[str, Any], audit: AuditLog) -> bool:
        from rufus_plugins.rewards.science_answer import ScienceAnswer
        from rufus_plugins.types import Task, Trajectory

        asked = [{"role": "user", "content": task["question"] + "\n\nGive the final answer after `Answer:`."}]
        said = await asyncio.gather(*(solver.ask(asked, sample=i) for i in range(self.closed_book_samples)))
        reward = ScienceAnswer()
        right = []
        for text in said:
            messages = [{"role": "assistant", "content": text}]
            score = await reward(Trajectory(Task(task["entity"], STAGE, asked, task["answer"]), messages=messages))
            right.append(score.value >= 1)
        audit.write("closed_book", model=solver.model, asked=task["question"], said=said, right=right)
        return any(right)


def _worded(tables: TableSet, seed: int, refused: Counter[str]) -> Iterator[tuple[Solved, str]]:
    for solved, rng in draw.constructions(tables, seed, refused):
        table = tables.tables[solved.spec.table]
        text = verbalise.template(solved, table, random.Random(rng.random()))
        try:
            verbalise.check(text, solved, table)
        except Unfit as error:
            refused[error.reason] += 1
            continue
        yield solved, text


def as_task(solved: Solved, question: str, wording: str) -> dict[str, Any]:
    return {
        "question": question,
        "answer": f"{solved.answer:.4g} {solved.spec.unit}",
        "entity": solved.entity,
        "construction": solved.spec.as_json(),
        "targets": list(solved.targets),
        "candidates": solved.candidates,
        "runner_up": solved.runner_up,
        "margin": round(solved.margin, 6),
        "wording": wording,
    }


def _row(item: Raw, blocked: str) -> Row:
    task = item.record
    if "refused" in task:
        raise Refused(task["refused"], "a model answers it without tools")
    return Row(
        [{"role": "user", "content": task["question"] + ASK}],
        {"answer": task["answer"], "targets": task["targets"]},
        f"construct/{task['construction']['table']}",
        task["question"],
        {
            "id": f"construct-{task['id']}",
            "entity": task["entity"],
            "construction": json.dumps(task["construction"], ensure_ascii=False),
            "wording": task["wording"],
            "blocked": blocked,
        },
    )


def corpus(tables: TableSet) -> Iterator[dict[str, str]]:
    """One document per row: what a solver may find, one entity at a time. The tables themselves are no documents."""
    for table in tables.tables.values():
        for at, row in enumerate(table.rows):
            entity = row[table.entity]
            if entity is None:
                continue
            facts = [
                f"{column.words}: {_shown(row[name])}{' ' + column.unit if column.unit else ''}"
                for name, column in table.columns.items()
                if row[name] is not None and name != table.entity
            ]
            text = f"{entity} is one of the {table.noun[1]}. " + "; ".join(facts) + "."
            yield {"id": f"{table.name}-{at}", "title": str(entity), "text": text}


def _shown(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
