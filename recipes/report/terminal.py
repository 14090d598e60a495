"""The report in a terminal: the chain, what rose and fell, what is missing."""

from __future__ import annotations

from typing import Any

from rufus_plugins.recipes.report.chain_picture import state_of
from rufus_plugins.recipes.report.findings import Finding, checkpoints, findings, guards
from rufus_plugins.recipes.report.run_folder import Run, number
from rufus_plugins.recipes.report.tables import SIGNS, baseline_of
from rufus_plugins.recipes.report.text import duration, visible

STYLES = {"rose": "green", "fell": "red", "within noise": "dim", "too few items": "dim"}


def summary(run: Run) -> list[Any]:
    """What rich prints, one thing after the other."""
    from rich.text import Text

    parts: list[Any] = [Text(visible(run.title), style="bold"), _chain(run)]
    found = findings(run)
    if found:
        parts.append(Text("Before and after, change with its 95 % interval:"))
        parts += [line for finding in found for line in _change(finding)]
    parts += _forgotten(run)
    parts += [Text(f"missing: {visible(problem)}", style="yellow") for problem in run.problems[:20]]
    if len(run.problems) > 20:
        parts.append(Text(f"and {len(run.problems) - 20} more; the page lists them", style="yellow"))
    return parts


WRAPPED = ("stage", "state", "from")
"""Columns of text."""


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="left" if column in WRAPPED else "right", no_wrap=column not in WRAPPED)
    return made


def _chain(run: Run) -> Any:
    from rich.text import Text

    made, alive = _table("stage", "state", "from", "steps", "time", "checkpoint"), run.alive()
    for stage in run.stages:
        _, sign, words = state_of(stage, alive)
        done, total = stage.steps
        made.add_row(
            Text(f"{stage.index:02d} {visible(stage.label)}"),
            Text(f"{sign} {visible(words)}"),
            Text(visible(stage.parent.get("stage") or "base")),
            "" if done is None else f"{done}/{'?' if total is None else total}",
            duration(number(stage.told.get("seconds"))),
            Text(visible((stage.digest or "\u2013")[:7])),
        )
    return made


def _change(finding: Finding) -> list[Any]:
    """A line per figure, below a line about the stage."""
    from rich.text import Text

    change, name = finding.change, visible(finding.stage.label)
    if change is None:
        why = f"not compared: {finding.why}" if finding.refused else finding.why
        return [Text(f"{name}: {visible(why)}", style="red" if finding.refused else "dim")]
    facts = [
        baseline_of(finding),
        f"{change.mean.items} items",
        f"{change.protocol.samples} samples each",
        *change.notes,
    ]
    lines = [Text(name, style="bold").append(f"  {visible(', '.join(f for f in facts if f))}", style="dim")]
    for title, m in change.metrics.items():
        line = Text(f"  {title:<12} {m.before:.3f} \u2192 {m.after:.3f}   ")
        line.append(f"{m.gain.value:+.3f} [{m.gain.low:+.3f}, {m.gain.high:+.3f}]  ")
        lines.append(line.append(f"{SIGNS[m.verdict]} {m.verdict}", style=STYLES[m.verdict]))
    return lines


def _forgotten(run: Run) -> list[Any]:
    """A line per ability that a later stage cost."""
    from rich.text import Text

    names, parts = dict(checkpoints(run)), []
    for guard in guards(run):
        for digest, cell in guard.cells.items():
            if cell.verdict == "fell":
                gain = cell.since.mean.gain
                parts.append(
                    Text(
                        f"{SIGNS['fell']} {visible(guard.name)} fell by {-gain.value:.3f} "
                        f"[{gain.low:+.3f}, {gain.high:+.3f}] until {visible(names.get(digest, digest[:12]))}",
                        style="red",
                    )
                )
    return parts
