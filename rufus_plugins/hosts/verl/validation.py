"""What verl itself checks before a run starts (trainer/main_ppo.py:139-160 of 0.9.1), without the run."""

from __future__ import annotations

from typing import Any

from rufus_plugins.errors import ConfigError


def validate(config: Any) -> None:
    """Raises `ConfigError` with verl's own words, or ours where our checks are part of verl's, for a config
    with which the run would not start. May set `trainer.device`, as the run would."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.reward import resolve_reward_manager_cls
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    try:
        auto_set_device(config)
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        resolve_reward_manager_cls(config)
        _known("algorithm.adv_estimator", config.algorithm.adv_estimator, _estimators())
        loss = config.actor_rollout_ref.actor.policy_loss.loss_mode
        _known("actor_rollout_ref.actor.policy_loss.loss_mode", loss, _losses())
    except (
        *(AssertionError, ValueError, TypeError, NotImplementedError, ImportError, AttributeError),
        *(HydraException, OmegaConfBaseException),
    ) as error:
        raise ConfigError(f"verl would refuse this config: {error}") from error


def _known(key: str, value: Any, known: set[str]) -> None:
    if str(getattr(value, "value", value)) not in known:
        raise ConfigError(f"{key}={value} does not exist. Known: {', '.join(sorted(known))}.")


def _estimators() -> set[str]:
    from verl.trainer.ppo import core_algos

    return {str(getattr(name, "value", name)) for name in core_algos.ADV_ESTIMATOR_REGISTRY}


def _losses() -> set[str]:
    from verl.trainer.ppo import core_algos

    return set(core_algos.POLICY_LOSS_REGISTRY)
