"""The report in a terminal: the chain, what rose and fell, what is missing."""

from __future__ import annotations

from typing import Any

from rufus_plugins.recipes.report.chain_picture import state_of
from rufus_plugins.recipes.report.findings import checkpoints, findings, guards
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
        parts.append(_changes(found))
        parts += [
            Text(f"{visible(f.stage.label)}: not compared: {visible(f.why)}", style="red") for f in found if f.refused
        ]
    parts += _forgotten(run)
    parts += [Text(f"missing: {visible(problem)}", style="yellow") for problem in run.problems[:20]]
    if len(run.problems) > 20:
        parts.append(Text(f"and {len(run.problems) - 20} more; the page lists them", style="yellow"))
    return parts


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for n, column in enumerate(columns):
        made.add_column(
            column, justify="right" if n and column not in ("state", "in words", "figure", "from") else "left"
        )
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


def _changes(found: list[Any]) -> Any:
    from rich.text import Text

    made = _table("stage", "figure", "before", "after", "change [95 %]", "in words")
    for finding in found:
        if finding.change is None:
            why = "protocols differ" if finding.refused else finding.why
            made.add_row(Text(visible(finding.stage.label)), "", "", "", "", Text(f"not compared: {visible(why)}"))
            continue
        below = [visible(finding.stage.label), baseline_of(finding).replace("best constant", "constant")]
        for n, (title, m) in enumerate(finding.change.metrics.items()):
            gain = f"{m.gain.value:+.3f} [{m.gain.low:+.3f}, {m.gain.high:+.3f}]".replace("0.", ".")
            words = Text(f"{SIGNS[m.verdict]} {m.verdict}", style=STYLES[m.verdict])
            name = Text(below[n] if n < len(below) else "", style="dim" if n else "")
            made.add_row(name, title, f"{m.before:.3f}", f"{m.after:.3f}", gain, words)
    return made


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
