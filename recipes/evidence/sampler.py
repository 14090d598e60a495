"""A checkpoint in this process as what training has: one answer to a prompt, or a token-faithful episode.

The same driver, chat format, environment and limits as in hosts/verl/agent_loop.py, and the same generator as in the
rollout; only verl's servers are missing. So what is measured is what is trained.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.recipes.data.attempt_store import AttemptStore, key_of
from rufus_plugins.recipes.data.attempts import Attempts, Plan, restored, stored
from rufus_plugins.recipes.data.backends import Embedded, Sampling
from rufus_plugins.recipes.evidence.protocol import Protocol
from rufus_plugins.rollouts.turns import Sampled
from rufus_plugins.rollouts.validation import VALIDATE
from rufus_plugins.types import ContextSegment, Fault, Task, Termination, Trajectory

CONCURRENCY = 64
"""Attempts at a time: rows of the generator's batch. Ours: a step of the tiny model at contexts of 170 tokens costs
0.5 ms a row at 64 rows, and 1.3 ms at 96."""
EPISODES = 64
"""Episodes at a time: each may hold a process of its own. Ours."""


class Engine(Embedded):
    """With the numbers of the rollout (`Protocol.engine`) and its limit of a context."""

    def __init__(self, sampling: Sampling, protocol: Protocol):
        self.protocol = protocol
        super().__init__(sampling)

    def _model(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        import rufus_plugins.hosts.verl.cpu_attention as cpu_attention

        attention, dtype = self.protocol.engine.get("attn_implementation"), self.protocol.engine.get("dtype")
        if attention == cpu_attention.NAME:
            cpu_attention.register(torch)
        return AutoModelForCausalLM.from_pretrained(
            self.sampling.model,
            dtype=getattr(torch, str(dtype or "float32")),
            **({"attn_implementation": attention} if attention else {}),
        )

    def _end_ids(self, model: Any) -> frozenset[int]:
        """As hosts/verl/agent_loop.py and transformers_rollout/server.py: of all that name some."""
        found: set[int] = set()
        for source in (model.config, model.generation_config, self.tokenizer):
            value = getattr(source, "eos_token_id", None)
            found |= set(value) if isinstance(value, list | tuple) else {value}
        return frozenset(int(index) for index in found - {None})

    async def answer(self, task: Task, seed: int, temperature: float) -> Trajectory:
        """One answer to the task's prompt, as verl's single turn (experimental/agent_loop/single_turn_agent_loop.py of
        0.9.1) and our reward manager make it. Raises `DataError`, `InfrastructureError`."""
        chat = self.chat
        try:
            prompt = chat.opening(task.prompt, ())
        except Exception as error:  # a template raises what its author chose
            raise DataError(f"the chat template refuses this prompt: {error}") from error
        room = min(self.protocol.context, self._room) - len(prompt)
        if room < 1:
            raise DataError(f"a prompt of {len(prompt)} tokens leaves no room in a context of {self.protocol.context}")
        made = await self.sampled(prompt, min(room, self.protocol.max_tokens), seed, temperature)
        return self.said(task, prompt, made.tokens, made.logprobs, made.finish == "length")

    def said(self, task: Task, prompt: Any, ids: Any, logprobs: Any, cut_off: bool) -> Trajectory:
        """hosts/verl/reward_manager.py, `trajectory`."""
        return Trajectory(
            task,
            segments=(ContextSegment(list(prompt), list(ids), [1] * len(ids), logprobs and list(logprobs)),),
            messages=({"role": "assistant", "content": self.tokenizer.decode(ids, skip_special_tokens=True)},),
            termination=Termination.RESPONSE_LENGTH if cut_off else Termination.ANSWERED,
        )


@dataclass
class EnginePolicy:
    """The driver's `Policy`; each turn has a seed of its own."""

    engine: Engine
    seed: int
    temperature: float
    stop: tuple[str, ...] = ()
    turns: int = 0

    async def generate(self, prompt_ids: list[int], max_tokens: int) -> Sampled:
        made = await self.engine.sampled(prompt_ids, max_tokens, self.seed + self.turns, self.temperature, self.stop)
        self.turns += 1
        return Sampled(made.tokens, made.finish, made.logprobs)


class MeasuredPlan(Plan):
    """An attempt is decided by the protocol, the checkpoint, the item and the number; the last number is greedy."""

    protocol: Protocol
    checkpoint: str

    def keys(self, task: Task, number: int) -> tuple[str, str]:
        key = key_of(protocol=self.protocol.digest, checkpoint=self.checkpoint, task=task.id, number=number)
        return key, key

    def temperature(self, number: int) -> float:
        return 0.0 if number >= self.protocol.samples else self.protocol.temperature


class MeasuredAttempts(Attempts):
    """`Attempts` whose answers are made token by token. Kept are also the ids of an answer and the tokens of either."""

    plan: MeasuredPlan
    backend: Engine

    async def _answer(self, task: Task, number: int) -> tuple[Trajectory, dict[str, Any]]:
        made = await self.backend.answer(task, self.plan.seed(task, number), self.plan.temperature(number))
        segment = made.segments[0]
        ids = {"prompt_ids": segment.prompt_ids, "ids": segment.response_ids, "logprobs": segment.response_logprobs}
        return made, stored(made) | ids | {"tokens": len(segment.response_ids)}

    def _restored(self, task: Task, body: Mapping[str, Any]) -> Trajectory:
        segment = ContextSegment(body["prompt_ids"], body["ids"], [1] * len(body["ids"]), body["logprobs"])
        return dataclasses.replace(restored(task, body), segments=(segment,))

    async def _episode(self, task: Task, number: int) -> tuple[Trajectory, dict[str, Any]]:
        from rufus_plugins.plugins import registry
        from rufus_plugins.rollouts.episode import Episode, Limits

        engine, protocol = self.backend, self.plan.protocol
        environment = registry().build("environment", self.plan.environment, dict(self._fields))
        told = dataclasses.replace(task, extra={**task.extra, VALIDATE: True})
        seed, temperature = self.plan.seed(task, number), self.plan.temperature(number)
        policy = EnginePolicy(engine, seed, temperature, tuple(self._rules.stop))
        limits = Limits(protocol.context, protocol.max_tokens)
        rollout = await Episode(told, environment, policy, engine.chat, self._rules, limits).run()
        made = rollout.trajectory
        if made.termination.fault is Fault.INFRASTRUCTURE:
            if rollout.problem.startswith("DataError: "):
                raise DataError(rollout.problem.partition("\n")[0])
            raise InfrastructureError(rollout.problem or made.termination.value, made.termination)
        return made, stored(made) | {"tokens": sum(sum(s.response_mask) for s in made.segments)}


def attempts_of(protocol: Protocol, model: Path, checkpoint: str, store: AttemptStore, **how: Any) -> MeasuredAttempts:
    """All attempts of a protocol at the checkpoint in the folder `model`. Raises `ConfigError`."""
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(f"{model} is no folder of a transformers model (no config.json)")
    if protocol.environment is None:
        concurrency, environment, fields = CONCURRENCY, "", {}
    else:
        environment, fields = protocol.part("environment")
        concurrency, fields = EPISODES, {**_changed(protocol.rules), **fields}
    sampling = _EngineSampling(
        str(model),
        temperature=protocol.temperature,
        max_tokens=protocol.max_tokens,
        seed=protocol.seed,
        concurrency=concurrency,
        tool_format=protocol.tool_format or "",
        request=json.dumps({"chat_template_kwargs": dict(protocol.template)}),
    )
    sampling.protocol = protocol
    name, reward_fields = protocol.part("reward")
    plan = MeasuredPlan(sampling, name, reward_fields, environment, fields)
    plan.protocol, plan.checkpoint = protocol, checkpoint
    return MeasuredAttempts(plan, store, protocol.attempts, **how)


class _EngineSampling(Sampling):
    protocol: Protocol

    def backend(self) -> Engine:
        return Engine(self, self.protocol)


def _changed(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Rules that are not at their default: a field of the environment may have the name of one that is."""
    from rufus_plugins.rollouts.rules import EpisodeRules

    return {name: value for name, value in rules.items() if value != getattr(EpisodeRules(), name)}
