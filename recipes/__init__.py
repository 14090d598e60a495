"""Recipes: Hydra configs, data tools and the stages. This module registers the built-in stages."""

from typing import Any

from rufus_plugins import Stage, hookimpl


def family_data(stage: str) -> Any:
    """`Stage.tiny` of the stages that have a generated family (recipes/tiny/families)."""

    def write_data(output_dir: Any, seed: int = 0) -> dict[str, Any]:
        from rufus_plugins.recipes.tiny.families.writing import write

        return write(stage, output_dir, seed)

    return write_data


def sft_stage() -> Stage:
    """SFT on normalised conversations, with verl's SFT trainer: `+stage=sft`."""
    from rufus_plugins.recipes.sft.prepare import prepare

    return Stage("sft", "sft/train", prepare, metric="loss")


def coding_rl_stage() -> Stage:
    """Coding RL: GSPO, reward 1 iff all sandboxed tests pass."""
    from rufus_plugins.recipes.coding_rl.prepare import prepare

    return Stage("coding_rl", "coding_rl/train", prepare, reads="reasoning_rl", tiny=family_data("coding_rl"))


def coding_agent_stage() -> Stage:
    """Coding Agent: GSPO over episodes in a shell, reward by the task's own tests (Harbor)."""
    from rufus_plugins.recipes.coding_agent.prepare import prepare

    return Stage("coding_agent", "coding_agent/train", prepare, reads="general_agent", tiny=family_data("coding_agent"))


def search_corpus_stage() -> Stage:
    """Documents to the index of `environment=search`. Data only: `rufus prepare search_corpus`."""
    from rufus_plugins.recipes.search_agent.corpus import prepare

    return Stage("search_corpus", "", prepare)


def reasoning_rl_stage() -> Stage:
    """Reasoning RL: GSPO on mathematics, science and puzzles in the productive band."""
    from rufus_plugins.recipes.reasoning_rl.prepare import prepare

    return Stage("reasoning_rl", "reasoning_rl/train", prepare, reads="sft", tiny=family_data("reasoning_rl"))


def instruction_rl_stage() -> Stage:
    """Instruction RL: reward 1 iff all necessary rubrics pass."""
    from rufus_plugins.recipes.instruction_rl.prepare import prepare

    return Stage(
        "instruction_rl", "instruction_rl/train", prepare, reads="coding_rl", tiny=family_data("instruction_rl")
    )


def general_agent_stage() -> Stage:
    """General Agent: GRPO over tool calls that change a server's state, reward by the terminal state."""
    from rufus_plugins.recipes.general_agent.prepare import prepare

    return Stage(
        "general_agent", "general_agent/train", prepare, reads="instruction_rl", tiny=family_data("general_agent")
    )


def search_agent_stage() -> Stage:
    """Search Agent: mean-only advantages, a judge's score, two successful calls at least."""
    from rufus_plugins.recipes.search_agent.prepare import prepare

    return Stage("search_agent", "search_agent/train", prepare, reads="coding_agent", tiny=family_data("search_agent"))


def rlhf_stage() -> Stage:
    """RLHF: the raw score of a reward model on the policy's own rollouts."""
    from rufus_plugins.recipes.rlhf.prepare import prepare

    return Stage("rlhf", "rlhf/train", prepare, reads="search_agent", tiny=family_data("rlhf"))


def axion_rl_stage() -> Stage:
    """Axion's RL: asynchronous GRPO under context compaction, reward by the answer and a chain of targets."""
    from rufus_plugins.recipes.axion_rl.prepare import prepare

    return Stage("axion_rl", "axion_rl/train", prepare, reads="sft", tiny=family_data("axion_rl"))


def verifiers_stage() -> Stage:
    """Tasks of a `verifiers` taskset as records. Data only: `rufus prepare verifiers --input TASKSET`."""
    from rufus_plugins.recipes.adapters.verifiers import prepare

    return Stage("verifiers", "", prepare)


@hookimpl
def register_stages():
    return {
        "sft": sft_stage,
        "coding_rl": coding_rl_stage,
        "coding_agent": coding_agent_stage,
        "search_corpus": search_corpus_stage,
        "reasoning_rl": reasoning_rl_stage,
        "instruction_rl": instruction_rl_stage,
        "general_agent": general_agent_stage,
        "search_agent": search_agent_stage,
        "rlhf": rlhf_stage,
        "axion_rl": axion_rl_stage,
        "verifiers": verifiers_stage,
    }


@hookimpl
def register_data_filters():
    from rufus_plugins.recipes.data.filters import FILTERS

    return FILTERS


@hookimpl
def register_judges():
    from rufus_plugins.recipes.tiny.judge_server import RuleServerJudge

    return {"rule_server": RuleServerJudge}
