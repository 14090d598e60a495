"""The hooks, whole. Each returns `{name: factory}` and takes no arguments.

A factory is normally the class itself; its dataclass fields are its config (`rufus.reward.<field>`).
Keep heavy imports inside the class's methods or the hook body: `rufus list` calls every hook.
Third parties: entry-point group `rufus`, pointing at a module (or object) with `@hookimpl` functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pluggy

hookspec = pluggy.HookspecMarker("rufus")
hookimpl = pluggy.HookimplMarker("rufus")

Factories = Mapping[str, Callable[..., Any]]


@hookspec
def register_rewards() -> Factories:  # type: ignore[empty-body]
    """Rewards by name; selected by `reward=<name>`."""


@hookspec
def register_environments() -> Factories:  # type: ignore[empty-body]
    """Environments by name; selected by `environment=<name>`."""


@hookspec
def register_sandboxes() -> Factories:  # type: ignore[empty-body]
    """Sandbox backends by name."""


@hookspec
def register_judges() -> Factories:  # type: ignore[empty-body]
    """Judges by name."""


@hookspec
def register_data_filters() -> Factories:  # type: ignore[empty-body]
    """Data filters by name."""


@hookspec
def register_advantage_estimators() -> Factories:  # type: ignore[empty-body]
    """Advantage estimators by name: functions with verl's signature; `algorithm.adv_estimator=<name>`."""


@hookspec
def register_policy_losses() -> Factories:  # type: ignore[empty-body]
    """Policy losses by name: functions with verl's signature; `actor.policy_loss.loss_mode=<name>`."""


@hookspec
def register_router_adapters() -> Factories:  # type: ignore[empty-body]
    """Routing-replay adapters by transformers `model_type`."""


@hookspec
def register_stages() -> Factories:  # type: ignore[empty-body]
    """Stages by name: a `Stage`, or a function without arguments that returns one."""


KINDS = {
    "reward": "register_rewards",
    "environment": "register_environments",
    "sandbox": "register_sandboxes",
    "judge": "register_judges",
    "data_filter": "register_data_filters",
    "advantage_estimator": "register_advantage_estimators",
    "policy_loss": "register_policy_losses",
    "router_adapter": "register_router_adapters",
    "stage": "register_stages",
}
"""Kind of part -> the hook that registers it."""
