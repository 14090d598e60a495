"""What a composed config selects of ours: the section `rufus`, checked, and the parts built from it.

Knows the section only, so any mapping will do (a plain dict, or Hydra's DictConfig); no host is imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError
from .plugins import Registry, registry
from .types import Termination

PARTS = ("reward", "environment")
"""Kinds that a run selects by `<kind>=<name>`; `rufus.<kind>` holds `name` and the fields."""


def section(config: Any) -> dict[str, Any]:
    """`rufus:` as a plain dict with every key of ours, defaults filled in. Values are resolved.

    Raises `ConfigError` for a key that does not exist or a value of the wrong type.
    """
    from .recipes.config import defaults

    given = _plain(config.get("rufus") if config is not None else None)
    if not isinstance(given, Mapping):
        raise ConfigError(f"rufus: holds {given!r}; it is a mapping with the keys {', '.join(_keys(defaults()))}.")
    given = dict(given)
    parts = {kind: given.pop(kind, None) for kind in PARTS}
    filled = _merged(defaults(), given, "rufus")
    _check_terminations(filled["mask_terminations"])
    return {**filled, **parts}


def name_of(config: Any, kind: str) -> str | None:
    """The selected part of this kind, None if none is."""
    chosen = section(config)[kind]
    if chosen is None:
        return None
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("name"), str):
        raise ConfigError(
            f"rufus.{kind} holds {chosen!r}, but no `name`. Select a part by {kind}=<name>; "
            f"`rufus list {kind}` shows what exists."
        )
    return chosen["name"]


def build(config: Any, kind: str, found: Registry | None = None) -> Any | None:
    """The selected part of this kind, built from its fields; None if none is selected.

    Raises `ConfigError` (unknown name, field or value) or `PluginError` (its plugin is broken).
    """
    name = name_of(config, kind)
    if name is None:
        return None
    fields = {key: value for key, value in section(config)[kind].items() if key != "name" and value != "???"}
    return (found or registry()).build(kind, name, fields)


def check(config: Any, found: Registry | None = None) -> dict[str, str]:
    """Builds everything the config selects and returns kind -> name. Raises what is wrong, before anything runs."""
    chosen = {}
    for kind in PARTS:
        name = name_of(config, kind)
        if name is not None:
            build(config, kind, found)
            chosen[kind] = name
    return chosen


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any], path: str) -> dict[str, Any]:
    merged = dict(defaults)
    for key, value in given.items():
        if key not in defaults:
            known = [*_keys(defaults), *(PARTS if path == "rufus" else ())]
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {path}.{close[0]}?" if close else ""
            raise ConfigError(f"There is no {path}.{key}.{hint} Under {path}: {', '.join(known)}.")
        default = defaults[key]
        if isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path}.{key} holds {value!r}; it is a mapping with {', '.join(_keys(default))}.")
            merged[key] = _merged(default, value, f"{path}.{key}")
        else:
            merged[key] = _typed(default, value, f"{path}.{key}")
    return merged


def _typed(default: Any, value: Any, path: str) -> Any:
    """`value` if it is of the default's type; a default of null says nothing about the type."""
    if default is None or type(value) is type(default):
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}
    raise ConfigError(f"{path}={value!r} does not fit: {wanted[type(default)]} is needed.")


def _check_terminations(names: list[Any]) -> None:
    known = [t.value for t in Termination]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"rufus.mask_terminations names {name!r}.{hint} Endings: {', '.join(known)}.")


def _keys(mapping: Mapping[str, Any]) -> list[str]:
    return [str(key) for key in mapping]


def _plain(value: Any) -> Any:
    if value is None:
        return {}
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
