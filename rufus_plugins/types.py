"""The data that parts exchange. Frozen dataclasses without behaviour; they know no domain and no host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Message = Mapping[str, Any]
"""One chat message in the OpenAI shape: `role`, `content`, optionally `tool_calls`, `tool_call_id`, `name`."""


class Fault(StrEnum):
    """Whose doing an ending was."""

    POLICY = "policy"
    """The model ended it, well or badly. Scored and trained on."""
    BUDGET = "budget"
    """A limit of the recipe ended it. Scored; `rufus.mask_terminations` says which are left out of the loss."""
    INFRASTRUCTURE = "infrastructure"
    """Our side failed. Never scored 0, never trained on, never part of a group's mean."""


class Termination(StrEnum):
    """How a rollout ended: one value for every way, with `.fault`."""

    ANSWERED = "answered"
    """The model gave its final answer."""
    STOPPED = "stopped"
    """The model or the environment ended the episode without a final answer."""
    MALFORMED = "malformed"
    """Too many malformed tool calls."""
    MAX_TURNS = "max_turns"
    TOOL_BUDGET = "tool_budget"
    RESPONSE_LENGTH = "response_length"
    """The response hit its length cap (truncated)."""
    CONTEXT_LENGTH = "context_length"
    """The context window is full and was not compacted."""
    EPISODE_TIMEOUT = "episode_timeout"
    """The episode's own wall-clock budget, part of the task, ran out."""
    ENVIRONMENT_LOST = "environment_lost"
    SANDBOX_LOST = "sandbox_lost"
    JUDGE_FAILED = "judge_failed"
    REWARD_FAILED = "reward_failed"
    """The scorer itself failed (not the answer)."""
    ENGINE_FAILED = "engine_failed"
    """The inference engine failed or went away."""
    TOKENS_DIVERGED = "tokens_diverged"
    """The token audit found that a prompt does not extend the segment's ids."""
    TIMEOUT_INFRA = "timeout_infra"
    """Something of ours did not answer before its deadline."""
    CANCELLED = "cancelled"

    @property
    def fault(self) -> Fault:
        return _FAULTS.get(self, Fault.INFRASTRUCTURE)


_FAULTS = {
    Termination.ANSWERED: Fault.POLICY,
    Termination.STOPPED: Fault.POLICY,
    Termination.MALFORMED: Fault.POLICY,
    Termination.MAX_TURNS: Fault.BUDGET,
    Termination.TOOL_BUDGET: Fault.BUDGET,
    Termination.RESPONSE_LENGTH: Fault.BUDGET,
    Termination.CONTEXT_LENGTH: Fault.BUDGET,
    Termination.EPISODE_TIMEOUT: Fault.BUDGET,
}


@dataclass(frozen=True)
class Task:
    """What a rollout is asked to do."""

    id: str
    data_source: str
    """Where the record comes from; rewards may be routed by it."""
    prompt: Sequence[Message]
    ground_truth: Any = None
    """What the reward documents (a gold string, tests, rubrics ...)."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ContextSegment:
    """One context of a rollout. Compaction ends a segment and starts another.

    The arrays are append-only while the rollout runs; `n = len(prompt_ids) + len(response_ids)`.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    """Sampled tokens and the tool or user tokens between them."""
    response_mask: Sequence[int]
    """1 where the policy sampled the token, else 0; same length as `response_ids`."""
    response_logprobs: Sequence[float] | None = None
    """Log-probability under the sampled distribution, 0.0 where the mask is 0."""
    routed_experts: np.ndarray | None = None
    """Expert ids, uint8 (uint16 above 256 experts), shape `[n - 1, moe_layers, top_k]`."""


class CallStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    MALFORMED = "malformed"


@dataclass(frozen=True)
class ToolCall:
    """One call the model made. Rewards count from these, never from text."""

    name: str
    arguments: Mapping[str, Any] | str
    """Parsed arguments; the raw text when `status` is malformed."""
    status: CallStatus
    turn: int
    started: bool
    """Whether the call may have had an effect (False only if it provably never started)."""


@dataclass(frozen=True)
class Trajectory:
    """One finished rollout: what a reward sees."""

    task: Task
    segments: Sequence[ContextSegment] = ()
    messages: Sequence[Message] = ()
    """The conversation without the task's prompt, in order."""
    tool_calls: Sequence[ToolCall] = ()
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    """What `Environment.finish()` kept: database paths, verifier files, evidence texts."""
    termination: Termination = Termination.ANSWERED
    turns: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def response(self) -> str:
        """Text of the last assistant message, "" if there is none."""
        for message in reversed(self.messages):
            if message.get("role") == "assistant":
                content = message.get("content")
                if isinstance(content, str):
                    return content
                if isinstance(content, Sequence):
                    return "".join(
                        part.get("text") or ""
                        for part in content
                        if isinstance(part, Mapping) and part.get("type", "text") == "text"
                    )
                return ""
        return ""


@dataclass(frozen=True)
class Score:
    """The raw reward of one trajectory. Length penalties apply later (algos/length_penalty.py)."""

    value: float
    metrics: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    explanation: str = ""


@dataclass(frozen=True)
class StepResult:
    """What an environment answers to one assistant message."""

    messages: Sequence[Message] = ()
    done: bool = False
    termination: Termination | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecResult:
    """What a sandbox answers to one command."""

    exit_code: int | None
    """None when the command did not end by itself (deadline, lost sandbox)."""
    stdout: str
    stderr: str
    started: bool
    """False only if the command provably never started."""
    duration_s: float


@dataclass(frozen=True)
class Stage:
    """One stage of a recipe chain."""

    name: str
    config: str
    """Hydra config name, for example `coding_rl/train`."""
    prepare: Callable[..., Any] | None = None
    """Builds the stage's data: `prepare(input, output_dir, **options)`."""
    reads: str | None = None
    """Name of the stage whose checkpoint this one starts from; None = the base model."""
    metric: str = "reward"
    """The held-out metric by which the stage is judged."""
    tiny: Callable[..., Mapping[str, Any]] | None = None
    """Writes small generated data for `scale=tiny`: `tiny(output_dir, seed)` returns the report that it also writes as
    `family.json` (recipes/tiny/families). Idempotent and deterministic. None: the stage has no data of its own."""
