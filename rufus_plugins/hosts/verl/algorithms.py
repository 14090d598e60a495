"""Our advantage estimators and policy losses under verl's own keys: `algorithm.adv_estimator`,
`actor_rollout_ref.actor.policy_loss.loss_mode`."""

from __future__ import annotations

from types import ModuleType

from rufus_plugins.plugins import Failure, Part, registry


def register(core_algos: ModuleType) -> None:
    """Registers every part of both kinds; a name that verl has already becomes a `Failure` of the part.

    verl itself overwrites losses silently (trainer/ppo/core_algos.py:53-67).
    """
    for kind, taken, enter in (
        ("policy_loss", core_algos.POLICY_LOSS_REGISTRY, core_algos.register_policy_loss),
        ("advantage_estimator", core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.register_adv_est),
    ):
        for name, part in list(registry().parts[kind].items()):
            if name in taken and taken[name] is not part.factory:
                registry().failures.append(_taken(part, taken[name]))
                del registry().parts[kind][name]
            else:
                enter(name)(part.factory)


def _taken(part: Part, other: object) -> Failure:
    return Failure(
        part.plugin,
        part.file,
        f"the name is verl's own: {getattr(other, '__module__', '?')}.{getattr(other, '__qualname__', other)}",
        "rename the part; verl's stock names keep their meaning",
        part.kind,
        part.name,
    )
