"""An environment of tools alone: plain Python functions, and the tools that verl itself was configured with.

    environment=functions 'rufus.environment.functions=[my_package.tools:search]'

The episode is the record's prompt; it ends when the model answers without a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.rollouts.tools import FunctionTool, Tool, Toolbox, load
from rufus_plugins.types import Message, StepResult, Task


@dataclass
class Functions:
    """Python functions (package.module:function) and verl's own tools, called by the model."""

    functions: list[str] = field(default_factory=list)
    """`package.module:function`; they run in the rollout worker: only what you trust."""
    call_timeout_s: float = 60.0
    """Deadline of one call. Ours."""
    max_result_chars: int = 20_000
    """Of one result; the middle is left out. Ours."""

    def __post_init__(self) -> None:
        self._offered: list[Tool] = [FunctionTool(load(path)) for path in self.functions]
        self._box: Toolbox | None = None
        self.tools: Sequence[Mapping[str, Any]] = ()

    def offer(self, tools: Sequence[Tool]) -> None:
        """Further tools, from the host; before `start`."""
        self._offered += tools

    async def start(self, task: Task) -> Sequence[Message]:
        if not self._offered:
            raise ConfigError(
                "environment=functions has no tools: set rufus.environment.functions=[package.module:function] or "
                "verl's actor_rollout_ref.rollout.multi_turn.tool_config_path or function_tool_path"
            )
        self._box = Toolbox(self._offered, self.call_timeout_s, self.max_result_chars)
        self.tools = self._box.schemas
        await self._box.open(task)
        return task.prompt

    async def step(self, message: Message) -> StepResult:
        if not message.get("tool_calls"):
            return StepResult(done=True)
        return StepResult(await self._box.answer(message))

    async def finish(self) -> Mapping[str, Any]:
        return {}

    async def close(self) -> None:
        if self._box is not None:
            await self._box.close()
