"""Advantages of a whole RL batch, ours against verl's own estimators, on the same padded batch.

    python -m bench.advantages [--quick]

3,072 rollouts in groups of 16, a tenth of them cut into 2 to 16 segments, 50 million response tokens with long-tailed
lengths. Both sides go through verl's `compute_advantage_for_multi_trajectories`, as a step does. The peer is verl's
`grpo`, the one estimator of verl that knows segments; `grpo_vectorized`, which counts each segment as a rollout of
its own, is shown too. Bars: at most 1.1 times the time of `grpo`, and a peak of extra memory of one copy of the
advantages, which is the result itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time

BAR = 1.1


def batch(rollouts: int, group: int, tokens: int, longest: int, seed: int = 0):
    """(verl's padded DataProto, keys): rewards 0/1 on the last token, a tenth of the tokens are tool output."""
    import numpy as np
    import torch
    from verl.protocol import DataProto

    rng = np.random.default_rng(seed)
    segments = np.where(rng.random(rollouts) < 0.1, rng.integers(2, 17, rollouts), 1)
    rollout = np.repeat(np.arange(rollouts), segments)
    first = np.cumsum(segments) - segments
    keys = [f"u{r // group}_{r % group}_{row - first[r]}" for row, r in enumerate(rollout)]
    rows = len(keys)
    lengths = np.minimum(rng.lognormal(0, 1.0, rows), longest)
    for _ in range(30):  # scale to the total, under the cap
        lengths = np.clip(lengths * tokens / lengths.sum(), 1, longest)
    lengths = lengths.astype(np.int64)
    reward = rng.integers(0, 2, rollouts)[rollout]
    mask = torch.zeros(rows, int(lengths.max()), dtype=torch.int64)
    scores = torch.zeros(rows, int(lengths.max()), dtype=torch.float32)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        mask[row, length // 3 : length // 3 + length // 10] = 0
        scores[row, length - 1] = float(reward[row])
    order = rng.permutation(rows)  # verl balances the batch over ranks
    keys = [keys[i] for i in order]
    uid = np.array([key.split("_")[0] for key in keys], dtype=object)
    data = DataProto.from_dict(
        {"response_mask": mask[order], "token_level_scores": scores[order]}, non_tensors={"uid": uid}
    )
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    return data, keys, int(lengths.sum())


def peak_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def measure(data, keys, name: str, repeats: int) -> tuple[float, float]:
    """(best seconds, bytes of peak memory above the resting batch)."""
    from verl.trainer.ppo.v1 import trainer_base

    best, extra = float("inf"), 0.0
    for run in range(repeats + 1):
        for key in ("advantages", "returns"):
            if key in data.batch.keys():
                del data.batch[key]
        gc.collect()
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")  # the peak starts from here
        before = peak_kib()
        began = time.perf_counter()
        trainer_base.compute_advantage_for_multi_trajectories(data, batch_keys=keys, adv_estimator=name, config={})
        if run:  # the first one warms up
            best = min(best, time.perf_counter() - began)
            extra = max(extra, (peak_kib() - before) * 1024)
    return best, extra


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the batch")
    quick = parser.parse_args().quick
    import torch

    torch.set_num_threads(1)
    rollouts, tokens, longest = (304, 5_000_000, 32_768) if quick else (3_072, 50_000_000, 32_768)
    data, keys, total = batch(rollouts, 16, tokens, longest)
    copy = data.batch["token_level_scores"].numel() * 4
    print(
        f"{rollouts} rollouts, {len(keys)} segments, {total / 1e6:.1f}M response tokens, padded to "
        f"{data.batch['response_mask'].shape[1]}; one copy of the advantages is {copy / 2**20:.0f} MiB"
    )
    repeats = 3
    found = {}
    for name in ("grpo", "grpo_vectorized", "group_normalised", "mean_only"):
        found[name] = measure(data, keys, name, repeats)
        if name == "grpo":
            stock = data.batch["advantages"]
        if name == "group_normalised":
            torch.testing.assert_close(data.batch["advantages"], stock, rtol=1e-3, atol=1e-4)
            del stock
        print(f"{name:>18}: {found[name][0]:.3f} s, extra memory {found[name][1] / copy:.2f} copies", flush=True)
    ours, peer = found["group_normalised"], found["grpo"]
    slowest = max(found["group_normalised"][0], found["mean_only"][0])
    most = max(found["group_normalised"][1], found["mean_only"][1]) / copy
    ok = slowest / peer[0] <= BAR and (most - 1) * copy <= 16 * 2**20  # the result, and room for noise
    print(
        json.dumps(
            {
                "bench": "advantages",
                "ours": round(ours[0], 3),
                "peer": round(peer[0], 3),
                "ratio": round(slowest / peer[0], 3),
                "bar": BAR,
                "ok": bool(ok),
                "extra_copies": round(most, 2),
                "peer_extra_copies": round(peer[1] / copy, 2),
                "rows_only_peer": round(found["grpo_vectorized"][0], 3),
            }
        )
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
