"""How much memory a GPU needs for a config of verl, before anything starts: weights, gradients, optimizer, activations
of the longest micro-batch, the engine's weights and KV cache, and the routes on the host.

An estimate to refuse what cannot fit: allocator waste, communication buffers and CUDA graphs are a fixed reserve.
Imports neither torch nor verl.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError

GB = 1e9
H200_GB = 141.0
"""Memory of the GPU that both papers used."""
RESERVE_GB = 6.0
"""CUDA context, communication buffers, allocator waste. Ours."""

MODELS = Path(__file__).resolve().parents[2] / "recipes" / "models"

BYTES = {"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "float32": 4, "fp32": 4, "fp8": 1, "fp8_e4m3": 1, "int8": 1}


@dataclass(frozen=True)
class Shape:
    """What of a decoder's config decides memory."""

    layers: int
    dense_layers: int
    hidden: int
    dense_ffn: int
    expert_ffn: int
    experts: int
    top_k: int
    shared_experts: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def dense(self) -> int:
        """Parameters outside routed experts, embeddings included; norms and biases (below 0.1 %) are left out."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        ffn = 3 * self.hidden * self.dense_ffn * self.dense_layers
        moe = self.moe_layers * self.hidden * (self.experts + 3 * self.shared_experts * self.expert_ffn)
        return self.layers * attention + ffn + moe + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def routed(self) -> int:
        """Parameters of the routed experts."""
        return 3 * self.hidden * self.expert_ffn * self.experts * self.moe_layers

    @property
    def parameters(self) -> int:
        return self.dense + self.routed

    def kv_bytes(self, bytes_each: int) -> int:
        """Of one token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_each


def shape_of(model: str) -> Shape | None:
    """Of a directory with a `config.json`, or of a hub name that `recipes/models` describes; None for another."""
    file = Path(model).expanduser() / "config.json"
    if file.is_file():
        return _shape(json.loads(file.read_text(encoding="utf-8")))
    for known in sorted(MODELS.glob("*.json")):
        config = json.loads(known.read_text(encoding="utf-8"))
        if model in config["names"]:
            return _shape(config)
    return None


def _shape(config: Mapping[str, Any]) -> Shape | None:
    config = config.get("text_config") or config

    def first(*names: str, default: Any = None) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), default)

    layers, hidden, heads = (first(n) for n in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    if not layers or not hidden or not heads:
        return None
    experts = first("n_routed_experts", "num_experts", "num_local_experts", default=0)
    dense_layers = first("first_k_dense_replace", default=0) if experts else layers
    return Shape(
        layers=layers,
        dense_layers=dense_layers,
        hidden=hidden,
        dense_ffn=first("intermediate_size", default=0),
        expert_ffn=first("moe_intermediate_size", "intermediate_size", default=0) if experts else 0,
        experts=experts,
        top_k=first("num_experts_per_tok", default=0) if experts else 0,
        shared_experts=first("n_shared_experts", default=0) if experts else 0,
        heads=heads,
        kv_heads=first("num_key_value_heads", default=heads),
        head_dim=first("head_dim", default=hidden // heads),
        vocabulary=first("vocab_size", default=0),
        tied=bool(first("tie_word_embeddings", default=False)),
    )


@dataclass
class Estimate:
    """Gigabytes per GPU, by phase and part; `problems` says what does not fit, and what to change."""

    shape: Shape
    gpus: int
    gpu_gb: float
    training: dict[str, float] = field(default_factory=dict)
    rollout: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def estimate(config: Any, gpu_gb: float = H200_GB, shape: Shape | None = None) -> Estimate | None:
    """For a composed config of verl's PPO trainer; None where the model's shape is not known or there is no GPU.

    Raises `ConfigError` for parallel sizes that do not divide the GPUs, experts or heads.
    """
    model = config.actor_rollout_ref.model.path
    shape = shape or shape_of(str(model))
    if shape is None or config.trainer.get("device") == "cpu":
        return None
    gpus = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    result = Estimate(shape, gpus, gpu_gb)
    actor = config.actor_rollout_ref.actor
    if actor.strategy == "megatron":
        _megatron(actor, shape, gpus, result)
    else:
        _fsdp(actor, shape, gpus, result)
    _micro_batch(config, result)
    _rollout(config, shape, result)
    _routes(config, shape, result)
    for phase, parts in (("training", result.training), ("rollout", result.rollout)):
        total = sum(parts.values())
        if total > gpu_gb:
            largest = max(parts, key=parts.get)
            result.problems.append(
                f"{phase} needs about {total:.0f} GB per GPU of {gpu_gb:.0f}; the largest part is {largest} "
                f"({parts[largest]:.0f} GB)"
            )
    return result


def _megatron(actor: Any, shape: Shape, gpus: int, result: Estimate) -> None:
    megatron = actor.megatron
    tp, pp, cp = (
        int(megatron.get(f"{kind}_parallel_size") or 1) for kind in ("tensor_model", "pipeline_model", "context")
    )
    ep = int(megatron.get("expert_model_parallel_size") or 1)
    etp = int(megatron.get("expert_tensor_parallel_size") or tp)
    _divides("tensor x pipeline x context parallel", tp * pp * cp, "GPUs", gpus)
    _divides("expert x expert-tensor x pipeline parallel", ep * etp * pp, "GPUs", gpus)
    if shape.experts:
        _divides("expert_model_parallel_size", ep, "experts", shape.experts)
    _divides("tensor_model_parallel_size", tp, "attention heads", shape.heads)
    data, expert_data = gpus // (tp * pp), gpus // (ep * etp * pp)  # context parallel ranks share the optimizer too
    dense, routed = shape.dense / (tp * pp), shape.routed / (ep * etp * pp)
    _states(actor.megatron, result.training, dense + routed, dense / data + routed / expert_data)
    _activations(shape, int(actor.ppo_max_token_len_per_gpu), tp, pp, result.training)


def _states(engine: Any, parts: dict[str, float], held: float, sharded: float) -> None:
    """bf16 weights, fp32 gradients, and the optimizer's fp32 weights and two moments (distributed optimizer)."""
    parts["weights"] = 2 * held / GB
    parts["gradients"] = 4 * held / GB
    cpu = (engine.get("override_optimizer_config") or {}).get("optimizer_cpu_offload")
    parts["optimizer"] = 0.0 if cpu else 12 * sharded / GB


def _fsdp(actor: Any, shape: Shape, gpus: int, result: Estimate) -> None:
    engine = actor.fsdp_config
    shards = int(engine.get("fsdp_size") or -1)
    shards = gpus if shards < 1 else shards
    _divides(*_sequence_parallel(actor), "GPUs", gpus)
    own = BYTES.get(str(engine.get("model_dtype") or "fp32"), 4)
    held = shape.parameters / shards
    layer = max(
        (shape.routed / max(shape.moe_layers, 1)) + (shape.dense / shape.layers), shape.vocabulary * shape.hidden
    )
    result.training["weights"] = own * held / GB
    result.training["gathered layers"] = 2 * 2 * layer / GB  # the one that computes and the next, in bf16
    result.training["gradients"] = own * held / GB
    offloaded = bool(engine.get("offload_policy"))
    result.training["optimizer"] = 0.0 if offloaded else 2 * own * held / GB
    _activations(shape, int(actor.ppo_max_token_len_per_gpu), 1, 1, result.training)


def _activations(shape: Shape, tokens: int, tp: int, pp: int, parts: dict[str, float]) -> None:
    """Full recomputation: one bf16 hidden state per layer and token, one layer's own (about 34 hidden sizes, arXiv
    2205.05198 eq. 1, with the experts' copies of a token), and the logits (bf16, fp32, and their gradient)."""
    layers = shape.layers / pp
    width = max(34 * shape.hidden, 2 * (shape.top_k + shape.shared_experts) * 3 * shape.expert_ffn)
    kept = 2 * tokens * shape.hidden * layers / tp
    one = tokens * (width + 2 * shape.top_k * shape.hidden) / tp
    parts["activations"] = (kept + one) / GB
    parts["logits"] = tokens * shape.vocabulary * (2 + 4 + 4) / tp / GB
    parts["reserve"] = RESERVE_GB


def _rollout(config: Any, shape: Shape, result: Estimate) -> None:
    rollout = config.actor_rollout_ref.rollout
    tp = int(rollout.tensor_model_parallel_size or 1)
    ep = int(rollout.get("expert_parallel_size") or 1)
    _divides("rollout.tensor_model_parallel_size", tp, "attention heads", shape.heads)
    quantised = str(rollout.get("quantization") or "")
    each = BYTES.get(quantised, 2)
    weights = (2 * shape.dense / tp + each * shape.routed / max(tp, ep)) / GB
    share = float(rollout.gpu_memory_utilization) * result.gpu_gb
    kv_dtype = str((rollout.get("engine_kwargs") or {}).get(str(rollout.name), {}).get("kv_cache_dtype") or "bfloat16")
    kv = shape.kv_bytes(BYTES.get(kv_dtype, 2)) / min(tp, shape.kv_heads)
    result.rollout["weights"] = weights
    result.rollout["kv_cache"] = max(share - weights, 0.0)
    result.rollout["reserve"] = RESERVE_GB
    longest = _length(config)
    room = (share - weights) * GB
    fits = int(room // (kv * longest)) if room > 0 else 0
    result.notes.append(
        f"the longest sequence is {longest:,} tokens: {kv * longest / GB:.1f} GB of KV cache on each of {tp} GPUs; "
        f"{fits} of them run at once in an engine"
    )
    if fits < 1:
        result.problems.append(
            f"the engine's {share:.0f} GB (rollout.gpu_memory_utilization={rollout.gpu_memory_utilization}) hold "
            f"{weights:.0f} GB of weights and no sequence of {longest:,} tokens: raise "
            "rollout.tensor_model_parallel_size"
        )


def _micro_batch(config: Any, result: Estimate) -> None:
    """The longest sequence has to fit into one micro-batch, which several GPUs may hold together."""
    actor, longest = config.actor_rollout_ref.actor, _length(config)
    budget, (key, parallel) = int(actor.ppo_max_token_len_per_gpu), _sequence_parallel(actor)
    result.notes.append(f"a micro-batch holds {budget * parallel:,} tokens over {parallel} GPUs ({key})")
    if longest > budget * parallel:
        result.problems.append(
            f"a sequence of {longest:,} tokens (data.max_prompt_length + data.max_response_length) does not fit into a "
            f"micro-batch of {budget:,} tokens x {parallel} GPUs: raise actor.ppo_max_token_len_per_gpu or the context "
            "(Megatron) or Ulysses (FSDP) parallel size"
        )


def _sequence_parallel(actor: Any) -> tuple[str, int]:
    """(key, GPUs that share a sequence)"""
    if actor.strategy == "megatron":
        return "context_parallel_size", int(actor.megatron.get("context_parallel_size") or 1)
    key = "ulysses_sequence_parallel_size"
    return key, int(actor.fsdp_config.get(key) or actor.get(key) or 1)


def _length(config: Any) -> int:
    return int(config.data.max_prompt_length) + int(config.data.max_response_length)


def _routes(config: Any, shape: Shape, result: Estimate) -> None:
    if not shape.experts or str((config.get("rufus") or {}).get("routing_replay", "off")) == "off":
        return
    rollouts = int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n)
    own = shape.moe_layers * shape.top_k * (1 if shape.experts <= 256 else 2)
    host = shape.layers * shape.top_k * 2  # verl carries int16 for every decoder layer
    longest = host * _length(config)
    result.notes.append(
        f"routes: {own} bytes a token recorded, {host} in verl's layout; at most {longest / 1e6:.0f} MB a sequence, "
        f"{longest * rollouts / GB:,.0f} GB of host memory for {rollouts:,} of the longest"
    )


def _divides(key: str, size: int, what: str, count: int) -> None:
    if size < 1 or count % size:
        raise ConfigError(f"{key}={size} does not divide {count} {what}")
