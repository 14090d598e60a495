"""Fields of an environment that differ when the rollout is for validation: `rufus.environment.validation.<field>`.

The host tells it by `task.extra["validate"]` (hosts/verl/agent_loop.py), so an environment needs no word of the host.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.fields import Unfit, config_fields, fitted
from rufus_plugins.types import Task

VALIDATE = "validate"
"""Key of `Task.extra`."""


def for_task(environment: Any, task: Task) -> Any:
    """The environment as its config wants it for this task: itself, or a fresh one with the fields of `validation`."""
    return for_validation(environment) if task.extra.get(VALIDATE) else environment


def for_validation(environment: Any) -> Any:
    """A fresh environment with the fields of `validation` in place. Raises `ConfigError`."""
    changed: Mapping[str, Any] = environment.validation
    known = [name for name in config_fields(type(environment)) if name != "validation"]
    for name in changed:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(f"There is no rufus.environment.validation.{name}.{hint} Fields: {', '.join(known)}.")
    try:
        return dataclasses.replace(environment, **fitted(type(environment), changed), validation={})
    except Unfit as error:
        raise ConfigError(f"rufus.environment.validation.{error}") from None
