"""Rollouts: environments, sandboxes and the token-faithful segment. This module registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_environments():
    from rufus_plugins.rollouts.environments.functions import Functions

    return {
        "functions": Functions,
    }


@hookimpl
def register_sandboxes():
    return {}
