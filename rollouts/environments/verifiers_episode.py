"""One episode of a `verifiers` task: the trace its hooks read, its tools in this process, its scores.

Written against verifiers 0.4.0 (v1/rollout.py `Rollout.open`, `close`; v1/mcp/server.py `ServerBase._with_state`).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.utils.decorators import discover_decorated, invoke

from rufus_plugins.errors import DataError, InfrastructureError
from rufus_plugins.rollouts.environments.verifiers import guarded
from rufus_plugins.rollouts.tools import ToolResult
from rufus_plugins.types import CallStatus, Message, Task, Termination


class VerifiersEpisode:
    def __init__(self, task: Any, shared: Sequence[Any], runtime: Mapping[str, Any]):
        self.task, self._shared = task, shared
        kind = type(task).__name__
        if task.data.prompt is None:
            raise DataError(f"{kind}: a user opens the conversation of this task, which cannot be played here")
        if discover_decorated(task, "intercept"):
            raise DataError(f"{kind} has @intercept hooks, which rewrite what the model says or reads: not played here")
        config = AgentConfig.model_validate({"runtime": dict(runtime)})
        if (task.NEEDS_CONTAINER or task.data.image) and config.runtime.type == "subprocess":
            raise DataError(f"{kind} needs a container: set rufus.environment.runtime={{type: docker}}")
        self.runtime = vf.runtimes.make_runtime(config.runtime)
        self.trace = Trace(
            task=TraceTask(type=kind, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=AgentInfo(config=config),
        )
        self.tools: list[ServedTool] = []
        self._stack = contextlib.AsyncExitStack()
        self._running = False

    async def open(self) -> None:
        """Starts the runtime, runs `setup`, brings up the tools."""
        where = f"task {self.trace.task.type}"
        self._running = True
        self.runtime.env = dict(self.task.runtime_env())
        await guarded(self.runtime.start(), "the runtime")
        self.trace.agent.runtime = self.runtime.info
        await guarded(self.runtime.prepare_setup(), "the runtime")
        await guarded(invoke(self.task.setup, {"trace": self.trace, "runtime": self.runtime}), f"{where}: setup")
        toolsets = [*type(self.task).toolsets(self.task.config), *self._shared]
        for at, toolset in enumerate(toolsets):
            await guarded(self._serve(toolset, own=at < len(toolsets) - len(self._shared)), type(toolset).__name__)
        self.trace.tools = [
            vf.Tool(
                name=tool.schema["function"]["name"],
                description=tool.schema["function"]["description"],
                parameters=tool.schema["function"]["parameters"],
            )
            for tool in self.tools
        ]

    async def _serve(self, toolset: Any, own: bool) -> None:
        from mcp.server.mcpserver import MCPServer

        trace = self.trace
        if toolset.config.url is not None:
            raise DataError(f"{type(toolset).__name__} is a server elsewhere ({toolset.config.url}): not played here")

        async def pull() -> Any:
            return trace.state

        async def push(before: bytes) -> None:
            """The state is the trace's own object: nothing to send."""

        toolset._pull_state, toolset._push_state = pull, push
        await self._stack.enter_async_context(toolset._exit_stack)
        await toolset.setup()
        if own:
            await toolset.setup_task(self.task.data)
        server = MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(server)
        prefix = f"{toolset.server_name}_" if toolset.server_name else ""
        self.tools += [ServedTool(server, tool, prefix) for tool in await server.list_tools()]

    # ---- the trace

    def told(self, messages: Sequence[Message], *, sampled: bool) -> None:
        for message in messages:
            parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
            tools = [] if self.trace.nodes else self.trace.tools
            node = MessageNode(parent=parent, message=_typed(message), sampled=sampled, tools=tools)
            self.trace.nodes.append(node)

    async def stopped(self) -> bool:
        """Whether a `@stop` predicate over the trace says so."""
        for predicate in self.task.hooks("stop"):
            names = set(inspect.signature(predicate).parameters)
            if not names <= {"trace", "task"}:
                raise DataError(f"{self.trace.task.type}: @stop {predicate.__name__} reads {names}: not played here")
            said = invoke(predicate, {"trace": self.trace, "task": self.task.data})
            if inspect.isawaitable(said):
                said = await guarded(said, f"@stop {predicate.__name__}")
            if said:
                self.trace.stop(predicate.__name__)
                return True
        return False

    async def score(self) -> dict[str, Any]:
        """Runs `finalize` and the task's rewards and metrics. Raises `InfrastructureError` where one does not score."""
        where, given = f"task {self.trace.task.type}", {"trace": self.trace, "runtime": self.runtime}
        await guarded(invoke(self.task.finalize, given), f"{where}: finalize")
        await guarded(self.task.score(self.trace, self.runtime), f"{where}: scoring")
        self.trace.is_completed = self.trace.ok = True
        for name, reward in self.trace.rewards.items():
            if reward is None or not math.isfinite(reward.value):
                raise InfrastructureError(f"{where}: the reward {name!r} gave no score", Termination.REWARD_FAILED)
        return {
            "reward": float(self.trace.reward),
            "rewards": {n: {"score": float(r.score), "weight": float(r.weight)} for n, r in self.trace.rewards.items()},
            "metrics": {name: float(value) for name, value in self.trace.metrics.items() if value is not None},
        }

    async def close(self) -> None:
        if self._running:
            self._running = False
            try:
                await self._stack.aclose()
            finally:
                await self.runtime.stop()


class ServedTool:
    """A tool of a `Toolset`, as the environment's own."""

    def __init__(self, server: Any, tool: Any, prefix: str):
        self._server, self._name = server, tool.name
        parameters = tool.input_schema or {"type": "object", "properties": {}}
        function = {"name": prefix + tool.name, "description": tool.description or "", "parameters": parameters}
        self.schema = {"type": "function", "function": function}

    async def open(self, task: Task) -> None: ...

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            result = await self._server.call_tool(self._name, dict(arguments))
        except InfrastructureError:
            raise
        except Exception as error:  # what a tool raises, and arguments that do not fit
            return ToolResult(str(error), CallStatus.ERROR)
        text = "\n".join(part.text for part in result.content if getattr(part, "type", "") == "text")
        return ToolResult(text, CallStatus.ERROR if result.is_error else CallStatus.OK)

    async def close(self) -> None: ...


def _typed(message: Message) -> Any:
    """A message of ours as one of verifiers'."""
    role, text = message["role"], message.get("content") or ""
    if role == "system":
        return vf.SystemMessage(content=text)
    if role == "user":
        return vf.UserMessage(content=text)
    if role == "tool":
        return vf.ToolMessage(tool_call_id=message["tool_call_id"], content=text, name=message.get("name"))
    calls = [
        vf.ToolCall(id=c["id"], name=c["function"]["name"], arguments=json.dumps(c["function"]["arguments"]))
        for c in message.get("tool_calls") or ()
        if "function" in c
    ]
    return vf.AssistantMessage(
        content=text, reasoning_content=message.get("reasoning_content"), tool_calls=calls or None
    )
