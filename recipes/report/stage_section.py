"""One stage in the page: what it learned step by step, what was filtered, how rollouts ended, and how it was run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.recipes.report import curves
from rufus_plugins.recipes.report.charts import line_chart, stack_chart
from rufus_plugins.recipes.report.curves import Metrics, curve
from rufus_plugins.recipes.report.run_folder import StageRun, mapping, number, read_json, read_text, whole
from rufus_plugins.recipes.report.text import DOT, esc, figure

DROPPED = "rufus/group_filter/total/dropped/"
KEPT = "rufus/group_filter/total/kept"
ENDINGS = re.compile(r"rufus/endings/([^/]+)/total")
HELD_OUT = "val-core/"
OTHER_REASONS, OTHER_ENDINGS = "lost, late or cut", "lost by our side"
FILTER_KINDS = {
    "kept": 1, "below band": 2, "above band": 6, "zero variance": 4, "none solved": 3, "all solved": 5,
    "too few rollouts": 7, OTHER_REASONS: 8,
}  # fmt: skip
ENDING_KINDS = {
    "answered": 1, "stopped": 5, "max turns": 2, "response length": 3, "context length": 4, "tool budget": 6,
    "malformed": 7, "episode timeout": 7, OTHER_ENDINGS: 8,
}  # fmt: skip
BAND_KINDS = {"below": 2, "inside": 1, "above": 6, "unknown": 8}
"""Which colour and hatching stands for what."""
ANY = ("rufus/group_filter/total/", "rufus/endings/", HELD_OUT, "rufus/faults")
"""Of these, every metric is read."""

RL_CHARTS: tuple[tuple[str, tuple[tuple[str, str], ...], str], ...] = (
    (
        "Reward",
        (
            ("critic/score/mean", "trained on"),
            ("rufus/group_filter/reward_generated/mean", "generated, before the filter"),
        ),
        "of rollouts in training, not held out",
    ),
    ("Response length", (("response_length/mean", "mean"), ("response_length/max", "longest")), "tokens"),
    (
        "Truncated rollouts",
        (("rufus/truncation/mean", "trained on"), ("rufus/group_filter/truncated/mean", "generated")),
        "share",
    ),
    (
        "Route match",
        (
            ("actor/routing_replay/match_rate", "all mini-batches"),
            ("actor/routing_replay/match_rate_fresh", "under the weights that sampled"),
        ),
        "share of expert choices in which trainer and rollout agree",
    ),
    (
        "KL",
        (
            ("actor/ppo_kl", "policy moved within the step"),
            ("training/rollout_kl_k3", "rollout to trainer (k3)"),
            ("actor/kl_loss", "to the reference"),
        ),
        "nats per token",
    ),
    ("Gradient norm", (("actor/grad_norm", "norm"),), ""),
    ("Entropy", (("actor/entropy", "entropy"),), "nats per token"),
    (
        "Seconds per step",
        (
            ("timing_s/step", "step"),
            ("timing_s/gen", "generation"),
            ("timing_s/update_actor", "update"),
            ("timing_s/old_log_prob", "log-probabilities"),
        ),
        "",
    ),
    (
        "Turns and tool calls",
        (("rufus/rollout/turns/mean", "turns"), ("rufus/rollout/tool_calls/mean", "tool calls")),
        "per rollout",
    ),
    ("Contexts", (("rufus/rollout/segments/mean", "mean"), ("rufus/rollout/segments/max", "most")), "per rollout"),
    (
        "Age of rollouts",
        (
            ("training/off_policy/trajectory_staleness/mean", "mean"),
            ("training/off_policy/trajectory_staleness/max", "most"),
        ),
        "steps since they were sampled",
    ),
    ("Lost rollouts", (("rufus/faults", "faults of our side"),), "per step; never trained on"),
)
SFT_CHARTS = (
    ("Loss", (("train/loss", "training"), ("val/loss", "held-out")), ""),
    ("Gradient norm", (("train/grad_norm", "norm"),), ""),
    ("Learning rate", (("train/lr", "learning rate"),), ""),
    ("Tokens per step", (("train/global_tokens", "tokens"),), ""),
)
PLAIN = {"Contexts": 1, "Age of rollouts": 0, "Lost rollouts": 0}
"""Charts that are left out where nothing exceeds this: one context, no age, no loss."""
ALWAYS = {"Reward", "Response length", "Truncated rollouts", "Route match", "KL", "Gradient norm", "Seconds per step"}
"""Charts of an RL stage whose absence is mentioned."""
_LISTED = {name for charts in (RL_CHARTS, SFT_CHARTS) for _, metrics, _ in charts for name, _ in metrics}


def wanted(name: str) -> bool:
    return name in _LISTED or name.startswith(ANY)


def metrics_of(stage: StageRun) -> Metrics:
    found = Metrics()
    for path in stage.files("metrics/*.jsonl"):
        found.attempt(path, wanted)
    return found


def stage_charts(stage: StageRun, metrics: Metrics) -> tuple[list[str], list[str]]:
    """Figures, and the names of those that have no numbers."""
    tuned = "train/loss" in metrics or "val/loss" in metrics
    picked = picked_step(stage)
    figures, missing = [], []
    for title, listed, note in SFT_CHARTS if tuned else RL_CHARTS:
        there = [(label, curve(metrics.series(name))) for name, label in listed if name in metrics]
        if not any((high or 0) > PLAIN.get(title, -math.inf) for _, c in there for high in c.highs):
            there = []
        marks = [(picked, f"picked: step {picked}")] if picked is not None and title == "Loss" else []
        made = line_chart(title, there, marks, note)
        figures += [made] if made else []
        if not made and not tuned and title in ALWAYS:
            missing.append(title.lower())
        if title == "Reward" and not tuned:
            figures += [made for made in (_held_out(metrics),) if made]
    if not tuned:
        for title, made in (("curriculum band", _band(stage, metrics)), ("filter", _filter(metrics))):
            figures += [made] if made else []
            missing += [] if made else [title]
        figures += [made] if (made := _endings(metrics)) else []
        missing += [] if made else ["endings"]
    return figures, missing


def picked_step(stage: StageRun) -> int | None:
    """Of an SFT stage: the step of the checkpoint that its rule picked."""
    told = mapping(stage.told.get("pick"))
    return next(
        (whole(told[key]) for key in ("step", "picked", "picked_step") if whole(told.get(key)) is not None), None
    )


def _held_out(metrics: Metrics) -> str:
    names = [name for name in metrics.names() if name.startswith(HELD_OUT) and "/mean@" in name]
    there = [(name.removeprefix(HELD_OUT), curve(metrics.series(name))) for name in names]
    return line_chart("Held-out reward while training", there, note="verl\u2019s own validation")


def _counts(metrics: Metrics, names: Mapping[str, str]) -> dict[int, dict[str, float]]:
    """Step -> label -> count."""
    found: dict[int, dict[str, float]] = {}
    for name, label in names.items():
        for step, value in metrics.series(name):
            row = found.setdefault(step, {})
            row[label] = row.get(label, 0.0) + max(value, 0.0)
    return found


def _named(places: Mapping[str, int], made: curves.Shares) -> list[int]:
    """The same colour and hatching for the same name, in every stage."""
    return [places[name] for name in made.names]


def _filter(metrics: Metrics) -> str:
    names = {KEPT: "kept"}
    for name in metrics.names():
        if name.startswith(DROPPED):
            reason = name.removeprefix(DROPPED).replace("_", " ")
            names[name] = reason if reason in FILTER_KINDS else OTHER_REASONS
    if KEPT not in metrics and len(names) == 1:
        return ""
    made = curves.shares(_counts(metrics, names), FILTER_KINDS)
    return stack_chart("Groups kept and dropped", made, _named(FILTER_KINDS, made), "by the filter\u2019s reason")


def _endings(metrics: Metrics) -> str:
    names = {}
    for name in metrics.names():
        if found := ENDINGS.fullmatch(name):
            ending = found[1].replace("_", " ")
            names[name] = ending if ending in ENDING_KINDS else OTHER_ENDINGS
    made = curves.shares(_counts(metrics, names), ENDING_KINDS)
    return stack_chart("How rollouts ended", made, _named(ENDING_KINDS, made))


def _band(stage: StageRun, metrics: Metrics) -> str:
    """From the history of prompts where there is one, else from what the filter dropped."""
    counts: dict[int, dict[str, float]] = {}
    for path in (stage.folder / "checkpoints/curriculum.jsonl", stage.folder / "curriculum.jsonl"):
        counts = counts or curves.curriculum(path)
    note = "share of groups whose mean reward is below, inside and above the productive band"
    if not counts and KEPT in metrics:
        sides = {
            f"{DROPPED}below_band": "below", f"{DROPPED}none_solved": "below", KEPT: "inside",
            f"{DROPPED}above_band": "above", f"{DROPPED}all_solved": "above",
        }  # fmt: skip
        counts = _counts(metrics, sides)
        note += "; from the filter\u2019s counts"
    made = curves.shares(counts, BAND_KINDS)
    return stack_chart("Curriculum band", made, _named(BAND_KINDS, made), note)


def mixture_view(folder: Path, problems: list[str]) -> str:
    """Both views of what an SFT stage was trained on: share of the samples, share of the supervised tokens."""
    path = folder / "mixture.json"
    if not path.is_file():
        return ""
    try:
        told = mapping(json.loads(path.read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError) as error:
        problems.append(f"{folder.name}/mixture.json cannot be read ({error}).")
        return ""
    shares, sums = mapping(told.get("shares")), mapping(told.get("categories"))
    rows = []
    for name, share in list(shares.items())[:60]:
        cells = []
        for measure, kind in (("samples", 1), ("supervised_tokens", 2)):
            part = number(mapping(share).get(measure)) or 0.0
            amount = number(mapping(sums.get(name)).get(measure))
            width = min(max(part, 0.0), 1.0) * 100
            cells.append(
                f'<td><div class="bar"><span class="fill b{kind}" style="width:{width:.1f}%"></span></div>'
                f"{part:.1%}<small>{'' if amount is None else f' ({figure(amount)})'}</small></td>"
            )
        rows.append(f'<tr><th scope="row"><bdi>{esc(name)}</bdi></th>{"".join(cells)}</tr>')
    if not rows:
        return ""
    return (
        '<h4>Mixture</h4><div class="scroll" tabindex="0" role="region" aria-label="Mixture"><table class="mixture">'
        '<thead><tr><th scope="col">category</th><th scope="col">share of samples</th>'
        '<th scope="col">share of supervised tokens</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def data_view(folder: Path) -> str:
    """How much data there was, and what a constant answer would earn on it."""
    told = read_json(folder / "family.json", [])
    items = {str(k): v for k, v in mapping(told.get("items")).items() if number(v) is not None}
    said = [f"{name} {figure(value)}" for name, value in items.items()]
    if (share := number(told.get("constant_share"))) is not None:
        said.append(f"best constant {told.get('constant_kind') or 'answer'} {share:.3f}")
    return f'<p class="note">Data: {esc(DOT.join(said))}</p>' if said else ""


def how_it_ran(stage: StageRun) -> str:
    """Command, config, figures of the pick and the rest of stage.json, folded."""
    parts = []
    command = read_text(stage.folder / "command.txt")
    if command is None and isinstance(stage.told.get("command"), list):
        import shlex

        command = shlex.join(str(word) for word in stage.told["command"])
    for title, text in (("Command", command), ("Config", read_text(stage.folder / "config.yaml"))):
        if text is not None:
            parts.append(
                f'<details class="text" id="{stage.anchor}-{title.lower()}"><summary>{title}</summary>'
                f'<button type="button" class="copy">Copy</button><pre tabindex="0">{esc(text)}</pre></details>'
            )
    told = {
        k: v for k, v in stage.told.items() if k in ("pick", "parent", "checkpoint", "data", "code", "config_digest")
    }
    if told:
        text = json.dumps(told, indent=2, ensure_ascii=False, default=str)
        parts.append(
            f'<details class="text" id="{stage.anchor}-lineage"><summary>Lineage</summary>'
            f'<button type="button" class="copy">Copy</button><pre tabindex="0">{esc(text[:100_000])}</pre></details>'
        )
    return "".join(parts)


LOG_BYTES = 12_000
"""Of the end of a log. Ours."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_view(stage: StageRun) -> str:
    """The last lines of the youngest log, folded."""
    files = stage.files("logs/*.log")
    if not files:
        return ""
    try:
        with files[-1].open("rb") as file:
            file.seek(max(file.seek(0, 2) - LOG_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").splitlines()[-60:]
    shown = "\n".join(lines)
    return (
        f'<details class="text" id="{stage.anchor}-log"{" open" if stage.state == "failed" else ""}>'
        f"<summary>Last lines of {esc(files[-1].name)}</summary>"
        f'<button type="button" class="copy">Copy</button><pre tabindex="0">{esc(shown)}</pre></details>'
    )


def pick_view(stage: StageRun) -> str:
    told: Mapping[str, Any] = mapping(stage.told.get("pick"))
    plain = {k: v for k, v in told.items() if isinstance(v, str | int | float | bool)}
    if not plain:
        return ""
    said = " \u00b7 ".join(f"{esc(k)} {esc(figure(v) if isinstance(v, float) else v)}" for k, v in plain.items())
    return f'<p class="pick"><b>Picked checkpoint:</b> {said}</p>'
