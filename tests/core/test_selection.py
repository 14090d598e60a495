"""The section `rufus` of a config, as a plain mapping (tests/core/test_hydra.py composes it)."""

import pytest

from rufus_plugins import ConfigError, selection
from rufus_plugins.plugins import load


def test_a_config_without_our_section_selects_nothing():
    assert selection.check({}) == {} and selection.build({}, "reward") is None
    assert selection.name_of({"rufus": {"reward": None}}, "reward") is None


def test_the_section_has_every_key_and_null_is_off():
    assert set(selection.section({})) == {
        "group_filter",
        "length_penalty",
        "routing_replay",
        "mask_terminations",
        "response_budgets",
        "reward",
        "environment",
        "environment_pool",
        "samples",
    }
    off = selection.section({})
    assert off.pop("samples")["dir"] is None  # no folder, no kept rollouts
    assert set(off.values()) == {None}


def test_the_selected_reward_is_built_from_its_fields(good):
    config = {"rufus": {"reward": {"name": "short", "limit": 3}}}
    assert selection.build(config, "reward", load([good("short")])).limit == 3


@pytest.mark.parametrize(
    "section, said",
    [
        ("reward", r"rufus: holds 'reward'; it is a mapping"),
        ({"reward": "short"}, r"rufus\.reward holds 'short', but no `name`"),
        ({"reward": {"limit": 3}}, r"`rufus list reward` shows what exists"),
        ({"rewards": {}}, r"no rufus\.rewards\. Did you mean rufus\.reward\?"),
        ({"length_penalty": {"kind": "longest"}}, r"longest"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(section, said):
    with pytest.raises(ConfigError, match=said):
        selection.check({"rufus": section})


def test_an_unknown_key_of_an_environment_is_told_with_its_fields_and_the_rules_of_every_episode():
    with pytest.raises(ConfigError) as told:
        selection.check({"rufus": {"environment": {"name": "shell", "max_turn": 4}}})
    assert "Did you mean 'max_turns'?" in str(told.value)
    assert "command_timeout_s" in str(told.value) and "compaction" in str(told.value)
    # a rule that the environment declares as a field of its own is said once
    assert str(told.value).count("episode_timeout_s") == 1


def test_an_unknown_key_of_a_reward_is_told_without_the_rules_of_episodes(good):
    with pytest.raises(ConfigError) as told:
        selection.check({"rufus": {"reward": {"name": "short", "max_turn": 4}}}, load([good("short")]))
    assert "max_tool_calls" not in str(told.value)
