"""What routing replay costs: time of record and replay, bytes per token, and the cost of joining turns.

`python -m bench.routing_replay [--quick]`

Time: forward + backward of a GLM-4.5-shaped model (fp32, one thread), plain against recorded against replayed,
interleaved, in CPU time of this process, so that other processes do not count. The peer is the plain model.
Joining: routes of a rollout of T turns, against joining anew at every turn as verl 0.9.1 does
(workers/rollout/llm_server.py:308-313).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np

MOE_LAYERS, TOP_K, EXPERTS = 4, 8, 64
BAR_OVERHEAD = 1.05
BAR_JOIN = 12.0


def overhead(rounds: int, tokens: int) -> dict[str, float]:
    """Medians over rounds of the time against the plain run of the same round."""
    import torch
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    from rufus_plugins.algos.routing_replay.record import record
    from rufus_plugins.algos.routing_replay.replay import replay

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Glm4MoeConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=MOE_LAYERS + 1,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        n_shared_experts=1,
        first_k_dense_replace=1,
    )
    model = Glm4MoeForCausalLM(config).train()
    ids = torch.randint(0, 2048, (1, tokens))
    with torch.no_grad(), record(model) as recorder:
        expected = model(input_ids=ids, use_cache=False).logits
    routes = recorder.routes()

    def step() -> torch.Tensor:
        logits = model(input_ids=ids, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:]).backward()
        return logits

    def plain() -> None:
        step()

    def recorded() -> None:
        with record(model) as one:
            step()
        one.routes()

    def replayed() -> None:
        with replay(model, routes) as pass_:
            logits = step()
        if pass_.match_rate() != 1.0 or not torch.equal(logits, expected):
            raise SystemExit("replay of own routes is not exact")

    seconds: dict[str, list[float]] = {"plain": [], "record": [], "replay": []}
    for _ in range(rounds):
        for name, run in (("plain", plain), ("record", recorded), ("replay", replayed)):
            model.zero_grad(set_to_none=True)
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    found = {"plain_s": statistics.median(seconds["plain"])}
    for name in ("record", "replay"):
        ratios = [a / b for a, b in zip(seconds[name], seconds["plain"], strict=True)]
        found[name] = statistics.median(ratios[1:] or ratios)  # the first round warms up
    found["bytes_per_token"] = routes.nbytes / routes.shape[0]
    return found


def joining(turns: int, tokens_per_turn: int, rollouts: int, repeats: int) -> tuple[float, float]:
    """Seconds for one rollout of `turns` turns: ours, and joining anew at every turn.

    `rollouts` of them are joined and held at once, so that rollouts of different lengths can be compared at the
    same amount of memory: caches and page faults would otherwise decide.
    """
    from rufus_plugins.algos.routing_replay.storage import RouteBuffer

    # as an engine answers: each turn the whole context, GLM-4.5-Air's 45 MoE layers
    shape = (rollouts, tokens_per_turn * turns, 45, TOP_K)
    routes = np.random.default_rng(0).integers(0, 128, shape, np.uint8)
    ends = range(tokens_per_turn, tokens_per_turn * turns + 1, tokens_per_turn)

    def ours() -> list[np.ndarray]:
        joined = []
        for one in routes:
            buffer = RouteBuffer(45, TOP_K, 128)
            for end in ends:
                buffer.add(one[:end])
            joined.append(buffer.join())
        return joined

    def anew() -> list[np.ndarray]:
        joined = []
        for one in routes:
            whole = np.empty((0, 45, TOP_K), np.uint8)
            for end in ends:
                whole = np.concatenate([whole, one[len(whole) : end]])
            joined.append(whole)
        return joined

    if not all(np.array_equal(a, b) for a, b in zip(ours(), anew(), strict=True)):
        raise SystemExit("the two ways of joining disagree")
    return _least(ours, repeats) / rollouts, _least(anew, repeats) / rollouts


def _least(function, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under a minute")
    quick = parser.parse_args().quick
    cost = overhead(rounds=7 if quick else 21, tokens=1024 if quick else 2048)
    print(f"plain forward+backward {cost['plain_s']:.3f} s of CPU time")
    print(f"record {cost['record']:.3f} x plain, replay {cost['replay']:.3f} x plain (bar {BAR_OVERHEAD})")
    print(f"{cost['bytes_per_token']:.0f} bytes per token, {TOP_K} per MoE layer")
    ten, ten_anew = joining(10, 512, rollouts=10, repeats=15)
    hundred, hundred_anew = joining(100, 512, rollouts=1, repeats=15)
    growth, growth_anew = hundred / ten, hundred_anew / ten_anew
    print(f"joining 10 turns {ten * 1e3:.2f} ms, 100 turns {hundred * 1e3:.2f} ms: x {growth:.1f} (bar {BAR_JOIN})")
    print(f"anew at each turn: {ten_anew * 1e3:.2f} ms, {hundred_anew * 1e3:.2f} ms: x {growth_anew:.1f}")
    worst = max(cost["record"], cost["replay"])
    ok = worst <= BAR_OVERHEAD and cost["bytes_per_token"] == TOP_K * MOE_LAYERS and growth < BAR_JOIN
    print(
        json.dumps(
            {
                "bench": "routing_replay",
                "ours": {
                    "record": round(cost["record"], 4),
                    "replay": round(cost["replay"], 4),
                    "bytes_per_token_and_layer": cost["bytes_per_token"] / MOE_LAYERS,
                    "join_growth": round(growth, 2),
                },
                "peer": {"plain_s": round(cost["plain_s"], 4), "join_growth": round(growth_anew, 2)},
                "ratio": round(worst, 4),
                "bar": {"ratio": BAR_OVERHEAD, "bytes_per_token_and_layer": TOP_K, "join_growth": BAR_JOIN},
                "ok": ok,
            }
        )
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
