"""What a composed config selects of ours: the section `rufus`, checked, and the parts built from it.

Knows the section only, so any mapping will do (a plain dict, or Hydra's DictConfig); no host is imported.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError
from .plugins import Registry, registry

PARTS = ("reward", "environment")
"""Kinds that a run selects by `<kind>=<name>`; `rufus.<kind>` holds `name` and the fields."""

CHECKS = {
    "group_filter": "rufus_plugins.algos.group_filter:group_filter",
    "length_penalty": "rufus_plugins.algos.length_penalty:length_penalty",
    "mask_terminations": "rufus_plugins.algos.truncation:masked_terminations",
    "environment_pool": "rufus_plugins.rollouts.pool:pool_rules",
    "samples": "rufus_plugins.recipes.report.samples:sample_rules",
}
"""Keys whose value is checked by building what it stands for; the others are checked where they are used."""


def section(config: Any) -> dict[str, Any]:
    """`rufus:` as a plain dict: every key of ours (null is off), `reward` and `environment`. Values are resolved.

    Raises `ConfigError` for a key that does not exist.
    """
    from .recipes.config import defaults

    given = _plain(config.get("rufus"))
    known = [*defaults(), *PARTS]
    if not isinstance(given, Mapping):
        raise ConfigError(f"rufus: holds {given!r}; it is a mapping with the keys {', '.join(known)}.")
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean rufus.{close[0]}?" if close else ""
            raise ConfigError(f"There is no rufus.{key}.{hint} Under rufus: {', '.join(known)}.")
    return {**dict.fromkeys(PARTS), **defaults(), **given}


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
    found = found or registry()
    return found.build(kind, name, fields_of(config, kind, found), _beside(kind, name, found))


def fields_of(config: Any, kind: str, found: Registry | None = None) -> dict[str, Any]:
    """The fields of the selected part of this kind as they are given; empty if none is selected."""
    name = name_of(config, kind)
    if name is None:
        return {}
    fields = {key: value for key, value in section(config)[kind].items() if key != "name" and value != "???"}
    if kind == "environment":  # the rules of the episode stand beside the environment's own fields
        from .rollouts.rules import NAMES

        own = (found or registry()).get(kind, name).config_fields
        fields = {key: value for key, value in fields.items() if key not in NAMES or key in own}
    return fields


def _beside(kind: str, name: str, found: Registry) -> dict[str, list[str]]:
    """What else stands in the section of such a part: the rules of the episode in an environment's."""
    if kind != "environment":
        return {}
    from .rollouts.rules import NAMES

    own = found.get(kind, name).config_fields
    return {"Rules of every episode, beside them": [rule for rule in NAMES if rule not in own]}


def rules_of(config: Any, found: Registry | None = None) -> Any:
    """The `EpisodeRules` that stand beside the fields of the selected environment. Raises `ConfigError`."""
    from .rollouts.rules import episode_rules

    name = name_of(config, "environment")
    own = () if name is None else (found or registry()).get("environment", name).config_fields
    return episode_rules(section(config)["environment"], own)


def check(config: Any, found: Registry | None = None) -> dict[str, str]:
    """Builds everything the config selects and returns kind -> name. Raises what is wrong, before anything runs."""
    chosen = {}
    for kind in PARTS:
        name = name_of(config, kind)
        if name is not None:
            build(config, kind, found)
            chosen[kind] = name
    if "environment" in chosen:
        rules_of(config, found)
    for key, value in section(config).items():
        if key in CHECKS and value is not None:
            module, function = CHECKS[key].split(":")
            getattr(importlib.import_module(module), function)(value)
    return chosen


def _plain(value: Any) -> Any:
    if value is None:
        return {}
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:  # an interpolation: ${oc.env:NAME} of a variable that is not set
        raise ConfigError(f"under rufus: {error}") from error
