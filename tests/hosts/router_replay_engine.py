"""Run by test_router_replay.py under torch.distributed.run: verl's own FSDP2 engine with routing replay on CPU.

Writes rank{N}.json into its working folder.
"""

import json
import os
import pathlib
import sys

os.environ["VERL_PLATFORM"] = "cpu"

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("cpu:gloo")

from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import (  # noqa: E402
    EngineRouterReplayConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
)
from verl.workers.engine import EngineRegistry  # noqa: E402

from rufus_plugins.errors import RufusError  # noqa: E402

PATH = sys.argv[1]
LENGTHS = [12, 7, 9, 15, 5, 11]
RANK = dist.get_rank()


def engine(mode, **model):
    model_config = HFModelConfig(
        path=PATH,
        tokenizer_path=PATH,
        use_remove_padding=True,
        enable_gradient_checkpointing=True,
        override_config={"attn_implementation": "sdpa"},
        **model,
    )
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine_config = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        model_dtype="fp32",
        mixed_precision=fp32,
        router_replay=EngineRouterReplayConfig(mode=mode),
    )
    made = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=FSDPOptimizerConfig(lr=0.0),
        checkpoint_config=CheckpointConfig(),
    )
    made.initialize()
    return made


def nested(tensors):
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


def batch(packed=True, dynamic=False, routes=None, **more):
    ids = [torch.randint(3, 60, (n,), generator=torch.Generator().manual_seed(100 * RANK + n)) for n in LENGTHS]
    data = dict(
        input_ids=nested(ids),
        position_ids=nested([torch.arange(n) for n in LENGTHS]),
        loss_mask=nested([(torch.arange(n) >= 3).long() for n in LENGTHS]),
    )
    if routes is not None:
        data["routed_experts"] = routes
    settings = dict(
        temperature=1.0,
        use_dynamic_bsz=dynamic,
        micro_batch_size_per_gpu=2,
        max_token_len_per_gpu=24,
        use_remove_padding=packed,
        use_fused_kernels=False,
    )
    return tu.get_tensordict(data, non_tensor_dict={**settings, **more})


def infer(engine, **kwargs):
    with engine.eval_mode():
        return engine.infer_batch(batch(**kwargs))["model_output"]


def loss(model_output, data, dp_group=None):
    log_probs = model_output["log_probs"].values()
    return (log_probs * torch.linspace(0.5, 1, log_probs.numel())).sum() / 10, {}


def gradients(engine, **kwargs):
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch(**kwargs), loss)
        found = {name: p.grad.full_tensor() for name, p in engine.module.named_parameters() if p.grad is not None}
        engine.optimizer_zero_grad()
    return found


def largest(a, b):
    assert a.keys() == b.keys() and a
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def rotated(routes):
    """Other experts in every row that holds a choice."""
    return torch.nested.nested_tensor_from_jagged((routes.values() + 1) % 8, routes.offsets())


def error_of(function):
    try:
        function()
    except RufusError as error:
        return f"{type(error).__name__}: {error}"
    return None


def really_stock(mode="disabled"):
    """verl's own class, without ours in between: what other accelerators get."""
    import verl.workers.engine.fsdp.transformer_impl as transformer_impl

    from rufus_plugins.hosts.verl.cpu_engine import on_cpu_engine

    registry = EngineRegistry._engines["language_model"]["fsdp2"]
    ours = registry["cpu"]
    registry["cpu"] = on_cpu_engine(transformer_impl.FSDPEngineWithLMHead, transformer_impl)
    try:
        return engine(mode)
    finally:
        registry["cpu"] = ours


results = {}
stock, record, rollout = engine("disabled"), engine("R2"), engine("R3")
for packed in (True, False):
    for dynamic in (False, True):
        how = dict(packed=packed, dynamic=dynamic)
        native, native_gradients = infer(stock, **how), gradients(stock, **how)
        recorded = infer(record, **how)
        routes = recorded["routed_experts"]
        replayed = infer(rollout, routes=routes, **how)
        other = infer(rollout, routes=rotated(routes), **how)
        case = f"{'packed' if packed else 'padded'}-{'dynamic' if dynamic else 'static'}"
        results[case] = {
            "lengths": routes.offsets().diff().tolist(),
            "shape": list(routes.values().shape[1:]),
            "dtype": str(routes.dtype),
            "dense_layer": int(routes.values()[:, 0].abs().max()),
            "stock_has_routes": "routed_experts" in native,
            "record": float((recorded["log_probs"].values() - native["log_probs"].values()).abs().max()),
            "replay": float((replayed["log_probs"].values() - native["log_probs"].values()).abs().max()),
            "other": float((other["log_probs"].values() - native["log_probs"].values()).abs().max()),
            "gradients_R2": largest(gradients(record, routes=routes, **how), native_gradients),
            "gradients_R3": largest(gradients(rollout, routes=routes, **how), native_gradients),
            "gradients_other": largest(gradients(rollout, routes=rotated(routes), **how), native_gradients),
        }
        rollout._counts, rollout._bytes = None, 0

verls = really_stock()
results["off"] = {
    "log_probs": float((infer(verls)["log_probs"].values() - infer(stock)["log_probs"].values()).abs().max()),
    "gradients": largest(gradients(verls), gradients(stock)),
    "installed": hasattr(stock.module.model.layers[1].mlp.route_tokens_to_experts, "routers"),
}

with rollout.train_mode():
    first = rollout.train_batch(batch(routes=routes, update_lr_scheduler=False), loss)["metrics"]
    last = rollout.train_batch(batch(routes=routes, update_lr_scheduler=True), loss)["metrics"]
results["metrics"] = {
    "first": sorted(name for name in first if name.startswith("routing_replay")),
    "last": {name: value for name, value in last.items() if name.startswith("routing_replay")},
    "norms": [float(last["grad_norm"]), last["grad_norm_max"][0]],
}

values, offsets = routes.values(), routes.offsets()
empty = torch.nested.nested_tensor_from_jagged(values.clone(), offsets)
empty.values()[offsets[2] : offsets[3]] = 0
short = nested([rows[:-1] for rows in routes.unbind()])
flat = torch.nested.nested_tensor_from_jagged(values[:, 1:].contiguous(), offsets)
results["errors"] = {
    "missing": error_of(lambda: infer(rollout)),
    "missing_R2": error_of(lambda: gradients(record)),
    "empty": error_of(lambda: infer(rollout, routes=empty)),
    "short": error_of(lambda: infer(rollout, routes=short)),
    "layers": error_of(lambda: infer(rollout, routes=flat)),
    "offload": error_of(lambda: engine("R3", enable_activation_offload=True)),
    "elsewhere": error_of(lambda: really_stock("R3")),
}

lora = engine("R3", lora_rank=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
for name, parameter in lora.module.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(parameter, std=0.3)
native = infer(stock)["log_probs"].values()
actor = infer(lora, routes=rotated(routes))["log_probs"].values()
with lora.disable_adapter():
    reference = infer(lora, routes=rotated(routes))
results["lora"] = {
    "actor": float((actor - native).abs().max()),
    "reference": float((reference["log_probs"].values() - native).abs().max()),
    "reference_has_routes": "routed_experts" in reference,
}
# Ulysses shares a packed sequence among ranks (its attention needs a GPU, its slices do not)
from types import SimpleNamespace  # noqa: E402

from verl.utils.ulysses import set_ulysses_sequence_parallel_group  # noqa: E402

set_ulysses_sequence_parallel_group(dist.group.WORLD)
record.use_ulysses_sp = True
rows = torch.arange(59 * 3 * 2, dtype=torch.int16).reshape(59, 3, 2) % 8
mine = slice(30 * RANK, 30 * RANK + 30)  # 59 tokens and one of padding
whole = torch.cat([rows, rows.new_zeros((1, 3, 2))])
slices = record._packed(rows, torch.ones(59, dtype=bool), 1)
record._recorder = SimpleNamespace(tensor=lambda: whole[mine].to(torch.uint8))
gathered = record._recorded(batch(), {"pad_size": 1})
results["ulysses"] = {
    "rows": torch.equal(slices[0], whole[mine]),
    "present": slices[1].tolist() == [True] * (30 - RANK) + [False] * RANK,
    "recorded": torch.equal(gathered.values()[:, 1:], rows) and gathered.values().dtype == torch.int16,
}
# a file each: two ranks that print at once can share a line
pathlib.Path(f"rank{RANK}.json").write_text(json.dumps({"rank": RANK, **results}))
dist.destroy_process_group()
