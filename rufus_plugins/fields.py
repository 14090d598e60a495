"""The config fields of a part, and config values to them: says which value does not fit which field, and turns what
YAML cannot write (tuples, sets, paths, enums) into what the field declares. A type it does not know is the part's."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any


class Unfit(ValueError):
    """The value does not fit; `str()` says what would."""


class _Required:
    def __repr__(self) -> str:
        return "<required>"


REQUIRED = _Required()


def config_fields(factory: Any) -> dict[str, Any]:
    """Field name -> default of a factory: its dataclass fields, else its keyword parameters."""
    if dataclasses.is_dataclass(factory):
        fields = {}
        for f in dataclasses.fields(factory):
            if not f.init or f.name.startswith("_"):
                continue
            if f.default is not dataclasses.MISSING:
                fields[f.name] = f.default
            elif f.default_factory is not dataclasses.MISSING:
                fields[f.name] = f.default_factory()
            else:
                fields[f.name] = REQUIRED
        return fields
    if not callable(factory) or (inspect.isclass(factory) and factory.__init__ is object.__init__):
        return {}
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return {}
    return {
        p.name: REQUIRED if p.default is p.empty else p.default
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def takes_any(factory: Any) -> bool:
    """Whether any keyword is a field (`**kwargs`)."""
    if dataclasses.is_dataclass(factory):
        return False
    try:
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        return False


def fitted(factory: Callable[..., Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with each value as the factory's field declares it. Raises `Unfit` naming the field."""
    hints = _hints(factory)
    out = {}
    for key, value in config.items():
        try:
            out[key] = _fit(hints.get(key, Any), value)
        except Unfit as error:
            raise Unfit(f"{key}={value!r}: {error}") from None
    return out


def type_name(factory: Callable[..., Any], key: str) -> str:
    """The declared type of a field as a reader would write it, "" if there is none."""
    hint = _hints(factory).get(key)
    return "" if hint is None else _name(hint)


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    target = factory
    if inspect.isclass(factory) and not dataclasses.is_dataclass(factory):
        target = factory.__init__
    try:
        return typing.get_type_hints(target)
    except Exception:  # a name that only a type checker sees (TYPE_CHECKING): the part checks for itself
        return {}


def _fit(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _fit(args[0], value)
    if origin in (typing.Union, types.UnionType):
        return _fit_union(hint, args, value)
    if origin is typing.Literal:
        if value in args:
            return value
        raise Unfit(f"one of {', '.join(map(repr, args))} is needed")
    if hint in (None, type(None)):
        if value is None:
            return None
        raise Unfit("null is needed")
    kind = origin or hint
    if not inspect.isclass(kind):
        return value
    if kind in (bool, int, float, str):
        return _fit_scalar(kind, value)
    if issubclass(kind, enum.Enum):
        return _fit_enum(kind, value)
    if issubclass(kind, Path) and isinstance(value, str):
        return kind(value)
    if kind in (tuple, list, set, frozenset, Sequence, Collection):
        if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
            raise Unfit(f"a list is needed ({_name(hint)})")
        item = args[0] if args else Any
        if kind is tuple and args and args[-1] is not Ellipsis:
            if len(value) != len(args):
                raise Unfit(f"{len(args)} items are needed")
            return tuple(_fit(a, v) for a, v in zip(args, value, strict=True))
        items = [_fit(item, v) for v in value]
        return items if kind in (list, Sequence, Collection) else kind(items)
    if kind in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise Unfit(f"a mapping is needed ({_name(hint)})")
        key_hint, item_hint = args if len(args) == 2 else (Any, Any)
        return {_fit(key_hint, k): _fit(item_hint, v) for k, v in value.items()}
    return value


def _fit_union(hint: Any, args: tuple[Any, ...], value: Any) -> Any:
    exact = [a for a in args if inspect.isclass(a) and type(value) is a]
    for candidate in (*exact, *args):
        try:
            return _fit(candidate, value)
        except Unfit:
            continue
    raise Unfit(f"{_name(hint)} is needed")


def _fit_scalar(kind: type, value: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        if value != value:  # it would pass every check of a range
            raise Unfit("a number is needed, not nan")
        return value
    raise Unfit(f"{kind.__name__} is needed, not {type(value).__name__}")


def _fit_enum(kind: type[enum.Enum], value: Any) -> Any:
    if isinstance(value, kind):
        return value
    for member in kind:
        if value in (member.value, member.name):
            return member
    raise Unfit(f"one of {', '.join(repr(m.value) for m in kind)} is needed")


def _name(hint: Any) -> str:
    if inspect.isclass(hint) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "").replace("NoneType", "None")
