"""Algorithms: advantages, losses, filters, penalties, routing replay. This module registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_advantage_estimators():
    return {}


@hookimpl
def register_policy_losses():
    return {}


@hookimpl
def register_router_adapters():
    from .routing_replay.families import built_in_adapters

    return built_in_adapters()
