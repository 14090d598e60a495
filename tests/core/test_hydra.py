"""The option groups on verl's own configs, composed as verl's command line composes them."""

import importlib.util
import os
import pickle
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import OmegaConf

from rufus_plugins import ConfigError, PluginError, selection
from rufus_plugins.plugins import load, registry
from rufus_plugins.recipes import config as options

VERL = os.path.join(importlib.util.find_spec("verl").submodule_search_locations[0], "trainer", "config")

REWARD = """
from dataclasses import dataclass, field
from pathlib import Path

from rufus_plugins import Score, Stage, hookimpl


@dataclass
class Graded:
    limit: int = 10
    share: float = 0.5
    tags: tuple[str, ...] = ("a", "b")
    place: Path = Path("/tmp")
    made: object = field(default_factory=object)

    async def __call__(self, trajectory):
        return Score(1.0)


@dataclass
class Needy:
    gold: str

    async def __call__(self, trajectory):
        return Score(1.0)


class World:
    tools = ()

    def __init__(self, rooms: int = 3): ...
    async def start(self, task): ...
    async def step(self, message): ...
    async def finish(self): ...
    async def close(self): ...


@hookimpl
def register_rewards():
    return {"graded": Graded, "needy": Needy, "shapeless": 3}


@hookimpl
def register_environments():
    return {"world": World}


def broken_stage():
    raise KeyError("stage.txt")


@hookimpl
def register_stages():
    return {"a_stage": Stage("a_stage", "algorithm/gspo"), "broken_stage": broken_stage}
"""


@pytest.fixture
def found(plugin, capsys):
    Plugins.instance()  # puts Hydra's own configs into the store
    store = ConfigStore.instance()
    before = pickle.loads(pickle.dumps(store.repo))
    found = load([plugin(REWARD, "third_party")])
    options.publish(found)
    yield found
    store.repo = before


def composed(name, *overrides, directory=VERL):
    with initialize_config_dir(str(directory), version_base=None):
        return compose(name, overrides=list(overrides))


GSPO = ("gspo", "gspo_exact")
"""verl's loss, and ours of the same formula (tests/algos/test_gspo.py shows where they differ)."""

MINE = "defaults:\n- ppo_trainer\n- algorithm: gspo\n- override reward@reward: {reward}\n- _self_\n"

FORMS = {
    "our primary config": ("rufus", "algorithm=gspo", "reward=graded"),
    "verl's primary config": ("ppo_trainer", "+algorithm=gspo", "reward=graded"),
    "verl's Megatron config": ("ppo_megatron_trainer", "+algorithm=gspo", "reward=graded"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_reward_without_any_yaml_and_gspo_are_selected_on(found, form):
    check_gspo_with_graded(composed(*FORMS[form], "rufus.reward.limit=7"), found)


def test_a_users_own_yaml_selects_them_even_where_config_path_replaces_verls_directory(found, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE.format(reward="graded") + "rufus: {reward: {limit: 7}}\n")
    check_gspo_with_graded(composed("mine", directory=tmp_path), found)


def check_gspo_with_graded(config, found):
    reward = selection.build(config, "reward", found)
    assert type(reward).__name__ == "Graded" and reward.limit == 7 and reward.tags == ("a", "b")
    assert config.reward.reward_manager.source == "importlib"
    assert config.reward.reward_manager.name == "RufusRewardManager"
    # verl's own reward defaults are still there
    assert config.reward.num_workers == 8 and config.reward.reward_model.enable is False
    assert config.reward.sandbox_fusion.max_concurrent == 64
    actor = config.actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode in GSPO and actor.loss_agg_mode == "seq-mean-token-mean"
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (3e-4, 4e-4)
    assert not actor.use_kl_loss and not config.algorithm.use_kl_in_reward and actor.entropy_coeff == 0
    assert config.algorithm.adv_estimator in ("grpo", "rufus_grpo", "group_normalised")
    assert "rollout_is" in config.algorithm.rollout_correction  # verl's own group of the same name


def test_every_registered_reward_is_an_option_with_its_fields():
    for name, part in registry().parts["reward"].items():
        chosen = composed("ppo_trainer", f"reward={name}").rufus.reward
        assert chosen.name == name
        plain = {k for k, v in part.config_fields.items() if v is None or isinstance(v, (bool, int, float, str))}
        assert plain <= set(chosen) <= {"name", *part.config_fields}


def test_without_a_selection_verls_config_is_verls_own(found):
    config = composed("ppo_trainer")
    assert "rufus" not in config and config.reward.reward_manager.name == "naive"
    assert selection.check(config, found) == {}


def test_our_primary_config_without_a_selection_keeps_verls_reward_and_algorithm(found):
    config = composed("rufus")
    stock = composed("ppo_trainer", "actor_rollout_ref.actor.use_dynamic_bsz=true")
    for key in ("reward", "algorithm", "actor_rollout_ref", "data"):
        assert OmegaConf.to_container(config[key]) == OmegaConf.to_container(stock[key])
    assert selection.check(config, found) == {}


def test_every_key_of_ours_exists_and_the_order_of_the_groups_does_not_matter(found):
    for overrides in (["+algorithm=gspo", "reward=graded"], ["reward=graded", "+algorithm=gspo"], ["reward=graded"]):
        config = composed("ppo_trainer", *overrides, "rufus.group_filter.low=0.1", "rufus.length_penalty=null")
        assert {"group_filter", "length_penalty", "routing_replay", "mask_terminations", "response_budgets"} <= set(
            config.rufus
        )
        assert config.rufus.reward.name == "graded" and config.rufus.group_filter.low == 0.1


def test_the_other_algorithms_are_what_they_say(found):
    mean_only, grpo = composed("rufus", "algorithm=mean_only"), composed("rufus", "algorithm=grpo")
    assert mean_only.actor_rollout_ref.actor.policy_loss.loss_mode in GSPO
    assert mean_only.actor_rollout_ref.rollout.n == 16
    assert grpo.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla"


def test_an_environment_is_selected_with_its_fields(found):
    config = composed("rufus", "environment=world", "rufus.environment.rooms=5")
    assert config.rufus.environment == {"name": "world", "rooms": 5}
    assert selection.check(config, found) == {"environment": "world"}
    assert composed("ppo_trainer", "+environment=world").rufus.environment.name == "world"


def test_a_stage_is_an_option_that_includes_its_config_and_a_broken_one_warns(found, capsys):
    assert composed("rufus", "stage=a_stage").actor_rollout_ref.actor.policy_loss.loss_mode in GSPO
    options.publish(found)
    assert "stage 'broken_stage' gives no Stage: KeyError" in capsys.readouterr().err


def test_a_wrong_reward_name_lists_the_options(found):
    with pytest.raises(HydraException, match=r"(?s)Could not find 'reward/grated'.*Available options.*graded"):
        composed("rufus", "reward=grated")


@pytest.mark.parametrize(
    "override, said",
    [
        ("rufus.reward.limt=3", r"no field 'limt'\. Did you mean 'limit'\? Its fields: limit, share"),
        ("rufus.reward.limit=few", r"rufus\.reward\.limit='few': int is needed"),
        ("rufus.reward.tags=3", r"rufus\.reward\.tags=3: a list is needed"),
        ("rufus.group_fliter.low=0", r"no rufus\.group_fliter\. Did you mean rufus\.group_filter\?"),
        ("rufus.group_filter.lwo=0", r"rufus\.group_filter has no lwo"),
        ("rufus.mask_terminations=[never]", "never"),
    ],
)
def test_a_wrong_field_or_value_says_what_exists(found, override, said):
    with pytest.raises(ConfigError, match=said):
        selection.check(composed("rufus", "reward=graded", override), found)


def test_a_required_field_is_asked_for(found):
    with pytest.raises(ConfigError, match=r"set rufus\.reward\.gold="):
        selection.check(composed("rufus", "reward=needy"), found)
    assert selection.check(composed("rufus", "reward=needy", "rufus.reward.gold=x"), found) == {"reward": "needy"}


def test_fields_without_a_selected_reward_say_how_to_select_one(found):
    with pytest.raises(ConfigError, match=r"Select a part by reward=<name>"):
        selection.check(composed("rufus", "rufus.reward.limit=3"), found)


def test_selecting_a_part_of_a_broken_plugin_names_plugin_part_file_and_mend(found):
    with pytest.raises(PluginError) as error:
        selection.check(composed("rufus", "reward=shapeless"), found)
    text = str(error.value)
    assert "plugin 'third_party': reward 'shapeless'" in text and "where:" in text and "mend:" in text
    assert "plugin_written_by_a_test" in text


def test_a_composed_config_travels_between_processes(found):
    config = composed("rufus", "algorithm=gspo", "reward=graded", "rufus.reward.share=0.25")
    copy = pickle.loads(pickle.dumps(config))
    assert selection.build(copy, "reward", found).share == 0.25
    assert OmegaConf.to_container(copy.rufus) == OmegaConf.to_container(config.rufus)


def test_verls_own_loader_finds_our_reward_manager_and_its_stock_one(found):
    from verl.trainer.ppo.reward import resolve_reward_manager_cls

    assert resolve_reward_manager_cls(composed("rufus", "reward=graded")).__name__ == "RufusRewardManager"
    assert resolve_reward_manager_cls(composed("rufus")).__name__ == "NaiveRewardManager"


def test_a_hydra_program_that_has_nothing_to_do_with_verl_is_left_alone(tmp_path):
    (tmp_path / "app.yaml").write_text("a: 1\n")
    (tmp_path / "app.py").write_text(
        "import sys, hydra\n"
        "@hydra.main(config_path='.', config_name='app', version_base=None)\n"
        "def main(config):\n"
        "    print(config, sorted({'rufus_plugins', 'verl', 'torch'} & set(sys.modules)))\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "app.py", "hydra.run.dir=."], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "{'a': 1} []", done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--config-name", "rufus", "algorithm=gspo", "reward=coding_tests"),
        ("+algorithm=gspo", "reward=coding_tests"),
        ("--config-dir", ".", "--config-name", "mine"),
    ],
)
def test_verls_own_command_line_knows_the_options(flags, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE.format(reward="coding_tests"))
    done = subprocess.run(
        [sys.executable, "-m", "verl.trainer.main_ppo", *flags, "rufus.reward.max_tests=7", "--cfg", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    config = OmegaConf.create(done.stdout[done.stdout.index("actor_rollout_ref:") :])
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode in GSPO
    assert config.rufus.reward.name == "coding_tests" and config.rufus.reward.max_tests == 7
