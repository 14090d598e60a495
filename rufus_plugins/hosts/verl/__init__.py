"""The verl host: what `import verl` loads (entry point `verl.plugins`), in every process.

It only notes which of our functions belongs to which module of verl; each runs when verl itself imports that
module. A run that selects nothing of ours is not changed.
"""

import os
import sys
import traceback

import verl

from .import_hooks import when_imported

SUPPORTED = ("0.9.1",)
"""verl versions whose source was read for the patches here."""

_HERE = "rufus_plugins.hosts.verl"

HOOKS = (
    # module of verl                                     what runs once it is imported
    ("verl.plugin.platform", "cpu_platform:register"),
    ("verl.utils.device", "driver:wrap_auto_set_device"),
    ("verl.utils.config", "driver:wrap_validate_config"),
    ("verl.utils.distributed", "cpu_patches:use_gloo_alone"),
    ("verl.workers.config.model", "cpu_attention:register"),
    ("verl.workers.engine.fsdp.transformer_impl", "packed_rows:refuse_leaks"),
    ("verl.workers.engine.fsdp.transformer_impl", "router_replay:register"),
    ("verl.workers.engine.fsdp.transformer_impl", "cpu_engine:register"),
    ("verl.checkpoint_engine.base", "gloo_checkpoint_engine:register"),
    ("verl.workers.rollout.replica", "transformers_rollout:register_replica"),
    ("verl.workers.rollout.base", "transformers_rollout:register_adapter"),
    ("verl.experimental.reward_loop.reward_loop", "reward_workers:restart_workers"),
    ("verl.experimental.reward_loop.reward_loop", "reward_model_patch:add_extra_info"),
    ("verl.experimental.agent_loop.agent_loop", "reward_workers:type_lost_scores"),
    ("verl.experimental.agent_loop.agent_loop", "validating:tell_rollouts"),
    ("verl.experimental.agent_loop.agent_loop", "trajectories:drop_trajectories"),
    ("verl.trainer.ppo.core_algos", "algorithms:register"),
    ("verl.trainer.ppo.v1", "trainer:register"),
    ("verl.trainer.ppo.v1.utils", "advantages:hand_over_rollouts"),
    ("verl.trainer.ppo.v1.agent_loop_tq", "score_tags:tag_scores"),
    ("verl.trainer.ppo.v1.agent_loop_tq", "response_budget:limit_responses"),
    ("verl.workers.engine.base", "sequence_count:count_trained_sequences"),
)


def in_ray_worker() -> bool:
    """Whether this process is one of Ray's workers (not the process the user started)."""
    return os.path.basename(sys.argv[0] if sys.argv else "") == "default_worker.py"


def _install() -> None:
    if verl.__version__ not in SUPPORTED:
        if not in_ray_worker():
            print(
                f"rufus: verl {verl.__version__} is installed, but rufus-plugins knows verl {', '.join(SUPPORTED)} "
                f"only. Nothing of rufus-plugins is active in verl. Mend: pip install verl=={SUPPORTED[-1]}",
                file=sys.stderr,
                flush=True,
            )
        return
    for module, target in HOOKS:
        when_imported(module, f"{_HERE}.{target}")


try:
    _install()
except Exception:
    # verl logs this at DEBUG only (verl/__init__.py:74-76)
    print("rufus: rufus-plugins does not load into verl:", file=sys.stderr)
    traceback.print_exc()
    raise
