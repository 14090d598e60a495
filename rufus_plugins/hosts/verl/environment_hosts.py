"""The environment hosts of a run (rollouts/pool.py): started by the trainer, joined by the workers that sample."""

from __future__ import annotations

from typing import Any

from rufus_plugins import selection
from rufus_plugins.rollouts import pool


def launch(config: Any) -> list[Any]:
    """The run's host actors; empty where `rufus.environment_pool` asks for none. They end with the caller's process."""
    if "rufus" not in config:
        return []
    rules = pool.pool_rules(selection.section(config)["environment_pool"])
    name = selection.name_of(config, "environment")
    if rules is None or name is None:
        return []
    return pool.launch(name, selection.fields_of(config, "environment"), rules, _run())


def join(rules: pool.PoolRules) -> pool.HostedEnvironment:
    """An environment of this run's hosts."""
    return pool.join(_run(), rules).environment()


def _run() -> str:
    """Ray's id of the job: the same in every actor of a run."""
    import ray

    return ray.get_runtime_context().get_job_id()
