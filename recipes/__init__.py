"""Recipes: Hydra configs, data tools and the stages. This module registers the built-in stages."""

from rufus_plugins import Stage, hookimpl


def coding_rl_stage() -> Stage:
    """Coding RL: GSPO, reward 1 iff all sandboxed tests pass."""
    from rufus_plugins.recipes.coding_rl.prepare import prepare

    return Stage("coding_rl", "coding_rl/train", prepare, reads="reasoning_rl")


@hookimpl
def register_stages():
    return {"coding_rl": coding_rl_stage}
