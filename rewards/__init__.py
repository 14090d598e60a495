"""Rewards: one file per reward. This module is the plugin that registers the built-in ones."""

from rufus_plugins import hookimpl


@hookimpl
def register_rewards():
    from rufus_plugins.rewards.coding_tests import CodingTests
    from rufus_plugins.rewards.rubrics import Rubrics

    return {
        "coding_tests": CodingTests,
        "rubrics": Rubrics,
    }
