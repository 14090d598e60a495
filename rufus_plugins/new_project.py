"""The files that `rufus new` writes. `$name`, `$Class`, `$package`, `$kind`, `$hook` are filled in."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

from . import __version__
from .hookspecs import KINDS


@dataclass(frozen=True)
class PartTemplate:
    """One kind of part: the module, its test, and how a run selects it."""

    module: str
    test: str
    select: str


def files(kind: str, name: str, package: str) -> dict[str, str]:
    """Relative path -> text of the project."""
    part = PARTS[kind]
    words = {
        "name": name,
        "Class": "".join(word.title() for word in name.split("_")),
        "package": package,
        "project": package.replace("_", "-"),
        "kind": kind,
        "hook": KINDS[kind],
        "version": __version__,
    }
    words["select"] = Template(part.select).substitute(words)
    texts = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        f"{package}/__init__.py": part.module,
        f"tests/test_{name}.py": part.test,
    }
    return {path: Template(text).substitute(words).lstrip("\n") for path, text in texts.items()}


_PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
description = "The $kind $name, a plugin for rufus-plugins"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["rufus-plugins>=$version"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points.rufus]
$name = "$package"

[tool.setuptools]
packages = ["$package"]

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""

_README = """
# $project

The $kind `$name`, a plugin for verl through rufus-plugins.

    pip install -e ".[test]"
    pytest
    rufus list $kind

It is used by:

    $select
"""

_REWARD = PartTemplate(
    module='''
"""The reward `$name`: 1 if the last line of the response is the gold string, else 0."""

from dataclasses import dataclass

from rufus_plugins import Score, hookimpl


@dataclass
class $Class:
    """Last line equals `ground_truth`."""

    ignore_case: bool = False
    """Whether upper and lower case are the same (rufus.reward.ignore_case)."""

    async def __call__(self, trajectory):
        lines = trajectory.response.strip().splitlines() or [""]
        given, gold = lines[-1].strip(), str(trajectory.task.ground_truth)
        if self.ignore_case:
            given, gold = given.casefold(), gold.casefold()
        return Score(float(given == gold), {"answered": bool(given)})


@hookimpl
def register_rewards():
    return {"$name": $Class}
''',
    test="""
import $package
from rufus_plugins.testing import check_plugin, check_reward, sample_trajectory


def test_the_plugin_registers_the_reward():
    assert "$name" in check_plugin($package).parts["reward"]


def test_only_the_gold_string_on_the_last_line_scores():
    right = sample_trajectory("I add the two.\\n42", ground_truth="42")
    wrong = sample_trajectory("42\\nor maybe 41", ground_truth="42")
    assert [s.value for s in check_reward($package.$Class, [right, wrong])] == [1.0, 0.0]


def test_case_counts_unless_the_config_says_otherwise():
    answer = sample_trajectory("paris", ground_truth="Paris")
    assert check_reward($package.$Class, [answer])[0].value == 0.0
    assert check_reward($package.$Class, [answer], {"ignore_case": True})[0].value == 1.0
""",
    select="python -m verl.trainer.main_ppo --config-name rufus algorithm=gspo reward=$name ...",
)

_ENVIRONMENT = PartTemplate(
    module='''
"""The environment `$name`: the model guesses a number, the environment says higher or lower."""

from dataclasses import dataclass, field

from rufus_plugins import StepResult, Termination, hookimpl


@dataclass
class $Class:
    """Guess the number in `ground_truth`."""

    max_turns: int = 10
    """Guesses allowed (rufus.environment.max_turns)."""
    tools: tuple = field(default=(), init=False)

    async def start(self, task):
        self._target, self._turns, self._found = int(task.ground_truth), 0, False
        return list(task.prompt)

    async def step(self, message):
        self._turns += 1
        text = str(message.get("content") or "").strip()
        if text.lstrip("-").isdecimal():
            guess = int(text)
            self._found = guess == self._target
            answer = "yes" if self._found else "higher" if guess < self._target else "lower"
        else:
            answer = "a number, please"
        if self._found:
            return StepResult(done=True, termination=Termination.ANSWERED)
        if self._turns >= self.max_turns:
            return StepResult(done=True, termination=Termination.MAX_TURNS)
        return StepResult([{"role": "user", "content": answer}])

    async def finish(self):
        return {"found": self._found, "turns": self._turns}

    async def close(self):
        pass


@hookimpl
def register_environments():
    return {"$name": $Class}
''',
    test="""
import $package
from rufus_plugins import Termination
from rufus_plugins.testing import check_environment, check_plugin, sample_task


def test_the_plugin_registers_the_environment():
    assert "$name" in check_plugin($package).parts["environment"]


def test_it_answers_higher_and_lower_until_the_number_is_found():
    steps = check_environment($package.$Class, sample_task("7"), ["5", "9", "7"])
    assert [m["content"] for s in steps for m in s.messages] == ["higher", "lower"]
    assert steps[-1].termination is Termination.ANSWERED


def test_the_turn_limit_ends_the_episode():
    steps = check_environment($package.$Class, sample_task("7"), ["x"] * 5, {"max_turns": 2})
    assert len(steps) == 2 and steps[-1].termination is Termination.MAX_TURNS
""",
    select="python -m verl.trainer.main_ppo --config-name rufus algorithm=gspo environment=$name ...",
)

_DATA_FILTER = PartTemplate(
    module='''
"""The data filter `$name`: drops tasks whose prompt is too long."""

from dataclasses import dataclass

from rufus_plugins import hookimpl


@dataclass
class $Class:
    """Keeps prompts of at most `max_characters`."""

    max_characters: int = 8000

    def __call__(self, task):
        length = sum(len(str(message.get("content") or "")) for message in task.prompt)
        return (True, "") if length <= self.max_characters else (False, "prompt_too_long")


@hookimpl
def register_data_filters():
    return {"$name": $Class}
''',
    test="""
import $package
from rufus_plugins.testing import check_data_filter, check_plugin, sample_task


def test_the_plugin_registers_the_filter():
    assert "$name" in check_plugin($package).parts["data_filter"]


def test_only_long_prompts_are_dropped():
    tasks = [sample_task(prompt="abc"), sample_task(prompt="abcd")]
    verdicts = check_data_filter($package.$Class, tasks, {"max_characters": 3})
    assert verdicts == [(True, ""), (False, "prompt_too_long")]
""",
    select="rufus_plugins.plugins.registry().build('data_filter', '$name')",
)

_ADVANTAGE = PartTemplate(
    module='''
"""The advantage estimator `$name`: reward minus the mean of its group, clipped."""

from rufus_plugins import hookimpl


def $name(token_level_rewards, response_mask, index, **kwargs):
    """r - mean(group), clipped to [-1, 1]. Tensors are `[batch, response_length]`, `index` names each row's group."""
    import torch

    rewards = token_level_rewards.sum(-1)
    advantages = torch.zeros_like(rewards)
    for group in set(index):
        rows = torch.tensor([i for i, g in enumerate(index) if g == group])
        if len(rows) > 1:  # a group of one has no baseline
            advantages[rows] = (rewards[rows] - rewards[rows].mean()).clamp(-1, 1)
    advantages = advantages.unsqueeze(-1) * response_mask
    return advantages, advantages


@hookimpl
def register_advantage_estimators():
    return {"$name": $name}
''',
    test="""
import pytest

import $package
from rufus_plugins.testing import check_advantage_estimator, check_plugin


def test_the_plugin_registers_the_estimator():
    assert "$name" in check_plugin($package).parts["advantage_estimator"]


def test_a_tied_group_gets_no_advantage_and_a_mixed_one_gets_its_distance_from_the_mean():
    advantages, _ = check_advantage_estimator($package.$name)  # groups (1, 0) and (1, 1)
    assert advantages[:, 0].tolist() == pytest.approx([0.5, -0.5, 0.0, 0.0])
""",
    select="python -m verl.trainer.main_ppo --config-name rufus algorithm=gspo algorithm.adv_estimator=$name ...",
)

PARTS = {
    "reward": _REWARD,
    "environment": _ENVIRONMENT,
    "data_filter": _DATA_FILTER,
    "advantage_estimator": _ADVANTAGE,
}
"""Kinds that `rufus new` can write."""
