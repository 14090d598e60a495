"""Environments of PrimeIntellect's `verifiers` (0.4): any installed taskset, its tools, its hooks and its rewards.

    environment=verifiers reward=verifiers rufus.environment.taskset=my-taskset

A taskset's task brings the prompt, `Toolset`s (the model's tools), `setup` and `finalize` hooks, `@stop` predicates and
`@reward` / `@metric` functions. Here the policy is the agent: there is no harness and no model server between, so every
token stays ours. The record names its task by `extra["idx"]` (or `extra["key"]`); `rufus prepare verifiers` writes
such records. Tools and hooks run in the rollout worker, with `runtime` (subprocess: this machine) for commands: only
tasksets that you trust.

What needs more than a task and a policy is refused: an `Env` of its own (several agents), a prompt that a user opens,
`@intercept` hooks, an image without a container runtime.

`verifiers` pins another version of `mcp` than the extra `gym`: install `rufus-plugins[verifiers]` without it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rollouts.tools import Toolbox
from rufus_plugins.rollouts.validation import for_task, for_validation
from rufus_plugins.types import Message, StepResult, Task, Termination


@dataclass
class Verifiers:
    """A task of an installed `verifiers` taskset, with its tools and hooks."""

    taskset: str
    """Its id: the name of the installed package."""
    taskset_config: dict[str, Any] = field(default_factory=dict)
    """Fields of the taskset's config; `task` holds those of its tasks."""
    runtime: dict[str, Any] = field(default_factory=lambda: {"type": "subprocess"})
    """Where its hooks run commands: `type` subprocess, docker, ... with the fields that verifiers gives them."""
    call_timeout_s: float = 120.0
    """Deadline of one call. Ours."""
    max_result_chars: int = 20_000
    """Of one result; the middle is left out. Ours."""
    validation: dict[str, Any] = field(default_factory=dict)
    """Fields that differ in validation."""

    def __post_init__(self) -> None:
        _installed()
        self._tasks = taskset(self.taskset, json.dumps(self.taskset_config, sort_keys=True))
        if self.validation:
            for_validation(self)  # a wrong field is told now
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._episode: Any = None

    async def start(self, task: Task) -> Sequence[Message]:
        """Raises `DataError` for a record that names no task of this taskset, or one that cannot be played here."""
        from rufus_plugins.rollouts.environments.verifiers_episode import VerifiersEpisode

        chosen = for_task(self, task)
        found = await asyncio.to_thread(chosen._tasks.task, task.extra)
        self._episode = VerifiersEpisode(found, chosen._tasks.shared_toolsets(), chosen.runtime)
        await self._episode.open()
        self._box = Toolbox(self._episode.tools, chosen.call_timeout_s, chosen.max_result_chars)
        self.tools = self._box.schemas
        self._episode.told(opening_of(found.data), sampled=False)
        return opening_of(found.data)

    async def step(self, message: Message) -> StepResult:
        self._episode.told([message], sampled=True)
        replies = await self._box.answer(message)
        self._episode.told(replies, sampled=False)
        if not replies:
            return StepResult(done=True)
        if await self._episode.stopped():
            return StepResult(replies, done=True, termination=Termination.STOPPED)
        return StepResult(replies)

    async def finish(self) -> Mapping[str, Any]:
        """`verifiers`: {reward, rewards, metrics}, by the task's own functions."""
        return {"verifiers": await self._episode.score()}

    async def close(self) -> None:
        if self._episode is not None:
            await self._episode.close()


class Tasks:
    """A loaded taskset. Tasks are read as far as they are needed and kept."""

    def __init__(self, name: str, config: Mapping[str, Any]):
        import verifiers.v1 as vf

        self.name = name
        try:
            kind = vf.taskset_config_type(name)
            self.taskset = vf.load_taskset(kind.model_validate({**config, "id": name}))
            environment = vf.environment_class(name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"the verifiers taskset {name!r} does not load: {error}") from error
        if environment is not vf.SingleAgentEnv:
            raise ConfigError(
                f"verifiers taskset {name!r} has an environment of its own ({environment.__name__}), which drives "
                "agents or turns itself; only single-agent tasksets can be played here"
            )
        self._iterator = iter(self.taskset)
        self._read: list[Any] = []
        self._by_key: dict[str, Any] = {}

    def task(self, extra: Mapping[str, Any]) -> Any:
        """The task that a record names. Raises `DataError`."""
        key, idx = extra.get("key"), extra.get("idx")
        if key is None and idx is None:
            raise DataError(f"the record names no task of {self.name!r}: extra_info has neither `idx` nor `key`")
        try:
            if key is not None:
                while str(key) not in self._by_key:
                    self._next()
                return self._by_key[str(key)]
            while int(idx) >= len(self._read):
                self._next()
            return self._read[int(idx)]
        except (StopIteration, ValueError, TypeError):
            raise DataError(
                f"verifiers taskset {self.name!r} has no task {key if key is not None else idx!r}"
            ) from None

    def first(self, count: int | None) -> list[Any]:
        """The first tasks, all of them for None. Raises `ConfigError` for all of an endless taskset."""
        if count is None and not self.taskset.bounded:
            raise ConfigError(f"verifiers taskset {self.name!r} is endless: say how many tasks are wanted")
        for _ in itertools.count() if count is None else range(count - len(self._read)):
            try:
                self._next()
            except StopIteration:
                break
        return self._read[:count]

    def shared_toolsets(self) -> list[Any]:
        return list(type(self.taskset).toolsets(self.taskset.config))

    def _next(self) -> None:
        task = next(self._iterator)
        self._read.append(task)
        self._by_key[task.key] = task


@functools.lru_cache(maxsize=8)
def taskset(name: str, config: str) -> Tasks:
    """One per process and config."""
    return Tasks(name, json.loads(config))


def opening_of(data: Any) -> list[dict[str, Any]]:
    """System prompt and prompt of a task's data as messages."""
    opening = [{"role": "system", "content": data.system_prompt}] if data.system_prompt is not None else []
    if isinstance(data.prompt, str):
        return [*opening, {"role": "user", "content": data.prompt}]
    return [*opening, *(message.model_dump(exclude_none=True) for message in data.prompt or ())]


def _installed() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("verifiers")
    except PackageNotFoundError:
        raise ConfigError("environment=verifiers needs verifiers: pip install 'rufus-plugins[verifiers]'") from None
    if found.split(".")[:2] != ["0", "4"]:
        raise ConfigError(f"verifiers {found} is installed; this adapter knows 0.4: pip install 'verifiers==0.4.*'")


async def guarded(work: Any, what: str) -> Any:
    """What a hook of the taskset raises is our side's failure, not the model's."""
    try:
        return await work
    except (InfrastructureError, ConfigError, DataError):
        raise
    except Exception as error:
        raise InfrastructureError(f"{what}: {type(error).__name__}: {error}", Termination.ENVIRONMENT_LOST) from error
