"""An OpenAPI document as tools: one per operation, named by its `operationId`.

Path, query, header and body parameters become one flat list of arguments; where a name stands in two places the body's
is called `body_<name>`. `$ref`s are written out; a schema that contains itself ends in a plain object.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from rufus_plugins.errors import DataError
from rufus_plugins.rollouts.tools import ToolResult
from rufus_plugins.types import CallStatus

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_MAX_TOOLS, _MAX_DEPTH, _MAX_NAME = 512, 12, 64
"""Ours; OpenAI's function names have at most 64 characters."""


@dataclass(frozen=True)
class Endpoint:
    """One operation of a world."""

    schema: Mapping[str, Any]
    method: str
    path: str
    places: Mapping[str, tuple[str, str]]
    """Argument -> (path | query | header | cookie | body | whole, name there)."""
    body: str
    """Content type of the body, "" if there is none."""

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]

    def request(self, arguments: Mapping[str, Any]) -> dict[str, Any] | ToolResult:
        """The HTTP request of a call; a `ToolResult` says why there is none. Which values fit, the world says."""
        unknown = [name for name in arguments if name not in self.places]
        if unknown:
            known = ", ".join(self.places) or "none"
            return ToolResult(f"no parameter {unknown[0]!r}; parameters: {known}", CallStatus.ERROR, False)
        path, query, headers, cookies = self.path, [], [], []
        body: Any = {} if "body" in {place for place, _ in self.places.values()} else None
        for name, (place, there) in self.places.items():
            if name not in arguments:
                if place == "path":
                    return ToolResult(f"{name!r} is missing", CallStatus.ERROR, False)
                continue
            value = arguments[name]
            if place == "body":
                body[there] = value
            elif place == "whole":
                body = value
            elif place == "path":
                if value is None or value == "":
                    return ToolResult(f"{name!r} is empty", CallStatus.ERROR, False)
                path = path.replace("{" + there + "}", quote(_text(value), safe="", errors="replace"))
            elif value is not None:
                values = value if place == "query" and isinstance(value, list) else [value]
                if place == "query":
                    query += [(there, _text(item)) for item in values]
                elif re.search(r"[\r\n\0]", _text(value)):
                    return ToolResult(f"{name!r} has a line break", CallStatus.ERROR, False)
                elif place == "header":
                    headers.append((there, _text(value)))
                else:
                    cookies.append(f"{there}={_text(value)}")
        request: dict[str, Any] = {"method": self.method.upper(), "path": path}
        if query:
            request["query"] = urlencode(query, errors="replace")
        if cookies:
            headers.append(("cookie", "; ".join(cookies)))
        if headers:
            request["headers"] = headers
        if body is not None and self.body:
            form = "form" in self.body
            request["type"] = "application/x-www-form-urlencoded" if form else self.body
            request["body"] = _form(body) if form else json.dumps(body)
        return request


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value)


def _form(body: Any) -> str:
    fields = body.items() if isinstance(body, Mapping) else ()
    return urlencode(
        [(k, _text(i)) for k, v in fields if v is not None for i in (v if isinstance(v, list) else [v])],
        errors="replace",
    )


def endpoints(document: Any) -> list[Endpoint]:
    """The operations of an OpenAPI 3 document, in its order. Raises `DataError` for what is none."""
    if not isinstance(document, Mapping) or not isinstance(document.get("paths"), Mapping):
        raise DataError(f"this is no OpenAPI document: it has no paths ({str(document)[:200]})")
    found: list[Endpoint] = []
    names: set[str] = set()
    try:
        for path, item in document["paths"].items():
            for method in _METHODS:
                if method in item:
                    operation = item[method]
                    shared = item.get("parameters") or []
                    found.append(_endpoint(document, str(path), method, operation, shared, names))
    except (AttributeError, TypeError, KeyError, ValueError, RecursionError) as error:
        raise DataError(f"this OpenAPI document cannot be read: {type(error).__name__}: {error}") from error
    if len(found) > _MAX_TOOLS:
        raise DataError(f"this world has {len(found)} operations; {_MAX_TOOLS} is the most")
    return found


def _endpoint(document: Any, path: str, method: str, operation: Any, shared: Any, names: set[str]) -> Endpoint:
    properties: dict[str, Any] = {}
    required: list[str] = []
    places: dict[str, tuple[str, str]] = {}

    def add(name: str, place: str, schema: Any, needed: bool) -> None:
        own = name
        while own in places:
            own = f"{'body' if place in ('body', 'whole') else place}_{own}"
        places[own] = (place, name)
        properties[own] = schema
        if needed:
            required.append(own)

    for parameter in [*shared, *(operation.get("parameters") or [])]:
        parameter = _followed(document, parameter)
        schema = _plain(document, parameter.get("schema") or {})
        if parameter.get("description"):
            schema = {**schema, "description": str(parameter["description"])}
        add(str(parameter["name"]), parameter["in"], schema, bool(parameter.get("required")))
    kind = ""
    body = _followed(document, operation.get("requestBody") or {})
    content = body.get("content") or {}
    if content:
        kind = next((k for k in content if "json" in k), next(iter(content)))
        schema = _plain(document, content[kind].get("schema") or {})
        needed = bool(body.get("required"))
        inner = schema.get("properties")
        if isinstance(inner, Mapping) and inner and not schema.get("additionalProperties"):
            for name, value in inner.items():
                add(str(name), "body", value, needed and name in (schema.get("required") or ()))
        else:
            add("body", "whole", schema, needed)
    name = _name(operation.get("operationId") or f"{method}_{path}", names)
    said = [str(operation[key]).strip() for key in ("summary", "description") if operation.get(key)]
    description = "\n\n".join(dict.fromkeys(said))
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": parameters}
    return Endpoint({"type": "function", "function": function}, method, path, places, kind)


def _name(wanted: Any, names: set[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", str(wanted)).strip("_") or "operation"
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    unique, count = name, 1
    while unique in names:
        count += 1
        unique = f"{name[: _MAX_NAME - 4]}_{count}"
    names.add(unique)
    return unique


def _followed(document: Any, value: Any) -> Any:
    for _ in range(_MAX_DEPTH):
        if not isinstance(value, Mapping) or "$ref" not in value:
            return value
        value = _target(document, value["$ref"])
    raise ValueError("a $ref leads to itself")


def _target(document: Any, reference: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        raise ValueError(f"$ref {reference!r} leads out of the document")
    found = document
    for part in reference[2:].split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


def _plain(document: Any, schema: Any, seen: tuple[str, ...] = (), depth: int = 0) -> dict[str, Any]:
    """The schema without references and titles."""
    if not isinstance(schema, Mapping):
        return {}
    if "$ref" in schema:
        reference = schema["$ref"]
        if reference in seen or depth > _MAX_DEPTH:
            return {"type": "object"}
        target = _plain(document, _target(document, reference), (*seen, reference), depth + 1)
        beside = {k: v for k, v in schema.items() if k != "$ref" and not (k == "title" and isinstance(v, str))}
        return {**target, **beside}
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            if key == "properties":
                plain[key] = {k: _plain(document, v, seen, depth + 1) for k, v in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, Mapping):
            plain[key] = _plain(document, value, seen, depth + 1)
        elif key in ("anyOf", "allOf", "oneOf", "prefixItems") and isinstance(value, list):
            plain[key] = [_plain(document, v, seen, depth + 1) for v in value]
        else:
            plain[key] = value
    if len(plain.get("allOf") or ()) == 1:  # how older FastAPI versions add a description to a reference
        only = plain.pop("allOf")[0]
        plain = {**only, **plain}
    return plain
