"""A plugin author's view, as the README shows it: twelve lines, run as they stand there."""

import asyncio
import re
from pathlib import Path

import rufus_plugins
from rufus_plugins.testing import check_plugin, check_reward, sample_trajectory

README = Path(__file__).parents[2] / "README.md"


def readme_plugin():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if "register_rewards" in block)


def test_the_readme_plugin_has_at_most_twelve_lines_of_code():
    assert len([line for line in readme_plugin().splitlines() if line.strip()]) <= 12


def test_the_readme_plugin_loads_keeps_the_contract_and_is_configured_by_its_fields(plugin):
    found = check_plugin(plugin(readme_plugin()).value)
    ((name, part),) = found.parts["reward"].items()
    assert part.config_fields == {"limit": 200}
    short, long = sample_trajectory("a b"), sample_trajectory("word " * 201)
    assert [s.value for s in check_reward(part.factory, [short, long])] == [1.0, 0.0]
    reward = found.build("reward", name, {"limit": 1})
    assert asyncio.run(reward(short)).value == 0.0


def test_the_package_exports_what_a_plugin_author_needs():
    assert {"Score", "hookimpl", "Task", "Trajectory", "Termination", "StepResult", "InfrastructureError"} <= set(
        rufus_plugins.__all__
    )
    assert all(hasattr(rufus_plugins, name) for name in rufus_plugins.__all__)
