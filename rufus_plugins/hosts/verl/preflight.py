"""Checks a config that selects something of ours, before Ray starts: a wrong name ends the run at once."""

from __future__ import annotations

from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.plugins import registry
from rufus_plugins.recipes.config import AGENT_LOOP

from . import router_replay_config

PREFIX = "rufus_"


def preflight(config: Any) -> None:
    """Raises `ConfigError` or `PluginError` for what cannot run; does nothing for configs without `rufus`.

    It also puts our trainer into the place of the stock one of the same mode (`trainer.v1.trainer_mode`): only
    that one leaves infrastructure faults out of the loss.
    """
    if "rufus" not in config:
        return
    from rufus_plugins import selection

    from .algorithm_steps import check_rules

    chosen = selection.check(config)
    hosted = selection.section(config)["environment_pool"] is not None
    if hosted and "environment" not in chosen:
        raise ConfigError("rufus.environment_pool is set, but no environment is selected: add environment=<name>")
    for kind in chosen:
        if hosted and kind == "environment":  # the hosts may be other machines than this one: they check it there
            continue
        part = selection.build(config, kind)
        if hasattr(part, "preflight"):  # for example: no sandbox on this machine, so no untrusted code
            part.preflight()
    _check_algorithms(config)
    check_rules(config)
    _check_reward_manager(config, chosen.get("reward"))
    _check_agent_loop(config, chosen.get("environment"))
    router_replay_config.apply(config)
    _adopt_trainer(config)


def _check_algorithms(config: Any) -> None:
    from verl.trainer.ppo import core_algos

    actor = config.actor_rollout_ref.actor
    for key, kind, name, known in (
        ("algorithm.adv_estimator", "advantage_estimator", config.algorithm.adv_estimator, "ADV_ESTIMATOR_REGISTRY"),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            "policy_loss",
            actor.policy_loss.loss_mode,
            "POLICY_LOSS_REGISTRY",
        ),
    ):
        failed = [f for f in registry().failures if f.kind == kind and f.name == name]
        names = sorted(str(getattr(n, "value", n)) for n in getattr(core_algos, known))
        if failed:
            registry().get(kind, name)  # raises what is wrong with it
        if str(getattr(name, "value", name)) not in names:
            try:
                registry().get(kind, name)
            except ConfigError as error:
                raise ConfigError(f"{key}={name}: {error} verl has {', '.join(names)}.") from None


def _check_reward_manager(config: Any, reward: str | None) -> None:
    manager = config.reward.reward_manager
    if reward is not None and manager.name != "RufusRewardManager":
        raise ConfigError(
            f"rufus.reward.name={reward} is set, but reward.reward_manager.name={manager.name} would never call it: "
            f"select the reward by reward={reward}, which sets both"
        )


def _check_agent_loop(config: Any, environment: str | None) -> None:
    loop = config.actor_rollout_ref.rollout.agent.default_agent_loop
    if (environment is not None) == (loop == AGENT_LOOP):
        if environment is not None:
            from rufus_plugins import selection

            from .chat_tokens import asked_format

            asked_format(config, selection.rules_of(config))
        return
    if environment is not None:
        raise ConfigError(
            f"rufus.environment.name={environment} is set, but the agent loop is another one "
            f"(actor_rollout_ref.rollout.agent.default_agent_loop={loop}) and would never use it: select the "
            f"environment by environment={environment}, which sets both"
        )
    raise ConfigError(
        f"actor_rollout_ref.rollout.agent.default_agent_loop={loop} plays an environment, but none is selected: "
        "add environment=<name>; `rufus list environment` shows what exists"
    )


def _adopt_trainer(config: Any) -> None:
    from omegaconf import open_dict

    if not config.trainer.use_v1:
        raise ConfigError("rufus-plugins works with verl's V1 trainer: set trainer.use_v1=True")
    mode = config.trainer.v1.trainer_mode
    if mode in ("sync", "colocate_async", "separate_async"):
        with open_dict(config):
            config.trainer.v1.trainer_mode = PREFIX + mode
