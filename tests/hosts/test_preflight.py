"""What ends a run before Ray starts, on configs composed as verl's command line composes them."""

import importlib.metadata
import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
from hydra import compose, initialize_config_module

from rufus_plugins import ConfigError, PluginError, Score, hookimpl
from rufus_plugins.errors import SandboxUnavailable
from rufus_plugins.hosts.verl import preflight as module
from rufus_plugins.plugins import load


@dataclass
class Plain:
    """A reward."""

    weight: float = 1.0

    async def __call__(self, trajectory):
        return Score(self.weight)


@dataclass
class NeedsSandbox(Plain):
    """A reward that runs code."""

    def preflight(self):
        raise SandboxUnavailable("no isolation on this machine: install bubblewrap")


class Rewards:
    @staticmethod
    @hookimpl
    def register_rewards():
        return {"plain": Plain, "needs_sandbox": NeedsSandbox}


class StockName:
    @staticmethod
    @hookimpl
    def register_policy_losses():
        return {"gspo": lambda **kwargs: None, "fresh_loss": lambda **kwargs: None}


class Broken:
    @staticmethod
    @hookimpl
    def register_rewards():
        raise ImportError("no module named nothing")


@pytest.fixture
def config(monkeypatch):
    """config(*overrides, plugins=...) -> composed, with a registry of built-ins and these plugins."""
    from rufus_plugins import plugins, selection
    from rufus_plugins.recipes import config as options

    def make(*overrides, extra=(Rewards,)):
        own = [importlib.metadata.EntryPoint(cls.__name__, "x", "rufus") for cls in extra]
        by_name = {cls.__name__: cls for cls in extra}
        stock = importlib.metadata.EntryPoint.load
        monkeypatch.setattr(
            importlib.metadata.EntryPoint, "load", lambda self: by_name[self.name] if self.value == "x" else stock(self)
        )
        found = load([*importlib.metadata.entry_points(group="rufus"), *own])
        for place in (plugins, selection, module):
            monkeypatch.setattr(place, "registry", lambda: found)
        options.publish(found)
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("rufus", ["actor_rollout_ref.model.path=/nowhere", *overrides])

    return make


def test_a_good_config_gets_our_trainer_of_the_same_mode(config):
    for mode in ("sync", "colocate_async"):
        c = config("reward=plain", "algorithm=gspo", "scale=tiny", f"trainer.v1.trainer_mode={mode}")
        module.preflight(c)
        assert c.trainer.v1.trainer_mode == f"rufus_{mode}"


def test_a_config_without_rufus_is_left_alone(config):
    with initialize_config_module("verl.trainer.config", version_base=None):
        c = compose("ppo_trainer", [])
    before = str(c)
    module.preflight(c)
    assert str(c) == before


def test_a_wrong_reward_field_says_which_there_are(config):
    with pytest.raises(ConfigError, match="weight"):
        module.preflight(config("reward=plain", "rufus.reward.wieght=2"))


def test_a_reward_of_a_broken_plugin_ends_the_run_with_the_plugins_own_trouble(config):
    c = config("reward=plain", "rufus.reward.name=from_broken", extra=(Rewards, Broken))
    with pytest.raises(PluginError, match="no module named nothing"):
        module.preflight(c)


def test_a_broken_plugin_that_is_not_selected_does_not_matter(config):
    module.preflight(config("reward=plain", extra=(Rewards, Broken)))


def test_untrusted_code_does_not_start_without_isolation(config):
    with pytest.raises(SandboxUnavailable, match="bubblewrap"):
        module.preflight(config("reward=needs_sandbox"))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ("rufus.environment.sandbox=locl", "no sandbox named 'locl'"),
        ("+rufus.environment.sandbox_config={disk: 1}", "no field 'disk'"),
        ("+rufus.environment.tool_format=glm5", "tool_format='glm5': nobody reads it"),
        ("actor_rollout_ref.rollout.multi_turn.format=glm5", "tool_format='glm5': nobody reads it"),
        ("rufus.environment.command_timeout_s=nan", "not nan"),
        ("+rufus.environment.max_turns=0", "max_turns=0"),
        ("+rufus.environment.compaction={by: magic}", "one of policy, openai_compatible, rule"),
    ],
)
def test_an_environment_that_could_not_play_ends_the_run(config, wrong, said):
    shell = ("algorithm=gspo", "reward=plain", "environment=shell")
    with pytest.raises(ConfigError, match=re.escape(said)):
        module.preflight(config(*shell, wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("rufus.environment.worlds=/nowhere", "no folder of AgentWorldModel's JSONL"),
        ("+rufus.environment.servers.a={command: [no-such-program]}", "servers.a: the MCP server's program 'no-such-"),
        ("+rufus.environment.servers.a={command: [sh], cwd: /nowhere}", "servers.a: cwd='/nowhere' is no folder"),
        ("+rufus.environment.servers.a={object: 'no.such:thing'}", "servers.a: the MCP server 'no.such:thing' does"),
    ],
)
def test_servers_and_worlds_that_are_not_there_end_the_run_but_where_hosts_have_them(config, wrong, said):
    mcp = ("algorithm=gspo", "reward=plain", "environment=mcp")
    with pytest.raises(ConfigError, match=re.escape(said)):
        module.preflight(config(*mcp, wrong))
    module.preflight(config(*mcp, wrong, "rufus.environment_pool={hosts: 1}"))


def test_a_pool_without_an_environment_is_refused(config):
    with pytest.raises(ConfigError, match="rufus.environment_pool is set, but no environment"):
        module.preflight(config("reward=plain", "rufus.environment_pool={hosts: 1}"))


def test_unknown_estimators_and_losses_are_named_with_those_that_exist(config):
    with pytest.raises(ConfigError, match=r"algorithm.adv_estimator=grppo.*grpo"):
        module.preflight(config("reward=plain", "algorithm.adv_estimator=grppo"))
    with pytest.raises(ConfigError, match=r"loss_mode=gspoo.*gspo"):
        module.preflight(config("reward=plain", "actor_rollout_ref.actor.policy_loss.loss_mode=gspoo"))


def test_a_reward_that_verls_manager_would_never_call_is_refused(config):
    with pytest.raises(ConfigError, match="reward=plain, which sets both"):
        module.preflight(config("reward=plain", "reward.reward_manager.name=naive"))


def test_the_legacy_trainer_is_refused(config):
    with pytest.raises(ConfigError, match="use_v1=True"):
        module.preflight(config("reward=plain", "trainer.use_v1=False"))


def test_a_loss_under_a_stock_name_is_refused_and_verls_own_stays(config, monkeypatch):
    from verl.trainer.ppo import core_algos

    from rufus_plugins.hosts.verl import algorithms

    chosen = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    c = config("reward=plain", "algorithm=gspo", chosen, extra=(Rewards, StockName))
    stock = core_algos.POLICY_LOSS_REGISTRY["gspo"]
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", dict(core_algos.POLICY_LOSS_REGISTRY))
    monkeypatch.setattr(algorithms, "registry", module.registry)
    algorithms.register(core_algos)
    assert core_algos.POLICY_LOSS_REGISTRY["gspo"] is stock
    assert "fresh_loss" in core_algos.POLICY_LOSS_REGISTRY
    with pytest.raises(PluginError, match=r"'StockName'.*'gspo'.*verl's own: verl.trainer.ppo.core_algos"):
        module.preflight(c)


def test_our_estimators_and_losses_are_verls_to_select():
    from verl.trainer.ppo import core_algos

    from rufus_plugins.plugins import registry

    for name in registry().parts["advantage_estimator"]:
        assert name in core_algos.ADV_ESTIMATOR_REGISTRY
    for name in registry().parts["policy_loss"]:
        assert name in core_algos.POLICY_LOSS_REGISTRY


def test_verls_command_line_ends_at_once_and_non_zero(tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "verl.trainer.main_ppo", "--config-name", "rufus", "algorithm=gspo", "scale=tiny",
            "algorithm.adv_estimator=nothing_like_it", f"actor_rollout_ref.model.path={tmp_path}",
        ],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "algorithm.adv_estimator=nothing_like_it" in done.stderr
    assert "ray init kwargs" not in done.stdout + done.stderr
