"""The registry: what a broken plugin does to the others (nothing) and to the run that selects it (ends it)."""

import importlib.metadata
import io

import pytest

from rufus_plugins import ConfigError, PluginError
from rufus_plugins.hookspecs import KINDS
from rufus_plugins.plugins import load

HOOK = "from rufus_plugins import hookimpl\n@hookimpl\ndef register_rewards():\n    return {}\n"


def test_a_good_plugin_registers_its_parts_with_their_fields_and_docs(good):
    part = load([good("short", plugin_name="lengths")]).get("reward", "short")
    assert (part.name, part.plugin, part.doc, part.config_fields) == (
        "short",
        "lengths",
        "Scores by length.",
        {"limit": 10},
    )
    assert "plugin_written_by_a_test" in part.file and part.file.rpartition(":")[2].isdigit()


def test_a_part_without_a_docstring_of_its_own_is_described_by_its_module(plugin):
    source = '"""Counts words.\n\nMore."""\n' + HOOK.format("{'words': A}")
    source += (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    n: int = 1\n    async def __call__(self, t): ...\n"
    )
    assert load([plugin(source)]).get("reward", "words").doc == "Counts words."


@pytest.mark.parametrize(
    "source, said",
    [
        ("import a_module_that_nobody_has", "ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("this is no Python", "SyntaxError"),
        ("raise RuntimeError('no licence file')", "no licence file"),
    ],
)
def test_a_plugin_that_fails_to_import_is_reported_and_leaves_the_others_alone(plugin, good, source, said):
    broken = plugin(source, "broken")
    found = load([broken, good("short")])
    assert found.get("reward", "short").name == "short"
    (failure,) = found.failures
    text = str(failure)
    assert failure.plugin == "broken" and broken.value in failure.where
    assert said in text and "mend:" in text and f"{broken.value}.py" in text


def test_an_unselected_broken_plugin_only_warns_and_a_missing_name_ends_with_its_traceback(plugin, good):
    found = load([plugin("import a_module_that_nobody_has", "broken"), good("short")])
    warned = io.StringIO()
    found.warn(warned)
    assert "plugin 'broken'" in warned.getvalue() and "a_module_that_nobody_has" in warned.getvalue()
    assert found.build("reward", "short", {"limit": 3}).limit == 3
    with pytest.raises(PluginError) as error:
        found.build("reward", "from_the_broken_one")
    assert "from_the_broken_one" in str(error.value) and "a_module_that_nobody_has" in str(error.value)


def test_a_warning_is_printed_once_per_process(plugin, capsys):
    found = load([plugin("1/0", "broken")])
    found.warn_once()
    found.warn_once()
    assert capsys.readouterr().err.count("plugin 'broken'") == 1


def test_a_name_given_by_two_plugins_names_both_and_belongs_to_neither(good):
    found = load([good("short", plugin_name="first"), good("short", plugin_name="second"), good("long")])
    with pytest.raises(PluginError) as error:
        found.get("reward", "short")
    text = str(error.value)
    assert "'first'" in text and "'second'" in text and text.count("plugin_written_by_a_test") >= 2
    assert "rename one of them" in text
    assert found.get("reward", "long").name == "long"


def test_a_plugin_name_used_by_two_distributions_is_refused_for_the_second(good):
    found = load([good("short", plugin_name="same"), good("long", plugin_name="same")])
    (failure,) = found.failures
    assert failure.plugin == "same" and "is taken by" in failure.problem and "rename the entry point" in failure.mend
    assert [*found.parts["reward"]] == ["short"]


def test_the_same_entry_point_seen_twice_counts_once(good):
    entry = good("short")
    found = load([entry, entry])
    assert not found.failures and [*found.parts["reward"]] == ["short"]


@pytest.mark.parametrize(
    "returned, said",
    [
        ("['short']", "returned list, not a mapping"),
        ("None", "returned NoneType"),
        ("{'short': 3}", "which cannot be called"),
        ("{'not a name': object}", "is no identifier"),
        ("{3: object}", "is no identifier"),
        ("{'short': type('A', (), {})}", "has no async method __call__"),
        ("{'short': type('A', (), {'__call__': lambda self, t: None})}", "is not async"),
        ("{'reward': object}", "verl's own option"),
    ],
)
def test_a_hook_that_returns_the_wrong_shape_names_plugin_file_and_mend(plugin, returned, said):
    found = load([plugin(HOOK.format(returned), "shapeless")])
    (failure,) = found.failures
    assert not found.parts["reward"]
    assert failure.plugin == "shapeless" and said in failure.problem and failure.mend
    assert "plugin_written_by_a_test" in failure.where


def test_a_part_of_the_wrong_shape_ends_the_run_that_selects_it_and_spares_its_neighbours(plugin):
    source = """
from rufus_plugins import Score, hookimpl
class Right:
    async def __call__(self, trajectory):
        return Score(1.0)
class Wrong:
    def __call__(self, trajectory):
        return Score(1.0)
@hookimpl
def register_rewards():
    return {"right": Right, "wrong": Wrong}
"""
    found = load([plugin(source, "half")])
    assert found.get("reward", "right").plugin == "half"
    with pytest.raises(PluginError, match=r"(?s)plugin 'half': reward 'wrong'.*async def __call__"):
        found.get("reward", "wrong")


@pytest.mark.parametrize(
    ("kind", "returned", "said"),
    [
        ("reward", "3", "a int without async call"),
        ("reward", "lambda trajectory: 1.0", "a function whose __call__ is not async"),
        ("environment", "object()", "a object without async start"),
        ("data_filter", "'keep'", "a str without call"),
    ],
)
def test_what_a_factory_function_returns_is_looked_at_before_a_run_uses_it(plugin, kind, returned, said):
    source = f"from rufus_plugins import hookimpl\n@hookimpl\ndef register_{kind}s():\n"
    found = load([plugin(source + f"    return {{'short': lambda: {returned}}}\n", "made")])
    with pytest.raises(PluginError, match=f"(?s)plugin 'made': {kind} 'short': its factory returned {said}.*by_a_test"):
        found.build(kind, "short")


def test_a_factory_function_may_return_an_async_function_or_a_part(plugin):
    source = HOOK.format("{'one': lambda: score, 'two': lambda: A()}")
    source += "async def score(trajectory): ...\nclass A:\n    async def __call__(self, trajectory): ...\n"
    found = load([plugin(source)])
    assert callable(found.build("reward", "one")) and callable(found.build("reward", "two"))


def test_fields_on_a_class_that_is_no_dataclass_are_pointed_out(plugin):
    source = HOOK.format("{'short': A}") + "class A:\n    limit: int = 3\n    async def __call__(self, t): ...\n"
    (failure,) = load([plugin(source)]).failures
    assert "no dataclass" in failure.problem and "@dataclasses.dataclass" in failure.mend


def test_an_async_function_is_no_reward_factory(plugin):
    (failure,) = load([plugin(HOOK.format("{'short': f}") + "async def f(trajectory): ...\n")]).failures
    assert "not a factory" in failure.problem and "write a class" in failure.mend


def test_a_field_called_name_is_refused_because_it_is_the_part_itself(plugin):
    source = "from dataclasses import dataclass\n" + HOOK.format("{'short': A}")
    source += "@dataclass\nclass A:\n    name: str = ''\n    async def __call__(self, t): ...\n"
    (failure,) = load([plugin(source)]).failures
    assert "a field called name" in failure.problem


def test_an_unknown_hook_name_is_refused_with_the_list_of_hooks(plugin):
    source = "from rufus_plugins import hookimpl\n@hookimpl\ndef register_reward():\n    return {}\n"
    (failure,) = load([plugin(source, "typo")]).failures
    assert "register_reward" in failure.problem
    assert all(hook in failure.mend for hook in KINDS.values())


def test_a_hook_with_arguments_is_refused(plugin):
    source = "from rufus_plugins import hookimpl\n@hookimpl\ndef register_rewards(config):\n    return {}\n"
    (failure,) = load([plugin(source)]).failures
    assert "config" in failure.problem and "without arguments" in failure.mend


@pytest.mark.parametrize("statement", ["raise KeyError('model.txt')", "import sys; sys.exit()"])
def test_a_hook_that_raises_costs_only_its_own_parts(plugin, statement):
    source = f"""
from rufus_plugins import hookimpl
@hookimpl
def register_rewards():
    {statement}
@hookimpl
def register_judges():
    return {{"fine": Judge}}
class Judge:
    async def __call__(self, question, candidate, reference=None): ...
"""
    found = load([plugin(source, "half")])
    assert found.get("judge", "fine").plugin == "half"
    (failure,) = found.failures
    assert failure.kind == "reward" and "register_rewards() raised" in failure.problem and failure.trace
    with pytest.raises(PluginError, match="register_rewards"):
        found.get("reward", "anything")
    with pytest.raises(ConfigError):
        found.get("judge", "anything")


def test_a_plugin_without_hooks_is_told_about_the_decorator(plugin):
    (failure,) = load([plugin("def register_rewards():\n    return {}\n")]).failures
    assert failure.problem == "registers nothing" and "@hookimpl" in failure.mend


def test_an_entry_point_to_nothing_is_a_broken_plugin():
    (failure,) = load([importlib.metadata.EntryPoint("ghost", "no_such_module_at_all:thing", "rufus")]).failures
    assert failure.plugin == "ghost" and "no_such_module_at_all" in str(failure)


def test_a_wrong_name_says_what_exists_and_what_was_meant(good):
    found = load([good("short"), good("long", "Long")])
    with pytest.raises(ConfigError, match=r"no reward named 'shrt'\. Did you mean 'short'\? Known: long, short"):
        found.get("reward", "shrt")


def test_a_wrong_field_says_which_fields_exist(good):
    with pytest.raises(ConfigError, match=r"no field 'limt'\. Did you mean 'limit'\? Its fields: limit"):
        load([good("short")]).build("reward", "short", {"limt": 3})


def test_a_value_of_the_wrong_type_is_refused_by_name(good):
    with pytest.raises(ConfigError, match=r"rufus\.reward\.limit='ten': int is needed"):
        load([good("short")]).build("reward", "short", {"limit": "ten"})


def test_a_missing_required_field_says_how_to_set_it(plugin):
    source = "from dataclasses import dataclass\n" + HOOK.format("{'short': A}")
    source += "@dataclass\nclass A:\n    limit: int\n    async def __call__(self, t): ...\n"
    with pytest.raises(ConfigError, match=r"needs limit: set rufus\.reward\.limit=\.\.\."):
        load([plugin(source)]).build("reward", "short")


def test_a_value_that_the_part_itself_refuses_becomes_a_config_error(plugin):
    source = "from dataclasses import dataclass\n" + HOOK.format("{'short': A}")
    source += "@dataclass\nclass A:\n    limit: int = 1\n    async def __call__(self, t): ...\n"
    source += (
        "    def __post_init__(self):\n        if self.limit < 0:\n            raise ValueError('limit is negative')\n"
    )
    with pytest.raises(ConfigError, match="limit is negative"):
        load([plugin(source)]).build("reward", "short", {"limit": -1})


def test_every_kind_has_a_hook_that_a_plugin_can_implement(plugin):
    stage = "Stage('s', 'x')"
    source = "from rufus_plugins import Stage, hookimpl\nclass P:\n    tools = ()\n"
    for method in ("__call__", "start", "step", "finish", "close", "exec", "read_file", "write_file"):
        source += f"    async def {method}(self, *args): ...\n"
    for kind, hook in KINDS.items():
        source += f"@hookimpl\ndef {hook}():\n    return {{'mine': {stage if kind == 'stage' else 'P'}}}\n"
    found = load([plugin(source)])
    assert not found.failures
    assert {kind: [*parts] for kind, parts in found.parts.items()} == {kind: ["mine"] for kind in KINDS}
