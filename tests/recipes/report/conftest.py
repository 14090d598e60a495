"""Run folders made by code, whose figures are known beforehand.

Items pass a whole number of their four samples, so means and gains are fractions that can be worked out by hand.
"""

import json
import math
from pathlib import Path

import pytest

ITEMS, SAMPLES = 20, 4
STEPS = 30
DIGEST = "0123456789abcdef"


def digest(letter: str) -> str:
    return letter * 40


def protocol(name, stage=None, **changed):
    from rufus_plugins.recipes.evidence.protocol import Protocol

    fields = {
        "name": name,
        "stage": stage or name,
        "file": f"/data/{name}/heldout.parquet",
        "heldout": {"file name": "heldout.parquet", "sha256": DIGEST, "rows": ITEMS, "items": ITEMS},
        "reward": {"name": "math_answer", "fields": {}},
        "max_tokens": 64,
        "context": 128,
        "samples": SAMPLES,
        "baseline": {"kind": "answer", "answer": "7", "share": 0.125},
    }
    return Protocol(**fields | changed)


def evidence(of, checkpoint, passes, greedy=0.0, samples=SAMPLES):
    """`passes`: item number -> how many of its samples pass."""
    items = {
        f"item{n}": {
            "scores": [1.0] * passes(n) + [0.0] * (samples - passes(n)),
            "greedy": greedy,
            "tokens": [9] * samples,
            "terminations": ["answered"] * samples,
        }
        for n in range(ITEMS)
    }
    return {
        "format": 1,
        "protocol": of.as_json(),
        "protocol_digest": of.digest,
        "checkpoint": {"digest": checkpoint, "name": "checkpoint"},
        "code": {"version": "0.1.0", "digest": "c0de"},
        "items": items,
        "faults": {},
        "unscored": 0,
        "seconds": 1.5,
    }


def rl_metrics(step, steps=STEPS):
    """Values that are easy to work out: the reward is step/100, and so on."""
    return {
        "training/global_step": step,
        "critic/score/mean": step / 100,
        "rufus/group_filter/reward_generated/mean": step / 200,
        "response_length/mean": 20 + step,
        "response_length/max": 60 + step,
        "rufus/truncation/mean": 0.5 / step,
        "rufus/group_filter/truncated/mean": 1 / step,
        "rufus/group_filter/total/kept": 6.0,
        "rufus/group_filter/total/dropped": 4.0,
        "rufus/group_filter/total/dropped/below_band": 2.0,
        "rufus/group_filter/total/dropped/above_band": 1.0,
        "rufus/group_filter/total/dropped/zero_variance": 1.0,
        "rufus/group_filter/total/dropped/lost": 0.0,
        "rufus/endings/answered/total": 45.0,
        "rufus/endings/response_length/total": 2.0,
        "rufus/endings/max_turns/total": 3.0,
        "rufus/faults": 0.0,
        "actor/routing_replay/match_rate": 0.99,
        "actor/routing_replay/match_rate_fresh": 1.0,
        "actor/ppo_kl": 0.001 * step,
        "training/rollout_kl_k3": 0.0,
        "actor/grad_norm": 1 / step,
        "actor/entropy": 0.5,
        "timing_s/step": 9.0,
        "timing_s/gen": 4.0,
        "timing_s/update_actor": 3.0,
        "timing_s/old_log_prob": 1.0,
        "perf/throughput": 999.0,
    }


def sft_metrics(step):
    data = {"train/loss": 3 / step, "train/grad_norm": 2.0, "train/lr": 1e-3, "train/global_tokens": 2048}
    return data | ({"val/loss": 4 / step} if step % 10 == 0 else {})


def sample(step, n=0, **changed):
    texts = ["Let", " me", " see", ".", "<tool_call>", "lookup", "</tool_call>", "apple costs 3", " So", ":", " 3"]
    kinds, logprobs = "ssssssst" + "sss", [-0.1 * i for i in range(len(texts))]
    record = {
        "format": 1, "step": step, "group": f"uid{step}", "rollout": n, "task": "apple", "data_source": "prices",
        "chosen": ("best", "worst", "random", "random")[n % 4], "score": 1.0 - n / 4,
        "metrics": {"right": n == 0, "calls": 1},
        "explanation": "the price 3" if n == 0 else "not the price 3", "termination": "answered", "left_out": False,
        "advantage": 1.25 - n,
        "segments": [
            {
                "prompt": "<|user|>\nWhat does apple cost?", "prompt_tokens": 9, "response_tokens": len(texts),
                "parts": [{"first": 0, "texts": texts, "kinds": kinds, "logprobs": logprobs}],
            }
        ],
    }  # fmt: skip
    if n == 3:
        record |= {"left_out": True, "termination": "response_length", "advantage": None}
        record["segments"][0]["parts"][0]["kinds"] = kinds.replace("s", "m")
    return record | changed


class Chain:
    """A run folder that grows."""

    def __init__(self, folder: Path, **told):
        self.folder = folder
        self.write("run.json", {
            "format": 1, "chain": "by_hand", "scale": "tiny", "seed": 0, "overrides": [],
            "code": {"version": "0.1.0", "git": "abcdef1234567", "digest": "c0de"},
            "created": "2026-01-02T03:04:05+00:00",
        } | told)  # fmt: skip
        self.event(None, "started")

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    def lines(self, name, records):
        return self.write(name, "".join(json.dumps(record) + "\n" for record in records))

    def event(self, stage, event, detail=None):
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"at": "2026-01-02T03:04:05+00:00", "stage": stage, "event": event, "detail": detail}) + "\n"
            )

    def stage(self, index, name, parent, start, end, branch=None, **told):
        """`parent`: name or None; `start`, `end`: digests."""
        folder = f"stages/{index:02d}-{name}{f'@{branch}' if branch else ''}"
        done = end is not None
        self.write(f"{folder}/stage.json", {
            "format": 1, "name": name, "stage": name, "branch": branch, "index": index,
            "state": "done" if done else "running",
            "command": ["python", "-m", "verl.trainer.main_ppo", f"stage={name}"],
            "config_digest": "cf", "parent": {"stage": parent, "path": "somewhere", "digest": start}, "data": {},
            "code": {}, "checkpoint": {"path": "checkpoints/x", "digest": end} if done else None, "seconds": 372.0,
            "attempts": 1, "steps": {"done": STEPS if done else 12, "total": STEPS}, "pick": None,
        } | told)  # fmt: skip
        self.write(
            f"{folder}/command.txt", f"python -m verl.trainer.main_ppo --config-name rufus stage={name} scale=tiny\n"
        )
        self.write(f"{folder}/config.yaml", f"rufus:\n  reward: {{name: {name}}}\n")
        return folder

    def rl(self, folder, steps=STEPS, every=10):
        self.lines(f"{folder}/metrics/rl-000.jsonl", ({"step": s, "data": rl_metrics(s)} for s in range(1, steps + 1)))
        for step in (1, *range(every, steps + 1, every)):
            self.lines(f"{folder}/samples/step-{step:06d}.jsonl", [sample(step, n) for n in range(4)])

    def measured(self, of, checkpoint, passes, greedy=0.0, samples=SAMPLES):
        self.write(f"evidence/{of.digest}/{checkpoint}.json", evidence(of, checkpoint, passes, greedy, samples))


def usual_chain(folder: Path) -> Chain:
    """SFT, two RL stages, a branch of the second, a third that runs. What each scores:

    protocol `reasoning_rl`: base 1 of 4; after its stage 3 of 4 (rose by .5 exactly); after coding 2 of 4 (fell by .25)
    protocol `coding_rl`: before 2 of 4; after: half of the items 1 more, half 1 less (mean gain 0: within noise)
    """
    a, b, c, d, e = (digest(letter) for letter in "abcde")
    chain = Chain(folder)
    sft = chain.stage(0, "sft", None, a, b, steps={"done": STEPS, "total": STEPS}, pick={"rule": "plateau", "step": 20})
    chain.lines(f"{sft}/metrics/sft-000.jsonl", ({"step": s, "data": sft_metrics(s)} for s in range(1, STEPS + 1)))
    chain.write("data/sft/mixture.json", {
        "categories": {
            "math": {"samples": 30, "tokens": 4000, "turns": 30, "supervised_turns": 30, "supervised_tokens": 3000},
            "agent": {"samples": 10, "tokens": 9000, "turns": 90, "supervised_turns": 40, "supervised_tokens": 1000},
        },
        "shares": {
            "math": {"samples": 0.75, "tokens": 4 / 13, "supervised_tokens": 0.75},
            "agent": {"samples": 0.25, "tokens": 9 / 13, "supervised_tokens": 0.25},
        },
    })  # fmt: skip
    chain.event("sft", "finished")
    reasoning = chain.stage(1, "reasoning_rl", "sft", b, c)
    chain.rl(reasoning)
    judged = [
        {"step": s, "prompt": f"p{n}", "rollouts": 8, "mean": 0.5, "side": side, "verdict": "kept"}
        for s in range(1, STEPS + 1)
        for n, side in enumerate(("below", "inside", "inside", "above"))
    ]
    chain.lines(f"{reasoning}/checkpoints/curriculum.jsonl", judged)
    chain.rl(chain.stage(2, "coding_rl", "reasoning_rl", c, d))
    chain.rl(chain.stage(2, "coding_rl", "reasoning_rl", c, e, branch="lower-lr"))
    chain.rl(chain.stage(3, "general_agent", "coding_rl", d, None), steps=12)
    items = {"sft": 320, "rl": 640, "heldout": ITEMS}
    chain.write("data/reasoning_rl/family.json", {"items": items, "constant_kind": "answer", "constant_share": 0.125})
    first, second = protocol("reasoning_rl"), protocol("coding_rl")
    chain.measured(first, a, lambda n: 0)
    chain.measured(first, b, lambda n: 1)
    chain.measured(first, c, lambda n: 3, greedy=1.0)
    chain.measured(first, d, lambda n: 2)
    chain.measured(second, c, lambda n: 2)
    chain.measured(second, d, lambda n: 3 if n % 2 else 1)
    return chain


@pytest.fixture
def usual(tmp_path):
    return usual_chain(tmp_path / "runs" / "rufus_air-tiny-seed0")


@pytest.fixture
def empty(tmp_path):
    """A chain without stages; `build` names are at hand as attributes."""
    return Chain(tmp_path / "run")


@pytest.fixture(scope="session")
def make():
    """The builders, for tests that need more than the usual chain."""
    import types

    names = (Chain, usual_chain, protocol, evidence, sample, rl_metrics, sft_metrics, digest)
    made = types.SimpleNamespace(**{thing.__name__: thing for thing in names})
    made.STEPS, made.nan = STEPS, math.nan
    return made
