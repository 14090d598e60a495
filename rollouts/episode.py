"""Drives one episode: the model's turns, the environment's answers, segments, compaction, and one typed ending.

Knows no host: `Policy` samples, `Chat` turns messages into ids (rollouts/turns.py). `Episode.run` always gives a
`Rollout`, whatever the model writes and whatever of ours fails; only a wrong set-up (`ConfigError`, `PluginError`) and
a cancelled task raise. The environment is closed in every case.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rufus_plugins.errors import ConfigError, InfrastructureError, PluginError
from rufus_plugins.protocols import Environment
from rufus_plugins.rollouts.compaction import Compaction, carried, compaction, rule_summary, server_summary
from rufus_plugins.rollouts.rules import EpisodeRules
from rufus_plugins.rollouts.segment import SegmentBuffer, TokenAudit
from rufus_plugins.rollouts.tool_calls import ParsedCall, ParsedTurn
from rufus_plugins.rollouts.tools import tool_message
from rufus_plugins.rollouts.turns import TAIL, Chat, Policy, Sampled
from rufus_plugins.types import (
    CallStatus,
    ContextSegment,
    Fault,
    Message,
    StepResult,
    Task,
    Termination,
    ToolCall,
    Trajectory,
)

T = TypeVar("T")

RETRIED = frozenset(
    {
        Termination.ENVIRONMENT_LOST,
        Termination.SANDBOX_LOST,
        Termination.ENGINE_FAILED,
        Termination.TIMEOUT_INFRA,
    }
)
"""Faults after which a new rollout may do better. Diverged tokens are a defect, a cancelled rollout is not wanted."""

LEAST_SUMMARY = 16
"""Tokens of room below which the policy is not asked for a summary. Ours."""


@dataclass(frozen=True)
class Limits:
    """Room of one segment, in tokens."""

    context: int
    """Prompt and response."""
    response: int
    """What follows the prompt, context tokens included."""


@dataclass(frozen=True)
class Rollout:
    trajectory: Trajectory
    versions: Sequence[tuple[int, int] | None] = ()
    """Per segment: weights of its first and last sampled token."""
    problem: str = ""
    """What failed, where the ending is a fault of our side."""


async def within(seconds: float | None, what: str, work: Awaitable[T]) -> T:
    """`work`, or `InfrastructureError(TIMEOUT_INFRA)`. A TimeoutError of its own passes through."""
    try:
        async with asyncio.timeout(seconds) as clock:
            return await work
    except TimeoutError:
        if not clock.expired():
            raise
        raise InfrastructureError(f"{what} took more than {seconds:g} s", Termination.TIMEOUT_INFRA) from None


@dataclass
class Episode:
    task: Task
    environment: Environment
    policy: Policy
    chat: Chat
    rules: EpisodeRules
    limits: Limits
    metrics: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._compaction: Compaction | None = compaction(self.rules.compaction)
        self._opening: list[Message] = []
        self._tools: list[Mapping[str, Any]] = []
        self._messages: list[Message] = []
        self._calls: list[ToolCall] = []
        self._turns = 0
        self._buffer: SegmentBuffer | None = None
        self._audit: TokenAudit | None = None
        self._segments: list[ContextSegment] = []
        self._versions: list[tuple[int, int] | None] = []
        self._artifacts: Mapping[str, Any] = {}
        self._problem = ""

    async def run(self) -> Rollout:
        try:
            ending = await self._guarded(self._admitted())
            if ending is None:
                ending = await self._guarded(self._play(), self.rules.episode_timeout_s)
            if ending.fault is not Fault.INFRASTRUCTURE:
                ending = await self._guarded(self._close_segment(ending))
            if ending.fault is not Fault.INFRASTRUCTURE:
                ending = await self._guarded(self._finish(ending))
        finally:
            await self._close_environment()
        return self._rollout(ending)

    # ---- endings ---------------------------------------------------------------------------------------------------

    async def _admitted(self) -> None:
        """Room in a host (rollouts/pool.py): waiting for it is no part of the episode, so no deadline of its runs."""
        if hasattr(self.environment, "admitted"):
            await self.environment.admitted()

    async def _guarded(self, work: Awaitable[T], budget_s: float | None = None) -> T | Termination:
        """The ending of `work`; what it raises becomes one."""
        try:
            async with asyncio.timeout(budget_s) as clock:
                return await work
        except (ConfigError, PluginError):
            raise
        except InfrastructureError as error:
            self._problem = str(error)
            return error.termination
        except TimeoutError as error:
            if clock.expired():
                return Termination.EPISODE_TIMEOUT
            self._problem = f"{type(self.environment).__name__} raised {error!r}"
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        return Termination.ENVIRONMENT_LOST

    async def _finish(self, ending: Termination) -> Termination:
        self._artifacts = await within(
            self.rules.finish_timeout_s, "the environment's finish()", self.environment.finish()
        )
        return ending

    async def _close_environment(self) -> None:
        """A failing close changes no ending: the rollout is over. It is counted and said."""
        try:
            await within(self.rules.close_timeout_s, "the environment's close()", self.environment.close())
        except Exception as error:
            self.metrics["close_failed"] += 1
            print(f"rufus: task {self.task.id!r}: the environment did not close: {error}", file=sys.stderr, flush=True)

    def _rollout(self, ending: Termination) -> Rollout:
        if self._buffer is not None:  # a fault: what there is, for the record; it is never trained on
            self._segments.append(self._buffer.close())
            self._versions.append(self._buffer.versions)
        calls = Counter(call.status for call in self._calls)
        tokens = sum(len(s.response_ids) for s in self._segments)
        sampled = sum(sum(s.response_mask) for s in self._segments)
        metrics = {
            "turns": self._turns,
            "segments": len(self._segments),
            "tool_calls": len(self._calls),
            "tool_calls_error": calls[CallStatus.ERROR],
            "tool_calls_malformed": calls[CallStatus.MALFORMED],
            "tokens_sampled": sampled,
            "tokens_context": tokens - sampled,
            "compactions": max(len(self._segments) - 1, 0),
            "tokens_diverged": int(ending is Termination.TOKENS_DIVERGED),
            **self.metrics,
        }
        return Rollout(
            Trajectory(
                task=self.task,
                segments=tuple(self._segments),
                messages=tuple(self._messages),
                tool_calls=tuple(self._calls),
                artifacts=self._artifacts,
                termination=ending,
                turns=self._turns,
                metrics={name: float(value) for name, value in metrics.items()},
            ),
            tuple(self._versions),
            self._problem,
        )

    # ---- the episode -----------------------------------------------------------------------------------------------

    async def _play(self) -> Termination:
        opening = await within(
            self.rules.start_timeout_s, "the environment's start()", self.environment.start(self.task)
        )
        self._opening = [dict(message) for message in opening]
        self._tools = list(self.environment.tools)
        if not await self._open_segment(self._opening):
            return Termination.CONTEXT_LENGTH
        while True:
            if self._room() < 1:
                return self._full()
            sampled = await self._generate(self.rules.max_turn_tokens)
            turn = await self.chat.read(sampled.ids, self._tools)
            calls = [] if sampled.finish == "length" else list(turn.calls)
            message = self._said(turn, calls)
            self._messages.append(message)
            self._turns += 1
            if sampled.finish == "length":
                return self._full() if self._room() < 1 else Termination.RESPONSE_LENGTH
            answers, ending = await self._answers(message, calls)
            self._messages += answers
            if ending is not None:
                return ending
            if self.rules.max_turns is not None and self._turns >= self.rules.max_turns:
                return Termination.MAX_TURNS
            ending = await self._append(message, answers)
            if ending is not None:
                return ending

    def _said(self, turn: ParsedTurn, calls: Sequence[ParsedCall]) -> dict[str, Any]:
        """The turn as an assistant message of the log; call `i` of turn `t` has the id `call_{t}_{i}`."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{self._turns}_{i}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for i, call in enumerate(calls)
            ]
        return message

    async def _answers(
        self, message: dict[str, Any], calls: Sequence[ParsedCall]
    ) -> tuple[list[Message], Termination | None]:
        """What follows the turn, and the ending if it was the last one.

        The environment gets the calls that can be read and that the budget covers; the others are answered here.
        """
        turn, before = self._turns - 1, sum(c.status is not CallStatus.MALFORMED for c in self._calls)
        budget = self.rules.max_tool_calls
        answered: dict[int, dict[str, Any]] = {}
        good: dict[str, int] = {}
        for i, call in enumerate(calls):
            call_id = f"call_{turn}_{i}"
            if call.status is CallStatus.MALFORMED:
                text = f"Error: this call could not be read: {call.problem}. Write it again as the tools' format asks."
                answered[i] = tool_message(call_id, call.name, text, CallStatus.MALFORMED, False)
            elif budget is not None and before + len(good) >= budget:
                text = f"Error: the budget of {budget} tool calls is spent. Give your final answer."
                answered[i] = tool_message(call_id, call.name, text, CallStatus.ERROR, False)
            else:
                good[call_id] = i
        result = StepResult()
        if good or not calls:
            seen = dict(message)
            if calls:
                seen["tool_calls"] = [c for c in message["tool_calls"] if c["id"] in good]
            start = time.monotonic()
            result = await within(self.rules.step_timeout_s, "the environment's step()", self.environment.step(seen))
            self.metrics["environment_s"] += time.monotonic() - start
            for name, value in result.metrics.items():
                self.metrics[name] += value
        others: list[Message] = []
        for reply in result.messages:
            where = good.get(reply.get("tool_call_id", ""))
            if reply.get("role") == "tool" and where is not None and where not in answered:
                answered[where] = dict(reply)
            else:
                others.append(reply)
        for call_id, i in good.items():
            answered.setdefault(i, tool_message(call_id, calls[i].name, ""))
        replies = [answered[i] for i in sorted(answered)]
        for call, reply in zip(calls, replies, strict=True):
            status, started = CallStatus(reply.get("status", CallStatus.OK)), bool(reply.get("started", True))
            self._calls.append(call.as_tool_call(turn, status, started))
        ending = self._ending(result, message, calls)
        if ending is None and sum(c.status is CallStatus.MALFORMED for c in self._calls) > self.rules.max_malformed:
            ending = Termination.MALFORMED
        if ending is None and calls and not good and budget is not None and before >= budget:
            if any(c.status is CallStatus.OK for c in calls):
                ending = Termination.TOOL_BUDGET
        return [*replies, *others], ending

    @staticmethod
    def _ending(result: StepResult, message: Message, calls: Sequence[ParsedCall]) -> Termination | None:
        if result.termination is not None:
            return result.termination
        if result.done or not (calls or result.messages):
            return Termination.ANSWERED if not calls and message["content"].strip() else Termination.STOPPED
        return None

    # ---- tokens ----------------------------------------------------------------------------------------------------

    def _room(self, more: int = 0) -> int:
        """Tokens that still fit into the segment after `more` further ones."""
        buffer = self._buffer
        return min(self.limits.context - len(buffer), self.limits.response - buffer.response_length) - more

    def _full(self) -> Termination:
        """Which limit the segment met."""
        context = self.limits.context - len(self._buffer)
        return (
            Termination.CONTEXT_LENGTH
            if context < self.limits.response - self._buffer.response_length
            else Termination.RESPONSE_LENGTH
        )

    async def _open_segment(self, messages: Sequence[Message]) -> bool:
        """Starts a segment; False if its prompt leaves no room for a turn."""
        ids = await asyncio.to_thread(self.chat.opening, messages, self._tools)
        self._buffer, self._audit = SegmentBuffer(ids), TokenAudit(ids)
        return self._room() >= 1

    async def _close_segment(self, ending: Termination) -> Termination:
        """Audited: what is trained on is what the engine saw and gave. An episode that never opened one has none."""
        if self._buffer is not None:
            segment = self._buffer.close()
            self._audit.closes(segment)
            self._segments.append(segment)
            self._versions.append(self._buffer.versions)
            self._buffer = None
        return ending

    async def _generate(self, max_tokens: int | None) -> Sampled:
        room = self._room()
        allowed = room if max_tokens is None else min(room, max_tokens)
        prompt = self._buffer.ids()
        self._audit.asks(prompt)
        start = time.monotonic()
        try:
            sampled = await within(
                self.rules.generate_timeout_s, "a turn of the engine", self.policy.generate(prompt, allowed)
            )
        except (InfrastructureError, ConfigError):
            raise
        except Exception as error:
            raise InfrastructureError(f"{type(error).__name__}: {error}", Termination.ENGINE_FAILED) from error
        self.metrics["generate_s"] += time.monotonic() - start
        for name, value in sampled.metrics.items():
            self.metrics[name] += value
        if sampled.finish == "abort":
            raise InfrastructureError("the engine ended the turn before the model did", Termination.CANCELLED)
        if not sampled.ids:
            raise InfrastructureError("the engine gave no token", Termination.ENGINE_FAILED)
        self._audit.answers(sampled.ids, sampled.logprobs, sampled.routes)
        self._buffer.add_sampled(sampled.ids, sampled.logprobs, sampled.routes, sampled.versions)
        return sampled

    async def _following(self, message: Message, messages: Sequence[Message]) -> list[int]:
        called = [call["function"]["name"] for call in message.get("tool_calls") or ()]
        return await asyncio.to_thread(self.chat.following, self._buffer.tail(TAIL), called, messages, self._tools)

    async def _append(self, message: Message, answers: Sequence[Message]) -> Termination | None:
        """Puts the answers behind the turn; a context that they would fill is compacted, or ends the episode."""
        ids = await self._following(message, answers)
        rules = self._compaction
        if rules is not None:
            room = min(self.limits.context - self._buffer.prompt_length, self.limits.response)
            if self._buffer.response_length + len(ids) > rules.at * room:
                return await self._compact(message, answers)
        if self._room(len(ids)) < 1:
            context = self.limits.context - len(self._buffer) - len(ids)
            response = self.limits.response - self._buffer.response_length - len(ids)
            return Termination.CONTEXT_LENGTH if context < response else Termination.RESPONSE_LENGTH
        self._buffer.add_context(ids)
        return None

    async def _compact(self, message: Message, pending: Sequence[Message]) -> Termination | None:
        if len(self._segments) + 1 >= self.rules.max_segments:
            return self._full()
        rules = self._compaction
        summary = await self._summary(rules, message, pending)
        await self._close_segment(Termination.STOPPED)
        opening = carried(self._opening, summary, pending, rules.keep_chars)
        self._messages.append({"role": "user", "name": "compaction", "content": summary})
        self.metrics[f"compacted_by_{rules.by}"] += 1
        return None if await self._open_segment(opening) else Termination.CONTEXT_LENGTH

    async def _summary(self, rules: Compaction, message: Message, pending: Sequence[Message]) -> str:
        """The carry-over. The log without the unread results, which are carried over as they are."""
        log = self._messages[: len(self._messages) - len(pending)]
        if rules.by == "openai_compatible":
            return await server_summary(rules, self._opening, log)
        if rules.by == "policy":
            ask = await self._following(message, [{"role": "user", "content": rules.instruction}])
            if self._room(len(ask)) >= LEAST_SUMMARY:
                self._buffer.add_context(ask)
                sampled = await self._generate(rules.max_tokens)
                turn = await self.chat.read(sampled.ids, ())
                self.metrics["summary_tokens"] += len(sampled.ids)
                if turn.content.strip():
                    return turn.content.strip()
            self.metrics["summary_missing"] += 1
        return rule_summary(log, rules.keep_chars)
