"""Recipes: Hydra configs, data tools and the stages. This module registers the built-in stages."""

from rufus_plugins import Stage, hookimpl


def coding_rl_stage() -> Stage:
    """Coding RL: GSPO, reward 1 iff all sandboxed tests pass."""
    from rufus_plugins.recipes.coding_rl.prepare import prepare

    return Stage("coding_rl", "coding_rl/train", prepare, reads="reasoning_rl")


def coding_agent_stage() -> Stage:
    """Coding Agent: GSPO over episodes in a shell, reward by the task's own tests (Harbor)."""
    from rufus_plugins.recipes.coding_agent.prepare import prepare

    return Stage("coding_agent", "coding_agent/train", prepare, reads="general_agent")


def search_corpus_stage() -> Stage:
    """Documents to the index of `environment=search`. Data only: `rufus prepare search_corpus`."""
    from rufus_plugins.recipes.search_agent.corpus import prepare

    return Stage("search_corpus", "", prepare)


@hookimpl
def register_stages():
    return {
        "coding_rl": coding_rl_stage,
        "coding_agent": coding_agent_stage,
        "search_corpus": search_corpus_stage,
    }
