"""Clean endings, for rewards with `require_clean_ending`: a rollout that a budget ended is not rewarded.

Small models learn soon to go on after what is paid for; a reward that looks at the answer alone pays for that too.
"""

from __future__ import annotations

from rufus_plugins.rewards.final_answer import boxes, without_thinking
from rufus_plugins.types import Fault, Score, Trajectory


def cut_off(trajectory: Trajectory) -> Score | None:
    """A score of 0 for a rollout that a budget ended (its length, its turns, its time), else None."""
    if trajectory.termination.fault is not Fault.BUDGET:
        return None
    why = f"it did not end by itself ({trajectory.termination.value})"
    return Score(0.0, {"answered": False, "unclean_ending": True}, why)


def runs_on(trajectory: Trajectory) -> Score | None:
    """As `cut_off`, and for a response that goes on after its last box."""
    text = without_thinking(trajectory.response) or ""
    found = boxes(text)
    if found and text[found[-1][1] :].strip(" \t\n.,;$*_`)]\\"):
        return Score(0.0, {"answered": True, "unclean_ending": True}, "text follows the final answer")
    return cut_off(trajectory)
