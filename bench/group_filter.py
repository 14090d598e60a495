"""What the group filter costs a step, next to verl's own sampler with its zero-variance filter.

    python -m bench.group_filter [--quick]

A real TransferQueue holds 4,096 groups of 8 rollouts that end in 30 waves, as over a step of 60 s with a look every
2 s (verl's pace). After each wave each sampler looks, judges what ended and drops what is no good. Own cost is the CPU
time of the trainer's process in these looks, less that of the queue's own listing, which both make alike (shown
apart). verl's sampler fetches the reward of every token to judge; ours reads the tag that came with the listing. Bar:
ours under 1 % of the step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

STEP_S, EVERY_S, ROLLOUTS, WARM = 60.0, 2.0, 8, 30
TOKENS = 512
"""Response tokens of each rollout. Real ones are a hundred times longer, which only verl's sampler would notice."""
BAR = 0.01


def start_queue():
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    return tq


def write(tq, groups: range) -> None:
    """Ended groups, as an agent-loop worker leaves them; a third solved, a third unsolved, a third mixed."""
    import torch
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from rufus_plugins.hosts.verl.score_tags import TAG, score_tag

    keys, fields, tags, prompts = [], [], [], []
    for group in groups:
        uid = f"00000000-0000-4000-8000-{group:012d}"
        prompts.append(uid)
        for rollout in range(ROLLOUTS):
            reward = float((0, rollout % 2, 1)[group % 3])
            scores = torch.zeros(TOKENS)
            scores[-1] = reward
            info = {"score": reward, "termination": "answered"}
            keys.append(f"{uid}_{rollout}_0")
            fields.append({"rm_scores": scores, "extra_fields": {"reward_extra_info": info}})
            tags.append(
                {
                    **{"status": "success", "prompt_len": 128, "response_len": TOKENS, "seq_len": TOKENS + 128},
                    **{"global_steps": 1, "min_global_steps": 0, "max_global_steps": 0},
                    TAG: json.dumps(score_tag(reward, {"reward_extra_info": info})),
                }
            )
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
    done = {"is_prompt": True, "status": "finished", "global_steps": 1}
    tq.kv_batch_put(keys=prompts, partition_id="train", tags=[dict(done) for _ in prompts])


def timed(cls):
    """The sampler's class with the time of verl's listing taken apart."""

    class Timed(cls):
        listing_s = 0.0

        def _sync_metadata_from_transfer_queue(self):
            began = time.process_time()
            super()._sync_metadata_from_transfer_queue()
            self.listing_s += time.process_time() - began

    return Timed


def ours():
    from rufus_plugins.hosts.verl.group_filter_sampler import GroupFilterSampler
    from rufus_plugins.hosts.verl.sampling_step import Step

    sampler = timed(GroupFilterSampler)(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={"group_filter": {"low": 0.0, "high": 0.8}},
        refill_fn=lambda count: None,
    )
    step = Step(1, 10**6, sampler.filter)
    return sampler, lambda: len(sampler._poll(step))


def verls():
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    sampler = timed(ReplayBuffer)(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        refill_fn=lambda count: None,
        filter_groups_metric="reward",
        train_batch_size=1,
        gen_batch_size=1,
    )

    def look() -> int:
        sampler._sync_metadata_from_transfer_queue()
        reasons = sampler._terminal_eviction_reasons(1, "train")
        sampler._evict_terminal_groups(1, "train", reasons)
        return len(sampler._sampleable_terminal_keys("train", reasons))

    return sampler, look


def run(tq, build, groups: int, looks: int) -> tuple[float, float, int]:
    """(own seconds, listing seconds, groups kept) over the looks of a step."""
    sampler, look = build()
    write(tq, range(groups, groups + WARM))
    look()  # warms up
    sampler.listing_s = 0.0
    edges = [groups * i // looks for i in range(looks + 1)]
    spent, kept = 0.0, 0
    for first, last in zip(edges, edges[1:], strict=False):
        write(tq, range(first, last))
        began = time.process_time()
        kept = look()
        spent += time.process_time() - began
    left = list((tq.kv_list("train") or {}).get("train", {}))
    if left:
        tq.kv_clear(keys=left, partition_id="train")
    return spent - sampler.listing_s, sampler.listing_s, kept - WARM // 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="an eighth of the groups, and of the step")
    quick = parser.parse_args().quick
    groups, step_s = (512, STEP_S / 8) if quick else (4096, STEP_S)
    tq = start_queue()
    found = {}
    for name, build in (("ours", ours), ("verl", verls)):
        own, listing, kept = found[name] = run(tq, build, groups, round(step_s / EVERY_S))
        print(f"{name:>5}: own {own:.3f} s, listing {listing:.3f} s, {kept} of {groups} groups kept", flush=True)
    share = found["ours"][0] / step_s
    same = found["ours"][2] == found["verl"][2]
    ok = share < BAR and same
    print(
        json.dumps(
            {
                "bench": "group_filter",
                "ours": round(found["ours"][0], 3),
                "peer": round(found["verl"][0], 3),
                "ratio": round(found["ours"][0] / found["verl"][0], 3),
                "bar": BAR,
                "ok": bool(ok),
                "share_of_step": round(share, 5),
                "listing_share_of_step": round(found["ours"][1] / step_s, 5),
            }
        )
    )
    tq.close()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
