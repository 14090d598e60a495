"""The evidence as tables of the page: each stage against its own start, and all checkpoints under all protocols."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.recipes.evidence.compare import Metric
from rufus_plugins.recipes.report.findings import Cell, Finding, Guard
from rufus_plugins.recipes.report.text import esc

SIGNS = {"rose": "\u25b2", "fell": "\u25bc", "within noise": "\u2248", "too few items": "?"}
CLASSES = {"rose": "rose", "fell": "fell", "within noise": "noise", "too few items": "noise"}


def before_after(found: Sequence[Finding]) -> str:
    if not found:
        return '<p class="note">No checkpoint of a stage has been measured under its own protocol yet.</p>'
    reach = max(
        (abs(end) for f in found if f.change for m in f.change.metrics.values() for end in (m.gain.low, m.gain.high)),
        default=1.0,
    )
    bodies = []
    for finding in found:
        name = f'<a href="#{finding.stage.anchor}">{esc(finding.stage.label)}</a>'
        head = f'<tr><th scope="rowgroup" colspan="4">{name}<small>{_below(finding)}</small></th></tr>'
        if finding.change is None:
            kind, sign = ("refused", "\u2298 not compared: ") if finding.refused else ("open", "\u2013 ")
            bodies.append(
                f'<tbody>{head}<tr><td colspan="4" class="{kind}">{sign}{_lines(finding.why)}</td></tr></tbody>'
            )
            continue
        rows = []
        for title, metric in finding.change.metrics.items():
            gain, kind = metric.gain, CLASSES[metric.verdict]
            rows.append(
                f'<tr><th scope="row">{esc(title)}</th><td class="num">{_value(metric.before)}</td>'
                f'<td class="num">{_value(metric.after)}</td><td><div class="gain"><b>{_signed(gain.value)}</b>'
                f"<small>[{_signed(gain.low)}, {_signed(gain.high)}]</small>{_whisker(metric, reach)}"
                f'<span class="verdict {kind}">{SIGNS[metric.verdict]} {esc(metric.verdict)}</span></div></td></tr>'
            )
        bodies.append(f"<tbody>{head}{''.join(rows)}</tbody>")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Before and after, by stage"><table class="changes">'
        '<thead><tr><th scope="col">figure</th><th scope="col" class="num">before</th>'
        '<th scope="col" class="num">after</th><th scope="col">change <small>[95 %]</small></th>'
        f"</tr></thead>{''.join(bodies)}</table></div>"
        '<p class="note">Before is the checkpoint the stage started from, after the one it ended with, both '
        "measured on the same held-out items under the same pinned protocol. Intervals: paired bootstrap over items, "
        "95 %. \u201cWithin noise\u201d: the interval includes 0.</p>"
    )


def baseline_of(finding: Finding) -> str:
    """What the best constant answer, or call sequence, would earn."""
    told: Mapping[str, Any] = finding.change.protocol.baseline if finding.change else {}
    share = told.get("share")
    if not isinstance(share, int | float):
        return ""
    return f"best constant {told.get('kind') or 'answer'}: {share:.3f}"


def _below(finding: Finding) -> str:
    """What stands beside the stage's name."""
    change, lines = finding.change, []
    if finding.protocol not in (finding.stage.name, finding.stage.label):
        lines.append(f"protocol {finding.protocol}")
    if change is not None:
        lines += [
            baseline_of(finding),
            f"{change.mean.items} items, {change.protocol.samples} samples each",
            *change.notes,
        ]
    return "".join(f" <span>{esc(line)}</span>" for line in lines if line)


def _whisker(metric: Metric, reach: float) -> str:
    """The interval as a bar about 0, all rows of the table to one scale."""
    reach = reach or 1.0

    def x(value: float) -> float:
        return 50 + 46 * value / reach

    gain = metric.gain
    kind = CLASSES[metric.verdict]
    dot = f'<circle cx="{x(gain.value):.1f}" cy="6" r="3"/>'
    if kind == "noise":
        dot = f'<rect x="{x(gain.value) - 2.5:.1f}" y="3.5" width="5" height="5" class="hollow"/>'
    return (
        f'<svg class="whisker {kind}" viewBox="0 0 100 12" aria-hidden="true"><path class="zero" d="M50 0V12"/>'
        f'<path class="span" d="M{x(gain.low):.1f} 6H{x(gain.high):.1f}M{x(gain.low):.1f} 3V9M{x(gain.high):.1f} 3V9"/>'
        f"{dot}</svg>"
    )


def guard_matrix(rows: Sequence[Guard], columns: Sequence[tuple[str, str]]) -> str:
    used = [(digest, name) for digest, name in columns if any(digest in row.cells for row in rows)]
    if not rows or not used:
        return '<p class="note">Nothing has been measured yet.</p>'
    head = "".join(
        f'<th scope="col"><span class="wrap">{esc(name)}</span><br><code>{esc(digest[:7])}</code></th>'
        for digest, name in used
    )
    body = []
    for row in rows:
        cells = "".join(_cell(row.cells.get(digest)) for digest, _ in used)
        body.append(f'<tr><th scope="row">{esc(row.name)}<br><code>{esc(row.digest[:7])}</code></th>{cells}</tr>')
        if row.unlike:
            body.append(
                f'<tr><td class="refused" colspan="{len(used) + 1}">\u2298 not compared with the row above, '
                f"whose protocol differs in {_lines(row.unlike)}</td></tr>"
            )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Mean reward by protocol and checkpoint">'
        f'<table class="guards"><thead><tr><th scope="col">protocol \\ checkpoint</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="note">Mean reward. The framed cell is the end of the stage that trained for this protocol; later '
        "checkpoints are compared with it: \u25bc fell (forgetting), \u25b2 rose, \u2248 within noise.</p>"
    )


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return '<td class="none">\u2013</td>'
    kind = "own" if cell.own else CLASSES.get(cell.verdict, "")
    more = ""
    if cell.since is not None:
        gain = cell.since.mean.gain
        ends = f"[{_signed(gain.low)}, {_signed(gain.high)}]"
        more = f"<br><small>{SIGNS[cell.verdict]} {_signed(gain.value)}<br>{ends}</small>"
        more += f'<span class="sr"> {esc(cell.verdict)} since its own stage</span>'
    elif cell.note:
        more = f'<br><small class="wrap">\u2298 not compared: {_lines(cell.note)}</small>'
    return f'<td class="num {kind}">{_value(cell.value)}{more}</td>'


def _lines(text: str) -> str:
    return "<br>".join(esc(line.strip()) for line in text.splitlines() if line.strip())


def _value(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "not scored"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\u2212")
