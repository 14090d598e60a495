"""Routing replay on a GPU: exactness and overhead with GLM-4.5-Air's layer shapes, a few layers, bf16.

`python bench/gpu_routing_replay.py [--layers 4] [--tokens 8192]`

Needs torch with CUDA, transformers and pluggy; rufus-plugins need not be installed. Under five minutes. Last line: one
JSON; exit 0 iff own routes replay exactly and the overhead is at most 5 %. `--dry` runs every line of it on a CPU, with
small layers and without the bar for the overhead: it shows that the script works, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

BAR = 1.05


AIR = dict(
    vocab_size=151552,
    hidden_size=4096,
    intermediate_size=10944,
    moe_intermediate_size=1408,
    num_attention_heads=96,
    num_key_value_heads=8,
    head_dim=128,
)
"""GLM-4.5-Air (zai-org/GLM-4.5-Air config.json)."""
SMALL = dict(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    moe_intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
"""For --dry. Ours."""


def build(layers: int, shape: dict[str, int], device: str):
    """128 experts, 8 active, one dense layer first."""
    import torch
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    config = Glm4MoeConfig(
        **shape,
        num_hidden_layers=layers + 1,
        attention_bias=True,
        n_routed_experts=128,
        num_experts_per_tok=8,
        n_shared_experts=1,
        first_k_dense_replace=1,
        norm_topk_prob=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Glm4MoeForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.train()
    model.set_experts_implementation("grouped_mm")
    return model


def gradients(model):
    """name -> gradient on the host (two copies do not fit beside the weights of many layers), and clears them."""
    found = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def main() -> int:
    import torch

    from rufus_plugins.algos.routing_replay.families import FAMILIES
    from rufus_plugins.algos.routing_replay.record import record
    from rufus_plugins.algos.routing_replay.replay import replay
    from rufus_plugins.algos.routing_replay.routers import install

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=4, help="MoE layers")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="on a CPU, with small layers: only whether the script works")
    options = parser.parse_args()
    device, shape = ("cpu", SMALL) if options.dry else ("cuda", AIR)
    if device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was checked (--dry runs the script on a CPU)", file=sys.stderr)
        return 2
    # index_add and scatter in the backward add in any order unless told otherwise: exactness needs one order
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = build(options.layers, shape, device)
    install(model, FAMILIES["glm4_moe"])  # by hand: rufus-plugins need not be installed here
    ids = torch.randint(0, shape["vocab_size"], (1, options.tokens), device=device)

    def forward():
        return model(input_ids=ids, use_cache=False).logits

    def step():
        logits = forward()
        torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:]).backward()
        return logits.detach()

    native = step()
    native_gradients = gradients(model)
    again = step()
    again_gradients = gradients(model)
    noise = max(float((native_gradients[n] - again_gradients[n]).abs().max()) for n in native_gradients)
    with torch.no_grad(), record(model) as recorder:
        forward()
    routes = recorder.routes()
    with replay(model, routes) as pass_:
        replayed = step()
    difference = float((replayed - native).abs().max())
    found = gradients(model)
    gradient = max(float((found[n] - native_gradients[n]).abs().max()) for n in found)
    model.gradient_checkpointing_enable()
    with replay(model, routes):
        checkpointed = step()
    found = gradients(model)
    checkpointed_gradient = max(float((found[n] - native_gradients[n]).abs().max()) for n in found)
    model.gradient_checkpointing_disable()
    with torch.no_grad(), replay(model, (routes.astype(int) + 1) % 128):
        moved = float((forward() - native).abs().max())
    print(f"native run to run: logits {float((again - native).abs().max())}, gradients {noise}")
    print(f"own routes: logits {difference}, gradients {gradient}, checkpointed {checkpointed_gradient}")
    print(f"match rate {pass_.match_rate()}, other routes move logits by {moved:.3f}")

    def finished() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    torch.use_deterministic_algorithms(False)
    times: dict[str, list[float]] = {"plain": [], "record": [], "replay": []}
    for _ in range(options.rounds):
        for name in times:
            model.zero_grad(set_to_none=True)
            start = finished()
            if name == "plain":
                step()
            elif name == "record":
                with record(model):
                    step()
            else:
                with replay(model, routes):
                    step()
            times[name].append(1e3 * (finished() - start))
    plain = statistics.median(times["plain"][1:])
    ratios = {name: statistics.median(times[name][1:]) / plain for name in ("record", "replay")}
    print(f"plain {plain:.1f} ms; record x {ratios['record']:.3f}, replay x {ratios['replay']:.3f} (bar {BAR})")
    exact = difference == 0.0 and pass_.match_rate() == 1.0 and torch.equal(checkpointed, native) and moved > 0
    # where the kernels themselves are not deterministic, gradients can only be as equal as two native runs are
    exact = exact and max(gradient, checkpointed_gradient) <= noise
    ok = exact and (options.dry or max(ratios.values()) <= BAR)
    line = {
        "bench": "gpu_routing_replay",
        "device": device,
        "ours": {"logits": difference, "gradients": gradient, "checkpointed": checkpointed_gradient, **ratios},
        "peer": {"plain_ms": plain, "run_to_run_gradients": noise},
        "ratio": max(ratios.values()),
        "bar": BAR,
        "ok": ok,
    }
    print(json.dumps(line))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
