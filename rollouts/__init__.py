"""Rollouts: environments, sandboxes and the token-faithful segment. This module registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_environments():
    from rufus_plugins.rollouts.environments.functions import Functions
    from rufus_plugins.rollouts.environments.shell import Shell

    return {
        "functions": Functions,
        "shell": Shell,
    }


@hookimpl
def register_sandboxes():
    from rufus_plugins.rollouts.sandboxes.e2b import E2B
    from rufus_plugins.rollouts.sandboxes.local import Local

    return {
        "local": Local,
        "e2b": E2B,
    }
