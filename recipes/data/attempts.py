"""Attempts at tasks: answers or whole episodes, scored by any reward, kept on disk (attempt_store.py).

What fails on our side (server, environment, judge, deadline) is no attempt: it is tried again `retries` times, counted,
and never a score. If nothing but faults comes back, for a while or in all, the run stops; what was made is kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError, RufusError
from rufus_plugins.recipes.data.attempt_store import AttemptStore, key_of
from rufus_plugins.recipes.data.backends import Backend, Sampling
from rufus_plugins.types import CallStatus, Fault, Message, Task, Termination, ToolCall, Trajectory

DOWN_AFTER = 32
"""Faults in a row, without one attempt between them, after which the run stops. Ours."""
CONTEXT = 1 << 20
"""Tokens of an episode's context that the driver allows; the server has its own limit. Ours."""


@dataclass
class Plan:
    """What an attempt is: everything that decides it."""

    sampling: Sampling
    reward: str
    reward_fields: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    """Name of the environment of an episode; "" for one answer to the prompt."""
    environment_fields: Mapping[str, Any] = field(default_factory=dict)
    """The environment's own fields and the rules of its episodes (rollouts/rules.py)."""
    system: str = ""
    """System message in front of each prompt."""
    score_deadline_s: float = 600.0

    def prompt_of(self, task: Task) -> list[Message]:
        own = list(task.prompt)
        return [{"role": "system", "content": self.system}, *own] if self.system else own

    def keys(self, task: Task, number: int) -> tuple[str, str]:
        """Of the answer and of its score."""
        scored = {"name": self.reward, "fields": self.reward_fields, "ground_truth": task.ground_truth}
        scored |= {"data_source": task.data_source, "extra": _lasting(task.extra)}
        answer = {"prompt": self.prompt_of(task), "sampling": self.sampling.identity(), "number": number}
        if self.environment:
            # what an episode leaves behind (files, databases) is gone when it is over, so its score belongs to it
            answer |= {"environment": self.environment, "fields": self.environment_fields, "scored": scored}
        made = key_of(**answer)
        return made, key_of(answer=made, **scored)

    def seed(self, task: Task, number: int) -> int:
        return int(key_of(seed=self.sampling.seed, prompt=self.prompt_of(task), number=number)[:12], 16)


def _lasting(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Without the rates of other labels, which decide nothing."""
    return {key: value for key, value in extra.items() if key != "solve_rate"}


def stored(trajectory: Trajectory) -> dict[str, Any]:
    """What is kept of a trajectory: all but its ids and artifacts."""
    return {
        "messages": [dict(m) for m in trajectory.messages],
        "termination": trajectory.termination.value,
        "turns": trajectory.turns,
        "tool_calls": [
            {"name": c.name, "arguments": c.arguments, "status": c.status.value, "turn": c.turn, "started": c.started}
            for c in trajectory.tool_calls
        ],
    }


def restored(task: Task, body: Mapping[str, Any]) -> Trajectory:
    calls = [
        ToolCall(c["name"], c["arguments"], CallStatus(c["status"]), c["turn"], c["started"])
        for c in body["tool_calls"]
    ]
    ending = Termination(body["termination"])
    return Trajectory(task, messages=body["messages"], tool_calls=calls, termination=ending, turns=body["turns"])


class Attempts:
    """Makes what is missing of `count` attempts at each task."""

    def __init__(
        self,
        plan: Plan,
        store: AttemptStore,
        count: int,
        retries: int = 3,
        on_change: Callable[[Attempts], None] | None = None,
    ):
        from rufus_plugins.plugins import registry

        self.plan, self.store, self.count, self.retries = plan, store, count, retries
        self.on_change = on_change or (lambda attempts: None)
        self.reward = registry().build("reward", plan.reward, dict(plan.reward_fields))
        self._rules: Any = None
        if plan.environment:
            self._episode_parts()
        self.backend: Backend = plan.sampling.backend()
        self.tasks = self.made = self.kept = 0
        """Tasks done; attempts made in this run; attempts that were on disk before."""
        self.faults: Counter[str] = Counter()
        self.unscorable = 0
        self.rates: Counter[int] = Counter()
        """Tasks by the tenth of their mean score."""
        self.score = 0.0
        self._in_a_row = 0
        self._last: InfrastructureError | None = None
        self._flying: dict[str, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(plan.sampling.concurrency)

    def _episode_parts(self) -> None:
        from rufus_plugins.plugins import registry
        from rufus_plugins.rollouts.rules import NAMES, episode_rules

        own = registry().get("environment", self.plan.environment).config_fields
        fields = dict(self.plan.environment_fields)
        unknown = [name for name in fields if name not in own and name not in NAMES]
        if unknown:
            raise ConfigError(
                f"environment {self.plan.environment} has no field {unknown[0]!r}. It has {', '.join(own)}; and the "
                f"rules {', '.join(NAMES)}"
            )
        self._rules = episode_rules(fields, own)
        self._fields = {name: value for name, value in fields.items() if name in own}
        registry().build("environment", self.plan.environment, self._fields)  # says now what is wrong with it

    async def run(self, tasks: Iterable[Task]) -> None:
        """All tasks, a bounded number at a time."""
        flying: set[asyncio.Task[None]] = set()
        most = 2 * max(1, self.plan.sampling.concurrency // self.count) + 1
        try:
            for task in tasks:
                flying.add(asyncio.ensure_future(self._one(task)))
                await asyncio.sleep(0)
                while len(flying) >= most:
                    done, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
                    _raise_first(done)
            while flying:
                done, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
                _raise_first(done)
            if self.faults and not self.made + self.kept:
                raise self._down()  # fewer than DOWN_AFTER, and nothing but faults
        finally:
            for one in flying:
                one.cancel()
            await asyncio.gather(*flying, return_exceptions=True)
            await self.backend.aclose()

    async def _one(self, task: Task) -> None:
        from rufus_plugins.rewards.children import all_or_none

        await all_or_none(self._attempt(task, number) for number in range(self.count))
        scores = [s["value"] for s in self.scores(task) if s and "value" in s]
        self.tasks += 1
        if scores:
            mean = sum(scores) / len(scores)
            self.rates[min(max(int(mean * 10), 0), 10)] += 1
            self.score += mean
        self.on_change(self)

    def scores(self, task: Task) -> list[dict[str, Any] | None]:
        return [self.store.get("scores", self.plan.keys(task, n)[1]) for n in range(self.count)]

    async def _attempt(self, task: Task, number: int) -> None:
        _, key = self.plan.keys(task, number)
        if self.store.get("scores", key) is not None:
            self.kept += 1
            return
        if key in self._flying:  # the same task twice in the input
            await asyncio.shield(self._flying[key])
            return
        self._flying[key] = asyncio.get_running_loop().create_future()
        try:
            async with self._slots:
                for again in range(self.retries + 1):
                    try:
                        await self._make(task, number)
                    except InfrastructureError as error:
                        self._fault(error)
                        if again < self.retries:
                            await asyncio.sleep(min(0.2 * 2**again, 30))
                    else:
                        self.made += 1
                        self._in_a_row = 0
                        break
            self.on_change(self)
        finally:
            self._flying.pop(key).set_result(None)

    def _fault(self, error: InfrastructureError) -> None:
        self.faults[error.termination.value] += 1
        self._in_a_row += 1
        self._last = error
        if self._in_a_row >= max(DOWN_AFTER, 2 * self.plan.sampling.concurrency):
            raise self._down()

    def _down(self) -> RufusError:
        return RufusError(
            f"{self._in_a_row} attempts in a row failed on our side; the last: {self._last}. What was made is kept in "
            f"{self.store.path}: mend it and run the same command again."
        )

    async def _make(self, task: Task, number: int) -> None:
        """One attempt: its answer, unless it is there, and its score. Raises `InfrastructureError`."""
        from rufus_plugins.rewards.offline import score_trajectory

        answer_key, score_key = self.plan.keys(task, number)
        known = self.store.get("answers", answer_key)
        try:
            if known is not None and not self.plan.environment:
                trajectory = self._restored(task, known)
            else:
                trajectory, known = await (self._episode if self.plan.environment else self._answer)(task, number)
                if not self.plan.environment:
                    await self.store.put(("answers", answer_key, known))
        except DataError as error:
            self.unscorable += 1
            await self.store.put(("scores", score_key, {"data": str(error)}))
            return
        made = await score_trajectory(self.reward, trajectory, task.id, self.plan.score_deadline_s)
        if made.score is not None:
            score = {"value": made.score.value, "termination": trajectory.termination.value}
            # together: an episode that is made anew after a kill must not get the score of another
            episode = [("answers", answer_key, known)] if self.plan.environment else []
            await self.store.put(*episode, ("scores", score_key, score))
        elif made.reason == "data":
            self.unscorable += 1
            await self.store.put(("scores", score_key, {"data": made.message}))
        else:
            ending = Termination.REWARD_FAILED
            if made.reason in {t.value for t in Termination if t.fault is Fault.INFRASTRUCTURE}:
                ending = Termination(made.reason)
            raise InfrastructureError(f"{self.plan.reward} gave no score: {made.message}", ending)

    def _restored(self, task: Task, body: Mapping[str, Any]) -> Trajectory:
        return restored(task, body)

    async def _answer(self, task: Task, number: int) -> tuple[Trajectory, dict[str, Any]]:
        sampling = self.plan.sampling
        seed = self.plan.seed(task, number)
        reply = await self.backend.reply(self.plan.prompt_of(task), (), seed, sampling.max_tokens)
        message: dict[str, Any] = {"role": "assistant", "content": reply.turn.content}
        if reply.turn.thinking:
            message["reasoning_content"] = reply.turn.thinking
        if reply.cut_off:
            ending = Termination.RESPONSE_LENGTH
        else:
            ending = Termination.ANSWERED if reply.turn.content else Termination.STOPPED
        made = Trajectory(task, messages=[message], termination=ending)
        return made, stored(made)

    async def _episode(self, task: Task, number: int) -> tuple[Trajectory, dict[str, Any]]:
        from rufus_plugins.plugins import registry
        from rufus_plugins.recipes.data.chat_episode import Dialogue
        from rufus_plugins.rollouts.episode import Episode, Limits

        task = dataclasses.replace(task, prompt=self.plan.prompt_of(task))
        environment = registry().build("environment", self.plan.environment, dict(self._fields))
        dialogue = Dialogue(self.backend, self.plan.seed(task, number), self.plan.sampling.max_tokens)
        rollout = await Episode(task, environment, dialogue, dialogue, self._rules, Limits(CONTEXT, CONTEXT)).run()
        made = rollout.trajectory
        if made.termination.fault is Fault.INFRASTRUCTURE:
            if rollout.problem.startswith("DataError: "):
                raise DataError(rollout.problem.partition("\n")[0])
            raise InfrastructureError(rollout.problem or made.termination.value, made.termination)
        kept = stored(made) | {"opening": dialogue.opened, "tools": list(environment.tools)}
        return dataclasses.replace(made, segments=()), kept


def _raise_first(done: Iterable[asyncio.Future[None]]) -> None:
    """One error of all; asyncio prints a traceback of each that nobody asks for."""
    errors = [one.exception() for one in done]
    for error in filter(None, errors):
        raise error


def values(scores: Sequence[Mapping[str, Any] | None]) -> list[float]:
    return [s["value"] for s in scores if s is not None and "value" in s]
