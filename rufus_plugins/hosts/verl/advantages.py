"""Hands rollouts, not rows, to the advantage estimators that ask for them.

verl 0.9.1 knows the segments of a rollout for the estimator named `grpo` only (trainer/ppo/v1/utils.py:146-167);
every other name gets rows, rewards and prompt ids. The patch passes an estimator of any name what its signature
names: `rollout_id`, `fault` (ended in an infrastructure fault), `outside` (not part of its group: faults, masked
endings, padding) and `row_reward` (the rewards summed over tokens, which are known here). Estimators that name none
of them, and verl's own, run as before.

The length penalty is applied here and nowhere else: after the group filter, before the estimator.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from rufus_plugins.algos.advantages.groups import RolloutGroups, rollout_groups
from rufus_plugins.algos.length_penalty import LengthPenalty

ASKED = ("rollout_id", "fault", "outside", "row_reward")


@dataclass
class StepFacts:
    """What the trainer knows of a training batch and verl's estimators do not see."""

    outside: Mapping[str, bool]
    """Row key -> whether its rollout is not part of its group. Rows that are not named are padding: outside."""
    fault: Mapping[str, bool] = field(default_factory=dict)
    penalty: LengthPenalty | None = None
    cap: int = 0
    """Response budget in tokens: where a length penalty is full."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Filled while the advantages are computed."""
    not_finite: list[str] = field(default_factory=list)
    """Keys of the rows whose reward was no finite number; filled while the advantages are computed."""


_facts: list[StepFacts] = []


@contextmanager
def step_facts(facts: StepFacts):
    """The facts that hold for the advantages computed inside."""
    _facts.append(facts)
    try:
        yield facts
    finally:
        _facts.pop()


def hand_over_rollouts(module: ModuleType) -> None:
    """Mends verl 0.9.1, trainer/ppo/v1/utils.py:120 `compute_advantage_for_multi_trajectories`."""
    stock = module.compute_advantage_for_multi_trajectories

    @functools.wraps(stock)
    def compute(data: Any, batch_keys: Sequence[str], adv_estimator: Any, *args: Any, **kwargs: Any) -> Any:
        function = asking(adv_estimator)
        if function is None:
            return stock(data, batch_keys, adv_estimator, *args, **kwargs)
        bound = inspect.signature(stock).bind(data, batch_keys, adv_estimator, *args, **kwargs).arguments
        return advantages_over_rollouts(data, batch_keys, function, bound.get("config"))

    module.compute_advantage_for_multi_trajectories = compute


def asking(name: Any) -> Callable[..., Any] | None:
    """The estimator, if its signature names one of `ASKED`."""
    from verl.trainer.ppo import core_algos

    function = core_algos.ADV_ESTIMATOR_REGISTRY.get(getattr(name, "value", name))
    if function is None:
        return None
    return function if set(ASKED) & set(inspect.signature(function).parameters) else None


def advantages_over_rollouts(
    data: Any, keys: Sequence[str], estimator: Callable[..., Any], config: Any = None, facts: StepFacts | None = None
) -> Any:
    """Writes `advantages` and `returns` into `data`, whose row `i` has the key `{uid}_{rollout}_{segment}`.

    Rewards that are not finite and, with a length penalty, lengthened rewards are settled in place first;
    rows outside their group get mask 0.
    """
    facts = facts or (_facts[-1] if _facts else StepFacts({key: _is_padding(key) for key in keys}))
    rollout_id = np.array([key.rsplit("_", 1)[0] for key in keys], dtype=object)
    outside = np.array([facts.outside.get(key, True) for key in keys])
    rewards = data.batch["token_level_rewards"]
    score = data.batch["token_level_scores"].sum(dim=-1).double().cpu().numpy()
    groups = rollout_groups(score, data.non_tensor_batch["uid"], rollout_id, outside)
    in_group = groups.inside[groups.row_rollout]
    facts.not_finite += [keys[row] for row in np.flatnonzero(~groups.finite[groups.row_rollout] & ~outside)]
    facts.metrics.update(_metrics(keys, score, outside, facts))
    reward = _settle(data, rewards, score, groups, in_group, facts)
    data.batch["response_mask"][~in_group] = 0

    available = {
        "rollout_id": rollout_id,
        "fault": np.array([facts.fault.get(key, False) for key in keys]),
        "outside": ~in_group,
        "row_reward": reward,
    }
    asked = inspect.signature(estimator).parameters
    data.batch["advantages"], data.batch["returns"] = estimator(
        token_level_rewards=rewards,
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
        config=config,
        **{name: value for name, value in available.items() if name in asked},
    )
    return data


def _metrics(keys: Sequence[str], score: np.ndarray, outside: np.ndarray, facts: StepFacts) -> dict[str, float]:
    """Of the step's real rows, faulted ones under their own prompt again: padding is no group."""
    rows = [row for row, key in enumerate(keys) if key in facts.outside and not _is_padding(key)]
    prompts = np.array([keys[row].rsplit("_", 2)[0] for row in rows], dtype=object)
    rollouts = np.array([keys[row].rsplit("_", 1)[0] for row in rows], dtype=object)
    return rollout_groups(score[rows], prompts, rollouts, outside[rows]).metrics()


def _settle(
    data: Any, rewards: Any, score: np.ndarray, groups: RolloutGroups, in_group: np.ndarray, facts: StepFacts
) -> np.ndarray:
    """Makes each row's rewards sum to the reward of its rollout: its score, penalised once, less all its KL.

    Returns these sums, `[rows]`.
    """
    import torch

    rows = groups.row_rollout
    reward, change = score, np.zeros(len(rows))
    if facts.penalty is not None:
        per_row = data.batch["response_mask"].sum(dim=-1).cpu().numpy()
        length = np.bincount(rows, weights=per_row, minlength=len(groups.reward))
        penalised = facts.penalty(groups.reward, length, groups.group, groups.inside, facts.cap)
        taken = np.where(groups.inside, groups.reward - penalised, 0.0)
        change -= taken[rows]
        inside = max(int(groups.inside.sum()), 1)
        facts.metrics.update(
            {
                "rufus/length_penalty/taken/mean": float(taken.sum() / inside),
                "rufus/length_penalty/rollouts": float((taken != 0).sum()),
                "rufus/length_penalty/tokens/mean": float(length[groups.inside].sum() / inside),
            }
        )
    if rewards is not data.batch["token_level_scores"]:  # verl subtracted a KL penalty, row by row
        reward = rewards.sum(dim=-1).double().cpu().numpy()
        kl = reward - score
        whole = np.bincount(rows, weights=np.where(np.isfinite(kl), kl, 0.0), minlength=len(groups.reward))
        change += whole[rows] - kl
    # Outcome estimators read the sum over tokens only, so the change may stand on any token. A row outside its
    # group has no advantage and stays as it is.
    changed = np.flatnonzero(in_group & (change != 0))
    if len(changed):
        where = torch.as_tensor(changed, device=rewards.device)
        rewards[where, 0] += torch.as_tensor(change[changed], dtype=rewards.dtype, device=rewards.device)
    return np.where(in_group, reward + change, reward)


def _is_padding(key: str) -> bool:
    """verl's padding rows: trainer/ppo/padding_utils.py `pad{hex}_{n}_0`."""
    return key.startswith("pad")
