"""The environment hosts of a run (rollouts/pool.py): started by the trainer, joined by the workers that sample."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from rufus_plugins import selection
from rufus_plugins.errors import ConfigError
from rufus_plugins.rollouts import pool


def launch(config: Any) -> list[Any]:
    """The run's host actors; empty where `rufus.environment_pool` asks for none. They end with the caller's process."""
    if "rufus" not in config:
        return []
    rules = pool.pool_rules(selection.section(config)["environment_pool"])
    name = selection.name_of(config, "environment")
    if rules is None or name is None:
        return []
    check_room(config, rules)
    return pool.launch(name, selection.fields_of(config, "environment"), rules, _run())


def check_room(config: Any, rules: pool.PoolRules, cpus: float | None = None) -> None:
    """Raises `ConfigError` where verl would wait for CPUs that the hosts have taken. `cpus`: Ray's, None asks it."""
    import ray

    total = ray.cluster_resources().get("CPU", 0.0) if cpus is None else cpus
    wanted, verl = rules.hosts * rules.cpus, reserved_by_verl(config)
    if wanted + verl > total:
        raise ConfigError(
            f"rufus.environment_pool: {rules.hosts} hosts of {rules.cpus:g} CPUs take {wanted:g} of the {total:g} that "
            f"Ray counts, and verl itself reserves {verl:g}: fewer hosts, fewer cpus each, or more machines"
        )


def reserved_by_verl(config: Any) -> float:
    """CPUs that verl 0.9.1 asks Ray for: 3 per trainer process (single_controller/ray/base.py:192), one per worker
    that samples or scores, per storage unit of the transfer queue, and one for the driver."""
    rollout = config.actor_rollout_ref.rollout
    processes = config.trainer.nnodes * config.trainer.n_gpus_per_node
    processes += (rollout.get("nnodes") or 0) * (rollout.get("n_gpus_per_node") or 0)
    storage = OmegaConf.select(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units", default=0)
    return 3 * processes + rollout.agent.num_workers + config.reward.num_workers + (storage or 0) + 1


def join(rules: pool.PoolRules) -> pool.HostedEnvironment:
    """An environment of this run's hosts."""
    return pool.join(_run(), rules).environment()


def _run() -> str:
    """Ray's id of the job: the same in every actor of a run."""
    import ray

    return ray.get_runtime_context().get_job_id()
