"""Rewards: one file per reward. This module is the plugin that registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_rewards():
    from rufus_plugins.rewards.all_of import AllOf
    from rufus_plugins.rewards.by_data_source import ByDataSource
    from rufus_plugins.rewards.coding_tests import CodingTests
    from rufus_plugins.rewards.judge import JudgeReward
    from rufus_plugins.rewards.math_answer import MathAnswer
    from rufus_plugins.rewards.post_state import PostState
    from rufus_plugins.rewards.preference import Preference
    from rufus_plugins.rewards.progress_chain import ProgressChain
    from rufus_plugins.rewards.puzzle import Puzzle
    from rufus_plugins.rewards.rubrics import Rubrics
    from rufus_plugins.rewards.science_answer import ScienceAnswer
    from rufus_plugins.rewards.search_answer import SearchAnswer
    from rufus_plugins.rewards.task_tests import TaskTests
    from rufus_plugins.rewards.verifiers import VerifiersReward
    from rufus_plugins.rewards.weighted import Weighted

    return {
        "all_of": AllOf,
        "by_data_source": ByDataSource,
        "coding_tests": CodingTests,
        "judge": JudgeReward,
        "math_answer": MathAnswer,
        "post_state": PostState,
        "preference": Preference,
        "progress_chain": ProgressChain,
        "puzzle": Puzzle,
        "rubrics": Rubrics,
        "science_answer": ScienceAnswer,
        "search_answer": SearchAnswer,
        "task_tests": TaskTests,
        "verifiers": VerifiersReward,
        "weighted": Weighted,
    }


@hookimpl
def register_judges():
    from rufus_plugins.rewards.judges.openai_compatible import OpenAICompatibleJudge
    from rufus_plugins.rewards.judges.rule import RuleJudge

    return {"openai_compatible": OpenAICompatibleJudge, "rule": RuleJudge}
