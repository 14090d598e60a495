"""What one call of the sampler saw, as metrics and as the message that ends or warns of a short step."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rufus_plugins.algos.group_filter import GroupFilter, Verdict, reward_histogram
from rufus_plugins.algos.truncation import truncation_rate
from rufus_plugins.types import Termination

PREFIX = "rufus/group_filter"
"""verl adds metrics over the local updates of a step when their name contains `total`, and takes the largest for
`max` (trainer/ppo/v1/utils.py:90-108); hence the names."""


@dataclass
class Step:
    step: int
    wanted: int
    """Groups to return."""
    rule: GroupFilter
    started: float = field(default_factory=time.monotonic)
    carried: int = 0
    """Good groups that waited from earlier steps."""
    asked: int = 0
    """Prompts generated for this step, the first round included."""
    judged: int = 0
    kept: int = 0
    means: list[float] = field(default_factory=list)
    dropped: Counter = field(default_factory=Counter)
    endings: list[Termination | None] = field(default_factory=list)
    """How each generated rollout ended, as far as its reward said."""
    late: bool = False

    @property
    def per_round(self) -> int:
        return math.ceil(self.wanted * self.rule.oversample)

    @property
    def rounds(self) -> int:
        return -(-self.asked // self.per_round) if self.per_round else 0

    def waited_s(self) -> float:
        return time.monotonic() - self.started

    def metrics(self, trained: Sequence[Sequence[float]], ages: Sequence[int]) -> dict[str, float]:
        """`trained`: values of each returned group; `ages`: steps since each was dispatched."""
        means = [math.fsum(values) / len(values) for values in trained if values]
        metrics = {
            "total/generated": self.asked,
            "total/kept": self.kept,
            "total/carried": self.carried,
            "total/trained": len(trained),
            "total/dropped": self.dropped.total(),
            "rounds/max": self.rounds,
            "wait_s/max": self.waited_s(),
            "short/max": float(bool(trained) and len(trained) < self.wanted),
        }
        metrics.update({f"total/dropped/{v}": self.dropped[v] for v in Verdict if v is not Verdict.KEPT})
        if self.endings:
            metrics["truncated/mean"] = truncation_rate(self.endings)
        if self.means:
            metrics["reward_generated/mean"] = math.fsum(self.means) / len(self.means)
        if means:
            metrics["reward_trained/mean"] = math.fsum(means) / len(means)
        if ages:
            metrics["age_steps/mean"] = sum(ages) / len(ages)
            metrics["age_steps/max"] = max(ages)
        return {f"{PREFIX}/{key}": float(value) for key, value in metrics.items()}

    def story(self, good: int) -> str:
        """Why the step is short, with the histogram of what was generated."""
        rule = self.rule
        why = f"max_wait_s={rule.max_wait_s:g} is over" if self.late else f"max_rounds={rule.max_rounds} are used up"
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.dropped.most_common()) or "none"
        return (
            f"step {self.step}: {good} of {self.wanted} groups passed the filter ({_rule(rule)}) out of "
            f"{self.asked} prompts in {self.rounds} rounds, {self.waited_s():.0f} s; {why}.\n"
            f"  dropped: {reasons}\n"
            f"  mean {rule.metric} of each group:\n{reward_histogram(self.means)}\n"
            "  Mend: widen rufus.group_filter, filter the prompts by difficulty first, or raise max_rounds, "
            "max_wait_s or actor_rollout_ref.rollout.n."
        )


def _rule(rule: GroupFilter) -> str:
    words = []
    if rule.low is not None or rule.high is not None:
        low = f"{rule.low:g} < " if rule.low is not None else ""
        high = f" <= {rule.high:g}" if rule.high is not None else ""
        words.append(f"{low}mean {rule.metric}{high}")
    words += ["zero_variance"] * rule.zero_variance + ["all_or_none"] * rule.all_or_none
    return ", ".join([*words, f"at least {rule.min_rollouts} healthy rollouts"])
