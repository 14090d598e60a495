"""Rewards for test runs, named by `reward.custom_reward_function`: an untrained model's answers are random text."""


def coin(data_source, solution_str, ground_truth, extra_info=None, **_):
    """1.0 for about half of the answers, the same for the same text."""
    return float(sum(map(ord, solution_str)) % 2)


def nothing(data_source, solution_str, ground_truth, extra_info=None, **_):
    return 0.0
