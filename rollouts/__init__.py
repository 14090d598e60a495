"""Rollouts: environments, sandboxes and the token-faithful segment. This module registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_environments():
    from rufus_plugins.rollouts.environments.conversation import Conversation
    from rufus_plugins.rollouts.environments.functions import Functions
    from rufus_plugins.rollouts.environments.mcp import Mcp
    from rufus_plugins.rollouts.environments.reasoning_gym import ReasoningGym
    from rufus_plugins.rollouts.environments.search import Search
    from rufus_plugins.rollouts.environments.shell import Shell
    from rufus_plugins.rollouts.environments.verifiers import Verifiers

    return {
        "conversation": Conversation,
        "functions": Functions,
        "mcp": Mcp,
        "reasoning_gym": ReasoningGym,
        "search": Search,
        "shell": Shell,
        "verifiers": Verifiers,
    }


@hookimpl
def register_sandboxes():
    from rufus_plugins.rollouts.sandboxes.e2b import E2B
    from rufus_plugins.rollouts.sandboxes.local import Local

    return {
        "local": Local,
        "e2b": E2B,
    }
