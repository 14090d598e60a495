"""The chain as a picture: a row per stage, arrows from parents, branches in lanes of their own."""

from __future__ import annotations

from rufus_plugins.recipes.report.run_folder import Run, StageRun, number
from rufus_plugins.recipes.report.text import DOT, duration, esc

ROW, LANE, EDGE = 58, 22, 18
STATES = {"done": "\u2713", "running": "\u25b6", "pending": "\u25cb", "failed": "\u2715", "interrupted": "\u2016"}


def state_of(stage: StageRun, alive: bool) -> tuple[str, str, str]:
    """(class, sign, words) of the stage's state: not by colour alone."""
    if stage.state == "running" and not alive:
        return "failed", "!", "was running, then stopped writing"
    known = "failed" if stage.state == "interrupted" else stage.state if stage.state in STATES else "unknown"
    return known, STATES.get(stage.state, "?"), stage.state


def chain_picture(run: Run, alive: bool) -> str:
    """Empty without stages."""
    if not run.stages:
        return ""
    lanes = {None: 0}
    for stage in run.stages:
        lanes.setdefault(stage.branch, len(lanes))
    place = {stage.folder.name: (n + 1, lanes[stage.branch]) for n, stage in enumerate(run.stages)}
    width = EDGE + LANE * len(lanes)
    edges, nodes = [], [_node(0, 0, "base", "")]
    rows = [_base_row(run)]
    for stage in run.stages:
        row, lane = place[stage.folder.name]
        kind, sign, words = state_of(stage, alive)
        parent = run.stage(stage.parent.get("stage"), stage.branch) if stage.parent.get("stage") else None
        from_row, from_lane = place.get(parent.folder.name, (0, 0)) if parent else (0, 0)
        if stage.parent and from_row < row:
            edges.append(_edge(from_row, from_lane, row, lane))
        nodes.append(_node(row, lane, kind, sign))
        rows.append(_row(stage, kind, words, parent))
    height = ROW * len(rows)
    said = "; ".join(
        f"{s.label}, {state_of(s, alive)[2]}, from {s.parent.get('stage') or 'the base model'}" for s in run.stages
    )
    return (
        f'<div class="chain" style="--gutter:{width}px"><svg class="gutter" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{esc(said)}">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z"/></marker></defs>{"".join(edges)}{"".join(nodes)}</svg>'
        f'<ol class="rows" style="--row:{ROW}px">{"".join(rows)}</ol></div>'
    )


def _at(row: int, lane: int) -> tuple[float, float]:
    return EDGE / 2 + LANE * lane + 6, ROW * row + ROW / 2


def _edge(from_row: int, from_lane: int, row: int, lane: int) -> str:
    (x1, y1), (x2, y2) = _at(from_row, from_lane), _at(row, lane)
    y1, y2 = y1 + 10, y2 - 11
    if x1 == x2 and row == from_row + 1:
        return f'<path class="edge" d="M{x1} {y1}V{y2}"/>'
    if x1 == x2:  # past other stages of the lane
        bow = x1 - 9
        return f'<path class="edge" d="M{x1 - 4} {y1}C{bow} {y1 + 18} {bow} {y2 - 18} {x2 - 4} {y2}"/>'
    turn = min(y1 + ROW - 24, y2)
    return f'<path class="edge" d="M{x1} {y1}C{x1} {turn} {x2} {y1} {x2} {turn}V{y2}"/>'


def _node(row: int, lane: int, kind: str, sign: str) -> str:
    x, y = _at(row, lane)
    return (
        f'<circle class="node {kind}" cx="{x}" cy="{y}" r="9"/>'
        f'<text class="sign {kind}" x="{x}" y="{y + 4}" text-anchor="middle">{sign}</text>'
    )


def _base_row(run: Run) -> str:
    digest = next((s.parent.get("digest") for s in run.stages if s.parent and not s.parent.get("stage")), None)
    mark = f" \u00b7 <code>{esc(str(digest)[:12])}</code>" if digest else ""
    return f'<li><span class="name">base model</span><span class="meta">where the chain starts{mark}</span></li>'


def _row(stage: StageRun, kind: str, words: str, parent: StageRun | None) -> str:
    done, total = stage.steps
    facts = [f'<b class="state {kind}">{esc(words)}</b>']
    if done is not None:
        facts.append(f"{done}/{total} steps" if total is not None else f"{done} steps")
    if (seconds := number(stage.told.get("seconds"))) is not None:
        facts.append(duration(seconds))
    if (attempts := number(stage.told.get("attempts"))) and attempts > 1:
        facts.append(f"{attempts:.0f} attempts")
    if stage.digest:
        facts.append(f"<code>{esc(stage.digest[:12])}</code>")
    origin = esc(parent.label if parent else stage.parent.get("stage") or "base model")
    name = f"{stage.index:02d} {esc(stage.label)}"
    if stage.folder.is_dir():
        name = f'<a href="#{stage.anchor}">{name}</a>'
    return (
        f'<li><span class="name">{name}'
        f' <span class="from">\u2190 {origin}</span></span><span class="meta">{DOT.join(facts)}</span></li>'
    )
