"""What each kind of part looks like. Structural: no part needs to inherit from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from .types import ExecResult, Message, Score, StepResult, Task, Trajectory


@runtime_checkable
class Reward(Protocol):
    """Scores one finished rollout.

    A bad answer gets its score. A scorer that cannot score raises `InfrastructureError`; a record
    that cannot be scored (no tests, wrong shape of `ground_truth`) raises `DataError`.
    """

    async def __call__(self, trajectory: Trajectory) -> Score: ...


@runtime_checkable
class Environment(Protocol):
    """One instance, one episode."""

    tools: Sequence[Mapping[str, Any]]
    """JSON schemas in the OpenAI function format; read after `start`."""

    async def start(self, task: Task) -> Sequence[Message]:
        """Returns the messages that open the episode (normally the task's prompt)."""
        ...

    async def step(self, message: Message) -> StepResult:
        """Answers one assistant message.

        Its `tool_calls` (OpenAI shape, `arguments` a mapping) can all be read: malformed calls are answered before
        they get here. Each is answered by a tool message with its `tool_call_id`, `name` and `content`, and
        optionally `status` (ok | error) and `started`, which go to the rollout's record and not to the model.
        Without `done` or messages the episode ends with the model's answer. `InfrastructureError` ends it typed;
        anything else that is raised ends it `environment_lost`.
        """
        ...

    async def finish(self) -> Mapping[str, Any]:
        """Collects what the reward needs; called once, before `close`."""
        ...

    async def close(self) -> None:
        """Frees everything. Called exactly once, also after a failed `start`."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    async def exec(self, command: str, timeout_s: float) -> ExecResult: ...
    async def read_file(self, path: str) -> bytes: ...
    async def write_file(self, path: str, content: bytes) -> None: ...
    async def close(self) -> None: ...


@runtime_checkable
class ForkableSandbox(Sandbox, Protocol):
    """A sandbox whose backend can copy itself."""

    async def snapshot(self) -> str: ...
    async def fork(self, count: int = 1) -> Sequence[Sandbox]: ...


@runtime_checkable
class Judge(Protocol):
    """Scores a candidate by a model. Raises `InfrastructureError` when there is no verdict."""

    async def __call__(self, question: str, candidate: str, reference: str | None = None) -> Score: ...


@runtime_checkable
class DataFilter(Protocol):
    def __call__(self, task: Task) -> tuple[bool, str]:
        """Returns `(keep, reason)`; the reason becomes a metric."""
        ...


class AdvantageEstimator(Protocol):
    """verl's estimator signature; `rollout_id`, `fault`, `outside` and `row_reward` are handed over to those that name
    them (hosts/verl/advantages.py).

    Tensors are `[batch, response_length]`; `index` and these four are numpy arrays `[batch]`.
    Returns `(advantages, returns)`.
    """

    def __call__(
        self, token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class PolicyLoss(Protocol):
    """verl's loss signature, unchanged."""

    def __call__(
        self,
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, Any]]: ...
