"""Whether what a hook returned can be a part of its kind, judged without calling it."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from .fields import config_fields


def shape_problem(kind: str, name: Any, factory: Any) -> tuple[str, str] | None:
    """Why `factory` cannot be a part of this kind, and the mend; None if it can."""
    if not isinstance(name, str) or not name.isidentifier():
        return f"the name {name!r} is no identifier", "use letters, digits and underscores: it is a config name"
    if kind == "reward" and name == "reward":
        return "the name is that of verl's own option in the group `reward`", "give the reward another name"
    if kind == "stage":
        from .types import Stage

        if isinstance(factory, Stage) or callable(factory):
            return None
        return f"is a {type(factory).__name__}", "return a Stage, or a function that returns one"
    if not callable(factory):
        return f"is a {type(factory).__name__}, which cannot be called", "return the class (or a function), not a value"
    if inspect.isclass(factory):
        wanted = _METHODS.get(kind, ())
        for method, is_async in wanted:
            own = getattr(factory, method, None)
            if own is None or (method == "__call__" and "__call__" not in _own_names(factory)):
                return (
                    f"class {factory.__name__} has no {'async ' * is_async}method {method}",
                    "add it: see rufus_plugins/protocols.py",
                )
            if is_async and not inspect.iscoroutinefunction(own):
                return f"{factory.__name__}.{method} is not async", f"write `async def {method}(...)`"
        if kind == "reward" and not dataclasses.is_dataclass(factory) and _annotated(factory):
            return (
                f"class {factory.__name__} declares fields but is no dataclass, so they would not be its config",
                "decorate it with @dataclasses.dataclass",
            )
        if "name" in config_fields(factory):
            return f"class {factory.__name__} has a field called name", "rename it: `name` is the part itself"
    elif kind == "reward" and inspect.iscoroutinefunction(factory):
        return (
            f"{name!r} is an async function, not a factory",
            "write a class with `async def __call__(self, trajectory)` and return the class",
        )
    return None


def built_problem(kind: str, built: Any) -> str | None:
    """Why what a factory that is no class returned cannot be a part of this kind; None if it can."""
    for method, is_async in _METHODS.get(kind, ()):
        own = getattr(built, method, None)
        wanted = f"{'async ' * is_async}{'call' if method == '__call__' else method}"
        if not callable(own):
            return f"a {type(built).__name__} without {wanted}"
        if is_async and not (inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(built)):
            return f"a {type(built).__name__} whose {method} is not async"
    return None


_METHODS: dict[str, tuple[tuple[str, bool], ...]] = {
    "reward": (("__call__", True),),
    "judge": (("__call__", True),),
    "environment": (("start", True), ("step", True), ("finish", True), ("close", True)),
    "sandbox": (("exec", True), ("read_file", True), ("write_file", True), ("close", True)),
    "data_filter": (("__call__", False),),
}


def _annotated(cls: type) -> bool:
    return any(
        not str(kind).startswith(("ClassVar", "typing.ClassVar"))
        for kind in vars(cls).get("__annotations__", {}).values()
    )


def _own_names(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in vars(base)}
