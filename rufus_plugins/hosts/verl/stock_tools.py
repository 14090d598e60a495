"""verl's own tools (`multi_turn.tool_config_path`, `function_tool_path`) as tools of an environment.

verl 0.9.1 creates and releases a `BaseTool` instance around every call (tool_agent_loop.py `_call_tool`), so nothing
lasts; here one instance lives as long as the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.rollouts.tools import ToolResult
from rufus_plugins.types import CallStatus, Task


class StockTool:
    """A `BaseTool` for one episode."""

    def __init__(self, tool: Any, create_kwargs: Mapping[str, Any] | None = None):
        self.tool, self.create_kwargs = tool, dict(create_kwargs or {})
        self.schema = tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)
        self._instance: str | None = None

    async def open(self, task: Task) -> None:
        """The instance is created by the first call: most episodes use few of their tools."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        started = False
        try:
            if self._instance is None:
                self._instance, _ = await self.tool.create(create_kwargs=self.create_kwargs)
            started = True
            response, _, _ = await self.tool.execute(self._instance, dict(arguments))
        except InfrastructureError:
            raise
        except Exception as error:
            return ToolResult(f"{type(error).__name__}: {error}", CallStatus.ERROR, started)
        return _text(response)

    async def close(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await self.tool.release(instance)


class StockFunction:
    """A function that verl's `@function_tool` registered."""

    def __init__(self, tool: Any):
        self.tool = tool
        self.schema = tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)

    async def open(self, task: Task) -> None: ...

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        from verl.tools.function_tool import normalize_function_tool_return

        try:
            response, _, _ = normalize_function_tool_return(await self.tool.call(dict(arguments)))
        except InfrastructureError:
            raise
        except Exception as error:
            return ToolResult(f"{type(error).__name__}: {error}", CallStatus.ERROR)
        return _text(response)

    async def close(self) -> None: ...


def stock_tools(tools: Sequence[Any], tools_kwargs: Mapping[str, Any] | None = None) -> list[Any]:
    """verl's loaded tools; `tools_kwargs` are the record's (`extra_info.tools_kwargs`), by tool name."""
    from verl.tools.function_tool import FunctionTool

    told = tools_kwargs or {}
    return [
        StockFunction(tool)
        if isinstance(tool, FunctionTool)
        else StockTool(tool, (told.get(tool.name) or {}).get("create_kwargs"))
        for tool in tools
    ]


def _text(response: Any) -> ToolResult:
    if response.image or response.video:
        return ToolResult(
            "the tool answered with an image or a video, which environments do not take", CallStatus.ERROR
        )
    return ToolResult(response.text or "")
