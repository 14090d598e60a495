"""Builds a rule under `rufus:` from its section, so that every wrong key, value or shape is one kind of message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.fields import REQUIRED, Unfit, config_fields, fitted


def section(where: str, config: Any) -> dict[str, Any]:
    """The section as a dict; None is an empty one."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where} is a mapping of fields, or null, not {config!r}")
    return dict(config)


def build(where: str, factory: Callable[..., Any], config: Mapping[str, Any], fields: Sequence[str] = ()) -> Any:
    """`factory(**config)`. `fields`: those that a config may name; () = all. Raises `ConfigError`."""
    declared = config_fields(factory)
    known = [*(fields or declared)]
    unknown = sorted(str(key) for key in config if key not in known)
    if unknown:
        raise ConfigError(f"{where} has no {', '.join(unknown)}: its fields are {', '.join(known)}")
    missing = [name for name in known if declared[name] is REQUIRED and config.get(name) is None]
    if missing:
        raise ConfigError(f"{where} needs {', '.join(missing)}: its fields are {', '.join(known)}")
    try:
        return factory(**fitted(factory, config))
    except Unfit as error:
        raise ConfigError(f"{where}.{error}") from None
