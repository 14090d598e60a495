"""The demo's last words: what was held out, what rose, by how much, and how the run went."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from rufus_plugins.recipes.demo.display import sparkline
from rufus_plugins.recipes.demo.intervals import Interval, gain, pass_rate

REWARD = "critic/score/mean"
TRUNCATED = "response_length/clip_ratio"
STEP_S = "timing_s/step"
PROBABILITY_DIFFERENCE = "training/rollout_probs_diff_max"


def summary(
    before: Mapping[str, Any], after: Mapping[str, Any], steps: Mapping[int, Mapping[str, Any]], rollouts_per_step: int
) -> dict[str, Any]:
    """Everything the table shows, as numbers."""
    seconds = [m[STEP_S] for m in steps.values() if STEP_S in m]
    differences = [m[PROBABILITY_DIFFERENCE] for m in steps.values() if PROBABILITY_DIFFERENCE in m]
    rates: dict[str, dict[str, Interval]] = {}
    for how in ("sampled", "greedy"):
        rates[how] = {
            "before": pass_rate(before[how]),
            "after": pass_rate(after[how]),
            "gain": gain(before[how], after[how]),
        }
    return {
        "problems": len(before["greedy"]),
        "samples": len(next(iter(before["sampled"].values()))),
        "rates": rates,
        "rewards": [m[REWARD] for _, m in sorted(steps.items()) if REWARD in m],
        "run_on": {"before": before["run_on"], "after": after["run_on"]},
        "truncated": {"before": before["truncated"], "after": after["truncated"]},
        "truncated_in_training": mean(m.get(TRUNCATED, 0.0) for m in steps.values()) if steps else None,
        "rollouts_per_s": rollouts_per_step * len(seconds) / sum(seconds) if seconds else None,
        "seconds_per_step": mean(seconds) if seconds else None,
        "probability_difference": max(differences) if differences else None,
    }


def table(result: Mapping[str, Any], baseline: float, title: str, files: Mapping[str, Path]) -> Any:
    from rich.table import Table

    rows = Table(title=title, title_justify="left", show_lines=False)
    for column in ("", "before RL", "after RL", "gain"):
        rows.add_column(column, overflow="fold")
    sampled, greedy = result["rates"]["sampled"], result["rates"]["greedy"]
    note = f"held-out pass rate, T=1\n({result['problems']} problems x {result['samples']}, 95 %)"
    rows.add_row(note, str(sampled["before"]), str(sampled["after"]), sampled["gain"].signed)
    rows.add_row("held-out pass rate, greedy", str(greedy["before"]), str(greedy["after"]), greedy["gain"].signed)
    rows.add_row("  by a constant program", f"{baseline:.3f}", f"{baseline:.3f}", "")
    for name, label in (("run_on", "answers that run on, T=1"), ("truncated", "answers cut off, T=1")):
        rows.add_row(label, f"{result[name]['before']:.3f}", f"{result[name]['after']:.3f}", "")
    rows.add_section()
    rewards = result["rewards"]
    if rewards:
        rows.add_row("training reward", f"{mean(rewards[:5]):.3f}", f"{mean(rewards[-5:]):.3f}", sparkline(rewards))
    rows.add_row("  rollouts cut off", "", _number(result["truncated_in_training"], ".4f"), "")
    rows.add_row("  rollouts/s", "", _number(result["rollouts_per_s"], ".1f"), _seconds(result["seconds_per_step"]))
    rows.add_row(
        "  rollout vs trainer,\n  largest probability diff.", "", _number(result["probability_difference"], ".1e")
    )
    rows.add_section()
    for name, path in files.items():
        rows.add_row(name, str(path))
    return rows


def verdict(result: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the sampled gain is positive beyond its interval, and the sentence that says so."""
    change = result["rates"]["sampled"]["gain"]
    if change.low > 0:
        return True, f"The held-out pass rate rose by {change.value:.3f}; the 95 % interval excludes 0."
    return False, (
        f"No gain is shown: the 95 % interval of the change, [{change.low:+.3f}, {change.high:+.3f}], "
        f"{'includes 0' if change.high >= 0 else 'is below 0'}. The exit code is 1."
    )


def _number(value: float | None, form: str) -> str:
    return "not measured" if value is None else format(value, form)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s a step"
