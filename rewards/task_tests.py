"""Coding Agent: the task's own test script decides (Rufus-Air, Coding Agent). Harbor verifier semantics.

The environment runs the verifier in its sandbox after the agent ended (`harbor_verifier.run_verifier`) and keeps what
it returns in `artifacts["verifier"]`. A task with steps keeps `artifacts["verifier_steps"]`: a list, in order, of
`{"name", "verifier", "min_reward"?}` for the steps that ran. `min_reward` (a number for `reward`, or one per name)
stops the task at the step that misses it; what follows did not run and is not in the list, or is ignored. The strategy
`mean` averages each name over the steps that ran, a name that a step lacks counting 0; `final` takes the last of them.

An empty, missing, NaN or non-numeric reward is `InfrastructureError(REWARD_FAILED)`, never a 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import DataError, InfrastructureError
from rufus_plugins.rewards.ending import cut_off
from rufus_plugins.rewards.harbor_verifier import read_reward
from rufus_plugins.types import Fault, Score, Termination, Trajectory

Rewards = dict[str, float]


@dataclass
class TaskTests:
    """The reward that the task's own test script wrote, by Harbor's rules."""

    key: str = "reward"
    """Which number of reward.json is the reward; the others become metrics. The only number of a file always is."""
    multi_step_reward_strategy: str = ""
    """mean | final, for tasks with steps; "": the record's own (`task.extra`), else mean."""
    require_clean_ending: bool = False
    """Score 0 where a budget ended the episode, whatever the tests say. Ours."""

    async def __call__(self, trajectory: Trajectory) -> Score:
        if trajectory.termination.fault is Fault.INFRASTRUCTURE:
            raise InfrastructureError(
                f"the rollout ended with {trajectory.termination.value}: nothing to score", trajectory.termination
            )
        if self.require_clean_ending and (unclean := cut_off(trajectory)):
            return unclean
        artifacts = trajectory.artifacts
        steps = artifacts.get("verifier_steps")
        if steps is not None:
            strategy = self.multi_step_reward_strategy or trajectory.task.extra.get(
                "multi_step_reward_strategy", "mean"
            )
            rewards, ran = step_rewards(steps, strategy)
            note = f"{strategy} of {ran} of {len(steps)} steps"
        elif isinstance(artifacts.get("verifier"), Mapping):
            rewards, note = read_reward(artifacts["verifier"]), "one verifier run"
        else:
            raise InfrastructureError(
                f"the trajectory has no artifacts['verifier']; it has {sorted(artifacts)}", Termination.REWARD_FAILED
            )
        name = self.key if self.key in rewards else next(iter(rewards)) if len(rewards) == 1 else None
        if name is None:
            raise DataError(
                f"task_tests: the verifier wrote {sorted(rewards)} and no {self.key!r}; set rufus.reward.key"
            )
        others = {f"reward/{key}": value for key, value in rewards.items() if key != name}
        return Score(rewards[name], others, f"{name} = {rewards[name]:g} ({note})")


def step_rewards(steps: Sequence[Mapping[str, Any]], strategy: str) -> tuple[Rewards, int]:
    """The rewards of a task with steps, and how many of them count."""
    if strategy not in ("mean", "final"):
        raise DataError(f"task_tests: multi_step_reward_strategy is {strategy!r}; it can be mean or final")
    counted: list[Rewards] = []
    for step in steps:
        if not isinstance(step, Mapping) or not isinstance(step.get("verifier"), Mapping):
            raise InfrastructureError(
                f"a step in artifacts['verifier_steps'] has no verifier: {step!r:.200}", Termination.REWARD_FAILED
            )
        rewards = read_reward(step["verifier"])
        counted.append(rewards)
        if not reached(rewards, step.get("min_reward")):
            break
    if not counted:
        raise InfrastructureError("no step of the task ran its verifier", Termination.REWARD_FAILED)
    if strategy == "final":
        return counted[-1], len(counted)
    names = dict.fromkeys(name for rewards in counted for name in rewards)
    return {n: sum(r.get(n, 0.0) for r in counted) / len(counted) for n in names}, len(counted)


def reached(rewards: Rewards, least: Any) -> bool:
    """Whether a step's rewards are at least `min_reward` (a number for `reward`, or one per name)."""
    if least is None:
        return True
    wanted = least if isinstance(least, Mapping) else {"reward": least}
    for name, value in wanted.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"min_reward of {name!r} is {value!r}, not a number")
    return all(rewards.get(name, float("-inf")) >= float(value) for name, value in wanted.items())
