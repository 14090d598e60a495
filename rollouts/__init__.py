"""Rollouts: environments, sandboxes and the token-faithful segment. This module registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_environments():
    return {}


@hookimpl
def register_sandboxes():
    return {}
