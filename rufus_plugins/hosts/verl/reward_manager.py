"""Scores rollouts with the reward that the config selects. verl's reward loop calls `run_single` per rollout.

A reward's `InfrastructureError`, its missed deadline and its own bug become a typed ending in
`reward_extra_info["termination"]`; the trainer leaves such samples out (`faults.py`). Nothing becomes a silent 0.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rufus_plugins import selection
from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.recipes.report.samples import EXPLANATION, MAX_EXPLANATION_CHARS, sample_rules, shortened
from rufus_plugins.types import ContextSegment, Score, Termination, Trajectory

from .tasks import plain, task_of

TIMEOUT_S = 600.0
"""Deadline of one scoring, from the moment it is admitted. Ours; a reward has finer deadlines of its own."""
CONCURRENCY = 64
"""Scorings at a time in one reward worker. Ours."""


class RufusRewardManager(RewardManagerBase):
    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        self.reward = selection.build(config, "reward")
        if self.reward is None:
            raise ConfigError("RufusRewardManager is selected, but no reward is: select one by reward=<name>")
        self._admit = asyncio.Semaphore(CONCURRENCY)
        self._complained: set[str] = set()
        self._explains = sample_rules(selection.section(config)["samples"]) is not None

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """`data` holds the outputs of one rollout, in order; the answer is that of the whole rollout."""
        trajectory = await asyncio.to_thread(self.trajectory, data)
        if trajectory.termination.fault == "infrastructure":
            return self._result(Score(0.0), trajectory.termination)
        async with self._admit:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    score = await self.reward(trajectory)
                    _check(score, self.reward)
            except TimeoutError:
                return self._fault(Termination.TIMEOUT_INFRA, f"no score within {TIMEOUT_S:g} s", trajectory)
            except InfrastructureError as error:
                return self._fault(error.termination, str(error), trajectory)
            except DataError as error:
                return self._fault(Termination.REWARD_FAILED, f"the record cannot be scored: {error}", trajectory)
            except Exception as error:
                return self._fault(
                    Termination.REWARD_FAILED, f"{type(error).__name__}: {error}", trajectory, traceback.format_exc()
                )
        return self._result(score, trajectory.termination)

    def _fault(self, termination: Termination, why: str, trajectory: Trajectory, trace: str = "") -> dict[str, Any]:
        kind = f"{termination}: {why}"
        if kind not in self._complained:  # each kind once per worker: a broken scorer would flood the log
            self._complained.add(kind)
            print(
                f"rufus: reward {type(self.reward).__name__} gave no score for task {trajectory.task.id!r} "
                f"({termination}): {why}\n{trace}",
                file=sys.stderr,
                flush=True,
            )
        return self._result(Score(0.0, explanation=why), termination)

    def _result(self, score: Score, termination: Termination) -> dict[str, Any]:
        """verl carries the explanation through the queue with every rollout, so it goes along only where it is read."""
        info = {key: plain(value) for key, value in score.metrics.items()}
        if self._explains:
            info.setdefault(EXPLANATION, shortened(score.explanation, MAX_EXPLANATION_CHARS))
        return {
            "reward_score": float(score.value),
            "reward_extra_info": {**info, "score": float(score.value), "termination": termination.value},
        }

    def trajectory(self, data: DataProto) -> Trajectory:
        """What the reward sees. An agent loop's own `extra_fields["trajectory"]` (messages, tool_calls, artifacts,
        termination, turns, metrics) goes in as it is; otherwise the response is one assistant message. Its `sampled`
        is (mask, log-probabilities) per segment, which verl does not hand to rewards (agent_loop.py:967)."""
        items = [data[row] for row in range(len(data))]
        fields = items[-1].non_tensor_batch
        extra = fields.get("tool_extra_fields") or {}
        told: Mapping[str, Any] = extra.get("trajectory") or {}
        sampled = told.get("sampled") or [None] * len(items)
        segments = tuple(_segment(item, own) for item, own in zip(items, sampled, strict=True))
        text = self.tokenizer.decode(segments[-1].response_ids, skip_special_tokens=True)
        return Trajectory(
            task=task_of(fields),
            segments=segments,
            messages=tuple(told.get("messages") or ({"role": "assistant", "content": text},)),
            tool_calls=tuple(told.get("tool_calls") or ()),
            artifacts=told.get("artifacts") or {},
            termination=Termination(told["termination"])
            if told.get("termination")
            else self._ending(segments[-1], extra, fields.get("response_budget")),
            turns=int(told.get("turns") or 1),
            metrics=told.get("metrics") or {},
        )

    def _ending(self, segment: ContextSegment, extra: Mapping[str, Any], budget: Any = None) -> Termination:
        """Of a single turn: whether the model ended it. vLLM and SGLang do not say, so the length decides there."""
        reason = extra.get("finish_reason")
        if reason is None:
            cap = self.config.data.max_response_length if budget is None else int(budget)
            reason = "length" if len(segment.response_ids) >= cap else "stop"
        return Termination.RESPONSE_LENGTH if reason == "length" else Termination.ANSWERED


def _check(score: Any, reward: Any) -> None:
    if not isinstance(score, Score):
        raise TypeError(f"{type(reward).__name__} returned {type(score).__name__}, not a rufus_plugins.Score")
    if not np.isfinite(score.value):
        raise ValueError(f"{type(reward).__name__} returned the score {score.value}")


def _segment(item: Any, told: Any = None) -> ContextSegment:
    prompt, response = item.batch["prompts"], item.batch["responses"]
    mask = item.batch["attention_mask"]
    prompt_length = int(item.non_tensor_batch.get("prompt_len", mask[: len(prompt)].sum()))
    response_length = int(item.non_tensor_batch.get("response_len", mask[len(prompt) :].sum()))
    if told is not None:
        own, logprobs = (None if column is None else np.asarray(column) for column in told)
    else:
        own, logprobs = item.batch.get("response_mask", None), item.batch.get("rollout_log_probs", None)
    return ContextSegment(
        prompt_ids=prompt[:prompt_length].tolist(),
        response_ids=response[:response_length].tolist(),
        response_mask=[1] * response_length if own is None else own[:response_length].tolist(),
        response_logprobs=None if logprobs is None else logprobs[:response_length].tolist(),
    )
