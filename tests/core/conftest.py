"""Plugins written into a temporary directory, each a module of its own with a fresh name."""

import importlib.metadata
import itertools

import pytest

NUMBERS = itertools.count()

GOOD = '''
"""A plugin that works."""
from dataclasses import dataclass

from rufus_plugins import Score, hookimpl


@dataclass
class {cls}:
    """Scores by length."""

    limit: int = 10

    async def __call__(self, trajectory):
        return Score(float(len(trajectory.response) <= self.limit))


@hookimpl
def register_rewards():
    return {{"{name}": {cls}}}
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """`plugin(source, name)` -> the entry point of a module with that source."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source, name=None):
        number = next(NUMBERS)
        module = f"plugin_written_by_a_test_{number}"
        (tmp_path / f"{module}.py").write_text(source)
        return importlib.metadata.EntryPoint(name or f"plugin_{number}", module, "rufus")

    return write


@pytest.fixture
def good(plugin):
    """`good("short", cls="Short")` -> the entry point of a plugin with that reward."""

    def write(name="short", cls="Short", plugin_name=None):
        return plugin(GOOD.format(name=name, cls=cls), plugin_name)

    return write
