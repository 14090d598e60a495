"""The page: one HTML file without any request, readable on a phone, in the dark, by keyboard and offline."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from rufus_plugins.recipes.report import stage_section
from rufus_plugins.recipes.report.chain_picture import chain_picture, state_of
from rufus_plugins.recipes.report.findings import checkpoints, findings, guards
from rufus_plugins.recipes.report.run_folder import QUIET_S, STOPPED, Run, StageRun, load, mapping
from rufus_plugins.recipes.report.tables import before_after, guard_matrix
from rufus_plugins.recipes.report.text import DOT, cut, esc
from rufus_plugins.recipes.report.token_view import sample_view

FILE = "report.html"
REFRESH_S = 15
"""How often the page of a living run loads itself anew. Ours."""
SAMPLE_BUDGET = 2_400_000
"""Characters of HTML for the sample rollouts of all stages; a page stays below 5 MB. Ours."""
EVENTS = 200
"""Events that are listed. Ours."""
PROBLEMS = 100
"""Ours."""


def write(run_folder: Path | str, output: Path | str | None = None, between_s: float = 0.0) -> Path:
    """Writes the page at once, so that a browser never reads half of it. Returns its path. Raises `ConfigError`.

    `between_s`: see `Run.alive`; the page of a living run loads itself anew.
    """
    run = load(run_folder)
    path = Path(output) if output is not None else run.folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(page(run, between_s=between_s), encoding="utf-8")
    os.replace(partial, path)
    return path


def page(run: Run, now: float | None = None, between_s: float = 0.0) -> str:
    now = time.time() if now is None else now
    alive = run.alive(now, between_s)
    begun = [stage for stage in run.stages if stage.folder.is_dir()]
    budget = SAMPLE_BUDGET // max(len(begun), 1)
    last = next((s for s in reversed(begun) if s.state != "pending"), None)
    stages = "".join(_kept_part(run, stage, alive, budget, stage is last) for stage in begun)
    here = Path(__file__)
    style, script = (here.with_name(name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    # the page's own script by its digest and nothing else: a rollout that slipped through could neither run nor load
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    refresh = f'<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>' if alive else ""
    live = (
        f'<p class="live" data-refresh="{REFRESH_S}" data-written="{now:.0f}" '
        f'data-quiet="{QUIET_S:g}"><span>\u25b6 The run is going on; the page loads '
        f"itself anew every {REFRESH_S} s.</span> "
        '<button type="button" id="pause" aria-pressed="false">Pause</button></p>'
        if alive
        else ""
    )
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"{refresh}<title>{esc(run.title)}</title><style>{style}</style></head>"
    )
    body = (
        f"<body>{_patterns()}<main><header><h1>{esc(run.title)}</h1>{_facts(run, alive, now)}{live}</header>"
        f'<section id="chain"><h2>Chain</h2>{chain_picture(run, alive)}</section>{_missing(run)}'
        f'<section id="changes"><h2>Before and after</h2>{before_after(findings(run))}</section>'
        '<section id="guards"><h2>What became of earlier stages</h2>'
        f"{guard_matrix(guards(run), checkpoints(run))}</section>"
        f'<section id="stages"><h2>Stages</h2>{stages}</section>{_events(run)}</main>'
        f"<script>{script}</script></body></html>\n"
    )
    return head + body


_parts: dict[Path, tuple[tuple, str, list[str]]] = {}
"""Stage folder -> what its part was made of, the part, and what it found missing: a live report makes it once."""


def _kept_part(run: Run, stage: StageRun, alive: bool, budget: int, opened: bool) -> str:
    files = [
        *stage.folder.glob("*"),
        *stage.files("metrics/*"),
        *stage.files("logs/*"),
        *stage.files("checkpoints/*.jsonl"),
    ]
    files += [*stage.files("samples/*.jsonl"), *stage.data_folder(run).glob("*.json")]
    stamps = tuple((path.name, _stamp(path)) for path in files)
    made_of = (stamps, stage.state, alive, budget, opened)
    known = _parts.get(stage.folder)
    if known is None or known[0] != made_of:
        before = len(run.problems)
        html = stage_part(run, stage, alive, budget, opened)
        _parts[stage.folder] = (made_of, html, run.problems[before:])
    else:
        run.problems += known[2]
    return _parts[stage.folder][1]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        told = path.stat()
    except OSError:
        return (0, 0)
    return (told.st_size, told.st_mtime_ns)


def stage_part(run: Run, stage: StageRun, alive: bool, budget: int, opened: bool) -> str:
    problems = run.problems
    metrics = stage_section.metrics_of(stage)
    figures, missing = stage_section.stage_charts(stage, metrics)
    notes = []
    if not metrics.lines:
        if stage.state != "pending":
            problems.append(f"{stage.folder.name}: no metrics in metrics/*.jsonl.")
        notes.append("No step has been logged.")
    elif missing:
        notes.append(f"Not logged in this stage: {', '.join(missing)}.")
    if failure := stage.told.get("error"):
        notes.append(str(failure))
    data = stage.data_folder(run)
    mixture = stage_section.mixture_view(data, problems)
    samples = sample_view(stage, budget)
    if not samples and metrics.lines and not mixture and "train/loss" not in metrics:
        notes.append("No sample rollouts were kept (rufus.samples.dir).")
    kind, sign, words = state_of(stage, alive)
    steps = f" \u00b7 step {metrics.last_step}" if metrics.lines else ""
    sections = [
        stage_section.data_view(data),
        stage_section.pick_view(stage),
        f'<div class="charts">{"".join(figures)}</div>' if figures else "",
        mixture,
        f"<h4>Sample rollouts</h4>{samples}" if samples else "",
        stage_section.how_it_ran(stage),
        "" if stage.state == "done" else stage_section.log_view(stage),
    ]
    return (
        f'<details class="stage" id="{stage.anchor}"{" open" if opened else ""}><summary><h3>'
        f"{stage.index:02d} {esc(stage.label)}</h3> <span class='state {kind}'>{sign} {esc(words)}</span>"
        f'<span class="meta">{steps}</span></summary>'
        + "".join(f'<p class="note">{esc(note)}</p>' for note in notes)
        + "".join(sections)
        + "</details>"
    )


def _facts(run: Run, alive: bool, now: float) -> str:
    told, code = run.told, run.told.get("code")
    facts = [f"<span>{esc(run.folder.resolve().name)}</span>"]
    if told.get("created"):
        facts.append(f"<span>created {esc(told['created'])}</span>")
    if isinstance(code, dict):
        git = str(code.get("git") or "")
        shown = [str(code.get("version") or "")[:20], git[:12], "with uncommitted changes" * git.endswith("+changes")]
        facts.append(f"<span>code {esc(' '.join(filter(None, shown)))}</span>")
    words = told.get("overrides")
    words = [str(word) for word in words] if isinstance(words, list) else []
    for stage, own in mapping(told.get("own")).items():
        words += [f"{stage}:{word}" for word in own] if isinstance(own, list) else []
    if words:
        facts.append(f"<span>with <code>{esc(cut(' '.join(words), 2000)[0])}</code></span>")
    facts.append(f"<span>page written {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC</span>")
    if run.unfinished and not alive and not (run.closed and run.events[-1].get("event") == "finished"):
        facts.append(f'<b class="state failed">! {esc(_how_it_stopped(run))}</b>')
    return f'<p class="run-facts">{DOT.join(facts)}</p>'


def _how_it_stopped(run: Run) -> str:
    last = run.events[-1] if run.events else {}
    if last.get("event") in STOPPED:
        return f"the run is not over: {last.get('stage') or 'the chain'} {last['event']}"
    when = datetime.fromtimestamp(run.touched, UTC)
    return f"the run is not over, and wrote nothing since {when:%Y-%m-%d %H:%M:%S} UTC"


def _missing(run: Run) -> str:
    """After everything else was read: reading adds to the list."""
    if not run.problems:
        return ""
    rows = "".join(f"<li>{esc(cut(problem, 1000)[0])}</li>" for problem in run.problems[:PROBLEMS])
    more = len(run.problems) - PROBLEMS
    rows += f"<li>and {more} more</li>" if more > 0 else ""
    return f'<section id="missing"><h2>What is missing</h2><ul>{rows}</ul></section>'


def _events(run: Run) -> str:
    if not run.events:
        return ""
    rows = []
    for event in run.events[-EVENTS:]:
        at, stage, what, detail = (
            esc(cut("" if event.get(key) is None else str(event[key]), limit)[0])
            for key, limit in (("at", 40), ("stage", 80), ("event", 80), ("detail", 500))
        )
        rows.append(f'<tr><td>{at}</td><td>{stage}</td><td>{what}</td><td class="wrap">{detail}</td></tr>')
    left = len(run.events) - len(rows)
    note = f'<p class="note">The first {left} events are in events.jsonl.</p>' if left > 0 else ""
    return (
        f'<section><details id="events"><summary><h2>Events</h2> <span class="meta">{len(run.events)}</span></summary>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Events"><table><thead><tr><th scope="col">when</th>'
        '<th scope="col">stage</th><th scope="col">event</th><th scope="col">detail</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}</details></section>"
    )


def _patterns() -> str:
    """Hatchings of the areas, once for all charts."""
    lines = (
        "", "M-1 1L1 -1M0 6L6 0M5 7L7 5", "M0 3H6", "M-1 5L1 7M0 0L6 6M5 -1L7 1", "M3 0V6", "M0 3H6M3 0V6",
        "M2 3a1 1 0 1 0 2 0a1 1 0 1 0 -2 0", "M0 0L6 6M0 6L6 0",
    )  # fmt: skip
    made = "".join(
        f'<pattern id="p{n}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" class="c{n}"/><path d="{path}" class="hatch"/></pattern>'
        for n, path in enumerate(lines, start=1)
    )
    return f'<svg width="0" height="0" class="defs" aria-hidden="true"><defs>{made}</defs></svg>'
