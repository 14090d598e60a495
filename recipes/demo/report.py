"""The demo's last words: what was held out, what rose, by how much, and how the run went."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from rufus_plugins.recipes.demo.display import sparkline
from rufus_plugins.recipes.evidence.intervals import Interval, gain, pass_rate

REWARD = "critic/score/mean"
TRUNCATED = "rufus/truncation/mean"
"""Not verl's `response_length/clip_ratio`: that counts answers as long as the longest of the batch."""
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


def table(result: Mapping[str, Any], baseline: float, title: str) -> Any:
    """Fits into 80 columns."""
    from rich import box
    from rich.table import Table

    rows = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    rows.add_column("", no_wrap=True)
    for column in ("before RL", "after RL", "gain"):
        rows.add_column(column, justify="right", no_wrap=True)
    for how, label in (("sampled", f"pass rate, T=1 (x{result['samples']})"), ("greedy", "pass rate, greedy")):
        rates = result["rates"][how]
        cells = (str(rates["before"]), str(rates["after"]), rates["gain"].signed)
        rows.add_row(label, *(cell.replace(" ", "\n", 1) for cell in cells))
    rows.add_row("by a constant program", f"{baseline:.3f}", f"{baseline:.3f}", "")
    for name, label in (("run_on", "answers run on, T=1"), ("truncated", "answers cut off, T=1")):
        rows.add_row(label, f"{result[name]['before']:.3f}", f"{result[name]['after']:.3f}", "")
    rewards = result["rewards"]
    if rewards:
        first, last = mean(rewards[:5]), mean(rewards[-5:])
        rows.add_row("training reward, 5 steps", f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}")
    return rows


def lines(result: Mapping[str, Any], files: Mapping[str, Path]) -> list[str]:
    """What stands below the table: the run in numbers, and where its files are."""
    shown = {
        "training reward": sparkline(result["rewards"]),
        "rollouts/s": _number(result["rollouts_per_s"], ".1f"),
        "seconds a step": _number(result["seconds_per_step"], ".1f"),
        "rollouts cut off": _number(result["truncated_in_training"], ".4f"),
        "probability difference": f"{_number(result['probability_difference'], '.1e')} at most, rollout to trainer",
        "minutes": ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in result["seconds"].items()),
        **{name: str(path) for name, path in files.items()},
    }
    return [f"{name:<24}{value}" for name, value in shown.items()]


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
