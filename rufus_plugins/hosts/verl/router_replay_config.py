"""`rufus.routing_replay` (off | record | rollout) as verl's own keys, before a run starts.

One switch for every engine: FSDP gets ours, Megatron and VeOmni get verl's. Whatever cannot replay is refused:
verl 0.9.1 itself ignores the mode on FSDP without a word (verl#5392).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rufus_plugins.errors import ConfigError

MODES = {"off": "disabled", "record": "R2", "rollout": "R3"}
"""record: the old policy's choices, seen in compute_log_prob (R2). rollout: the rollout's choices (R3)."""

SECTIONS = {"fsdp": "fsdp_config", "fsdp2": "fsdp_config", "megatron": "megatron", "veomni": "veomni"}
"""Actor strategy -> where verl keeps the actor's engine config."""

ROLLOUTS = ("transformers", "vllm", "sglang")
"""Rollouts that answer the experts they chose."""


def apply(config: Any) -> None:
    """Sets verl's keys. Raises `ConfigError` for a combination in which nothing would be replayed."""
    mode = mode_of(config)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if mode == "disabled":
        _note_unused_routes(actor, rollout)
        return
    from omegaconf import open_dict

    if actor.strategy not in SECTIONS:
        raise ConfigError(
            f"rufus.routing_replay does not exist for actor_rollout_ref.actor.strategy={actor.strategy}. It exists for "
            f"{', '.join(SECTIONS)}; set one of them, or rufus.routing_replay=off"
        )
    if mode == "R3":
        _check_rollout(rollout)
    elif config.algorithm.get("rollout_correction", {}).get("bypass_mode", False):
        raise ConfigError(
            "rufus.routing_replay=record takes the routes of compute_log_prob, which "
            "algorithm.rollout_correction.bypass_mode=True leaves out: set it to False, or rufus.routing_replay=rollout"
        )
    if actor.strategy == "fsdp" and config.get("trainer", {}).get("device") == "cpu":
        raise ConfigError("FSDP1 refuses CPU parameters: set actor_rollout_ref.actor.strategy=fsdp2")
    _check_model(config.actor_rollout_ref.model, ours=actor.strategy.startswith("fsdp"))
    with open_dict(config):
        section = actor[SECTIONS[actor.strategy]]
        # fsdp.yaml has no such key; without the target it would stay a dict that nobody validates
        section.router_replay = {
            "_target_": "verl.workers.config.EngineRouterReplayConfig",
            "mode": mode,
            "record_file": None,
            "replay_file": None,
        }
        rollout.enable_rollout_routing_replay = mode == "R3"
        rollout.calculate_log_probs = True  # what replay is for shows in the difference to these


def mode_of(config: Any) -> str:
    """disabled, R2 or R3."""
    chosen = config.rufus.get("routing_replay")
    if chosen is None or chosen is False:  # YAML reads a bare `off` as false
        return "disabled"
    if not isinstance(chosen, str) or chosen not in MODES:
        raise ConfigError(f"rufus.routing_replay={chosen!r}: there are {', '.join(MODES)}")
    return MODES[chosen]


def _note_unused_routes(actor: Any, rollout: Any) -> None:
    """verl's own key makes the rollout answer routes; that alone replays nothing."""
    engine = actor.get(SECTIONS.get(actor.strategy, "")) or {}
    used = (engine.get("router_replay") or {}).get("mode", "disabled") != "disabled"
    if rollout.get("enable_rollout_routing_replay", False) and not used:
        print(
            "rufus: actor_rollout_ref.rollout.enable_rollout_routing_replay=True, but the actor replays nothing "
            "(verl's load-balance metrics read the routes): for replay set rufus.routing_replay=rollout",
            file=sys.stderr,
            flush=True,
        )


def _check_rollout(rollout: Any) -> None:
    if rollout.name not in ROLLOUTS:
        raise ConfigError(
            f"rufus.routing_replay=rollout: actor_rollout_ref.rollout.name={rollout.name} does not answer the experts "
            f"it chose. {', '.join(ROLLOUTS)} do; set one of them, or rufus.routing_replay=record"
        )


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Where a config of transformers says how many experts there are."""


def _check_model(model: Any, ours: bool) -> None:
    """Before anything starts, where the model is at hand: refuses a family by name that our engine cannot replay, and
    for verl's engines, which would replay nothing then, a model without experts."""
    offload = model.get("enable_activation_offload", False) and model.get("enable_gradient_checkpointing", True)
    if ours and offload:
        raise ConfigError(
            "rufus.routing_replay does not know the checkpoint of model.enable_activation_offload: set "
            "actor_rollout_ref.model.enable_activation_offload=False, or enable_gradient_checkpointing=False"
        )
    path = os.path.expanduser(str(model.get("hf_config_path") or model.path))
    if not os.path.isdir(path):
        return  # on HDFS, or a hub name: the engine checks it when it has loaded the model
    from transformers import AutoConfig

    from rufus_plugins.algos.routing_replay.families import adapter_of

    config = AutoConfig.from_pretrained(path, trust_remote_code=bool(model.get("trust_remote_code", False)))
    if ours:
        adapter_of(config)
    elif not any(getattr(config.get_text_config(), name, None) for name in EXPERTS):
        raise ConfigError(
            f"rufus.routing_replay: {config.model_type} ({path}) has no experts, so there is nothing to replay: set "
            "rufus.routing_replay=off"
        )
