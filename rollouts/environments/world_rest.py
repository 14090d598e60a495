"""Runs in the jail: may an episode's process end between two calls, and a new fork of the world go on with its file?

Only if the world's memory is as it was when it was loaded. `Memory` takes down what the code can keep: the module's
names, its containers and classes, defaults and closures of its functions, `app.state`, the random numbers. A kind of
object that is not known to be without memory makes the answer no, for good.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import os
import random
import re
import sys
import threading
import types
import typing
import uuid
from typing import Any

_SCALARS = (str, bytes, int, float, bool, complex, type(None), type(...), type(NotImplemented))
_PLAIN = (
    *_SCALARS,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    enum.Enum,
    re.Pattern,
    uuid.UUID,
)
_LIBRARIES = ("fastapi.", "starlette.", "sqlalchemy.", "pydantic.", "pydantic_core.", "typing.", "logging.")
_KEEPERS = frozenset({"State", "Session", "AsyncSession", "scoped_session", "Mount", "Host"})
"""What keeps something for the code in these libraries."""
_DEPTH = 8


class Unknown(Exception):
    """Something that may have a memory of its own."""


class Memory:
    """What a loaded world remembers; two of them are compared."""

    def __init__(self, module: types.ModuleType, app: Any):
        self.module, self.app = module, app
        self.numbers: Any = None
        """State of `random`, which Python seeds anew in every fork."""
        try:
            self.first: Any = self._taken()
        except Unknown:
            self.first = None

    def begin(self) -> None:
        """In the episode's process."""
        self.numbers = random.getstate()

    def unchanged(self) -> bool:
        if self.first is None or threading.active_count() > 1 or random.getstate() != self.numbers:
            return False
        try:
            return self._taken() == self.first
        except Unknown:
            return False

    def _taken(self) -> Any:
        names = {name: self._of(value) for name, value in vars(self.module).items() if name != "__builtins__"}
        state = {name: self._of(value) for name, value in self.app.state._state.items()}
        overrides = [(id(key), id(value)) for key, value in self.app.dependency_overrides.items()]
        routes = [self._route(route) for route in self.app.routes]
        for middleware in self.app.user_middleware:
            if not f"{middleware.cls.__module__}.".startswith(_LIBRARIES):
                raise Unknown  # its instance is out of sight
        own = [(name, self._own(value)) for name, value in vars(self.app).items()]
        return names, state, overrides, routes, own, dict(os.environ), len(sys.path)

    def _own(self, value: Any) -> Any:
        """What the code may hang on the application; FastAPI's own containers by what is in them."""
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, list | tuple | set | frozenset):
            return type(value), [id(item) for item in value]
        if isinstance(value, dict):
            return type(value), [(id(key), id(item)) for key, item in value.items()]
        return id(value)

    def _route(self, route: Any) -> Any:
        """The endpoint and every dependency's function."""
        if type(route).__name__ in _KEEPERS or not f"{type(route).__module__}.".startswith(_LIBRARIES):
            raise Unknown
        calls, todo = [getattr(route, "endpoint", None)], [getattr(route, "dependant", None)]
        while todo:
            dependant = todo.pop()
            if dependant is not None:
                calls.append(dependant.call)
                todo += dependant.dependencies
        return id(route), [self._of(call) for call in calls]

    def _of(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if isinstance(value, _PLAIN):
            return kind, value if value == value else repr(value)
        if depth > _DEPTH:
            raise Unknown
        if kind in (list, tuple):
            return kind, [self._of(item, depth + 1) for item in value]
        if kind in (set, frozenset):
            return kind, {self._of(item, depth + 1) for item in value}
        if kind is dict:
            return kind, [(self._of(key, depth + 1), self._of(item, depth + 1)) for key, item in value.items()]
        if kind is types.ModuleType or kind is types.BuiltinFunctionType:
            return id(value)
        if kind is types.FunctionType:
            if value.__module__ != self.module.__name__:
                return id(value)
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            kept = (value.__defaults__, tuple((value.__kwdefaults__ or {}).items()), tuple(cells))
            return id(value), self._of(kept, depth + 1), self._of(dict(vars(value)), depth + 1)
        if isinstance(value, type):
            if value.__module__ != self.module.__name__:
                return id(value)
            # under these names libraries keep what they make at first use
            made = ("__", "_sa_", "_abc_", "model_") if hasattr(value, "__pydantic_core_schema__") else ("__", "_sa_")
            names = {n: v for n, v in vars(value).items() if not n.startswith((*made, "_abc_"))}
            return id(value), {n: self._member(v, depth) for n, v in names.items()}
        if kind in (types.GenericAlias, types.UnionType):
            return id(value)
        if (
            kind in (staticmethod, classmethod, property)
            or kind.__name__ in _KEEPERS
            or kind.__module__ == self.module.__name__
        ):
            raise Unknown
        if f"{kind.__module__}.".startswith(_LIBRARIES) or isinstance(value, typing._Final):
            return id(value)
        raise Unknown

    def _member(self, value: Any, depth: int) -> Any:
        if isinstance(value, staticmethod | classmethod):
            return id(value), self._of(value.__func__, depth + 1)
        if isinstance(value, property):
            return id(value)
        return self._of(value, depth + 1)


def nothing_runs(loop: asyncio.AbstractEventLoop) -> bool:
    return not asyncio.all_tasks(loop)
