"""A tool that an MCP server lists, checked before it is called: the server's schema is a claim.

Arguments that do not fit the schema are not sent; a schema that is none, or that leads out of itself, is not used and
the server decides. Patterns are left to the server: a regular expression of its own could run for ever here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_plugins.rollouts.environments.mcp_servers import Connection
from rufus_plugins.rollouts.tools import ToolResult
from rufus_plugins.types import CallStatus, Task

_MAX_NAME, _MAX_TEXT, _MAX_SCHEMA, _MAX_DEPTH = 64, 8_000, 64_000, 32
"""Characters of a description and of a schema that a prompt takes; ours. Names: OpenAI's function format."""


@dataclass
class McpTool:
    connection: Connection
    name: str
    """As the server calls it."""
    schema: Mapping[str, Any]
    validator: Any

    async def open(self, task: Task) -> None: ...

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        problem = self._problem(arguments)
        if problem:
            return ToolResult(problem, CallStatus.ERROR, False)
        return await self.connection.call(self.name, arguments)

    async def close(self) -> None: ...

    def _problem(self, arguments: Mapping[str, Any]) -> str:
        if self.validator is None:
            return ""
        try:
            errors = sorted(self.validator.iter_errors(dict(arguments)), key=lambda error: len(error.absolute_path))
        except Exception:  # a reference that leads nowhere, or into itself: the server will say what it wants
            self.validator = None
            return ""
        said = []
        for error in errors[:3]:
            where = ".".join(str(part) for part in error.absolute_path)
            said.append(f"{where}: {error.message[:300]}" if where else error.message[:300])
        return "; ".join(said)


def usable(connection: Connection, listed: Any, taken: dict[str, Any], *, prefix: bool) -> McpTool | None:
    """The listed tool under a name that a model can call; None for a second one of the same name and server.

    `taken` holds the names given so far. Two names that become one (`a.b` and `a/b`, or two Chinese ones) are told
    apart by a hash.
    """
    name = str(listed.name)
    whole = f"{connection.name}_{name}" if prefix else name
    shown = re.sub(r"[^A-Za-z0-9_-]+", "_", whole) or "tool"
    digest = hashlib.sha256(repr((connection.name, name)).encode()).hexdigest()[:8]
    if len(shown) > _MAX_NAME or not shown.strip("_-") or taken.get(shown, (connection, name)) != (connection, name):
        shown = f"{shown[: _MAX_NAME - 9].rstrip('_') or 'tool'}_{digest}"
    if shown in taken:
        return None
    taken[shown] = (connection, name)
    schema = listed.input_schema if isinstance(listed.input_schema, Mapping) else {}
    validator = _validator(schema)
    function = {
        "name": shown,
        "description": str(listed.description or listed.title or "")[:_MAX_TEXT],
        "parameters": _shown(schema, validator is not None),
    }
    return McpTool(connection, name, {"type": "function", "function": function}, validator)


def _shown(schema: Mapping[str, Any], valid: bool) -> dict[str, Any]:
    """What the model reads; an object without properties where the server's own is unusable."""
    plain = {"type": "object", "properties": {}}
    if not valid or schema.get("type") != "object" or not isinstance(schema.get("properties", {}), Mapping):
        return plain
    try:
        if len(json.dumps(schema)) > _MAX_SCHEMA:
            return plain
    except (TypeError, ValueError, RecursionError):
        return plain
    return {**plain, **{key: value for key, value in schema.items() if key not in ("$schema", "title")}}


def _validator(schema: Mapping[str, Any]) -> Any:
    """A validator that fetches nothing, or None where the schema is no schema."""
    import jsonschema
    import referencing

    try:
        plain = _without_patterns(schema)
        kind = jsonschema.validators.validator_for(plain, default=jsonschema.Draft202012Validator)
        kind.check_schema(plain)
        return kind(plain, registry=referencing.Registry())
    except Exception:
        return None


def _without_patterns(value: Any, depth: int = 0, names: bool = False) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, Mapping):
        dropped = () if names else ("pattern", "patternProperties", "format", "$id")
        return {
            key: _without_patterns(item, depth + 1, not names and key in ("properties", "$defs", "definitions"))
            for key, item in value.items()
            if key not in dropped
        }
    if isinstance(value, list):
        return [_without_patterns(item, depth + 1) for item in value]
    return value
