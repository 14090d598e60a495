"""An environment in verl's own command on CPU: tools over several turns, a compacted context, a lost sandbox.

One run of two steps. The model knows its script by heart (lookup_plugin), so each ending is known beforehand.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

PLUGIN = Path(__file__).parent / "lookup_plugin"
RUN_S = 900
"""A busy machine with two cores needs minutes to import verl ten times."""
COMPACTION = {
    "by": "policy",
    "at": 0.6,
    "max_tokens": 32,
    "instruction": "Your context is nearly full. Note what you did.",
    "keep_chars": 120,
}
PROMPT, RESPONSE = 340, 200
SAMPLES = 8
LOST_CALLS = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    from rufus_plugins.recipes.tiny.by_heart import small_model, teach
    from rufus_plugins.rollouts.episode import Limits
    from rufus_plugins.rollouts.rules import EpisodeRules

    folder = tmp_path_factory.mktemp("agent")
    info = folder / "plugin" / "lookup_plugin-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lookup-plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[rufus]\nlookup = lookup_plugin\n")
    (folder / "plugin" / "lookup_plugin.py").write_text((PLUGIN / "lookup_plugin.py").read_text())
    sys.path.insert(0, str(PLUGIN))
    try:
        import lookup_plugin

        torch.set_num_threads(1)
        model, tokenizer = small_model()
        rules = EpisodeRules(compaction=COMPACTION, retries=0)
        teach(model, lookup_plugin.lessons(model, tokenizer, rules, Limits(PROMPT + RESPONSE, RESPONSE)))
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        rows = []
        for word in lookup_plugin.PRICES:
            task = lookup_plugin.task(word)
            rows.append(
                {
                    "prompt": [dict(message) for message in task.prompt],
                    "data_source": task.data_source,
                    "reward_model": {"style": "rule", "ground_truth": task.ground_truth},
                    "extra_info": {"id": task.id, "index": len(rows)},
                }
            )
    finally:
        sys.path.remove(str(PLUGIN))
        sys.modules.pop("lookup_plugin", None)
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """(metrics by step, trajectories as the reward saw them)."""
    metrics, seen, log = folder / "metrics.jsonl", folder / "seen.jsonl", folder / "run.log"
    compaction = "{" + ",".join(f"{k}:{json.dumps(v)}" for k, v in COMPACTION.items()) + "}"
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "--config-name", "rufus"),
        *("algorithm=gspo", "reward=priced", "scale=tiny", "environment=functions"),
        "rufus.environment.functions=[lookup_plugin:lookup]",
        f"+rufus.environment.compaction={compaction}",
        *("+rufus.environment.retries=1", "+rufus.environment.max_turns=6", "+rufus.environment.max_turn_tokens=48"),
        *("rufus.mask_terminations=[]", "rufus.routing_replay=rollout"),
        *(f"rufus.samples.dir={folder}/samples", "rufus.samples.every=1", f"rufus.samples.per_step={3 * SAMPLES}"),
        f"data.train_files={folder}/train.parquet", f"data.val_files={folder}/train.parquet",
        *("data.train_batch_size=3", f"data.max_prompt_length={PROMPT}", f"data.max_response_length={RESPONSE}"),
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={folder}/model",
        *("actor_rollout_ref.actor.ppo_mini_batch_size=3", "actor_rollout_ref.actor.optim.lr=1e-4"),
        *(f"actor_rollout_ref.rollout.n={SAMPLES}", "actor_rollout_ref.rollout.temperature=1.0"),
        *("trainer.total_training_steps=2", "trainer.total_epochs=9", "trainer.logger=[console,file]"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        *("trainer.resume_mode=disable", f"trainer.default_local_dir={folder}/out"),
    ]  # fmt: skip
    env = os.environ | {
        "PYTHONPATH": str(folder / "plugin"),
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "RUFUS_TEST_TRAJECTORIES": str(seen),
        "RUFUS_TEST_LOST_CALLS": str(LOST_CALLS),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=RUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
    assert code == 0, log.read_text(errors="replace")[-6000:]
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = {line["step"]: line["data"] for line in lines if "training/global_step" in line["data"]}
    return steps, [json.loads(line) for line in seen.read_text().splitlines()], log.read_text(errors="replace")


def test_probabilities_agree_over_turns_with_tool_tokens(run):
    steps, _, _ = run
    assert sorted(steps) == [1, 2]
    for metrics in steps.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_max"] < 1e-6
        assert metrics["rufus/rollout/tokens_context/mean"] > 20
        assert metrics["rufus/rollout/tool_calls/mean"] > 0.7  # a lost call is not counted
        assert metrics["actor/grad_norm"] > 0


def test_routes_are_those_of_the_trainer_row_by_row_over_turns_and_segments(run):
    """Under the weights that sampled, the trainer chooses as the rollout did for every token of prompts, turns and
    tools; a row that is off by one would not. No row of a rollout goes native."""
    for metrics in run[0].values():
        assert metrics["actor/routing_replay/match_rate_fresh"] == 1.0
        assert metrics["actor/routing_replay/native_share"] == 0.0
        assert metrics["actor/routing_replay/match_rate"] > 0.99  # later mini-batches meet updated weights


def test_compacted_rollouts_train_on_all_their_segments(run):
    steps, seen, _ = run
    for line in seen:
        assert len(line["segments"]) == (2 if line["metrics"]["compactions"] else 1)
        for segment in line["segments"]:
            assert len(segment["response"]) == len(segment["mask"]) == len(segment["logprobs"])
            assert sum(segment["mask"]) > 0
    for metrics in steps.values():
        assert metrics["rufus/rollout/compactions/total"] >= SAMPLES - 2  # of the long word's rollouts
        assert metrics["rufus/groups/segments_per_rollout/max"] == metrics["rufus/rollout/segments/max"] == 2
        assert metrics["rufus/rollout/tokens_diverged/total"] == 0


def test_the_tokens_that_are_trained_are_those_the_model_said(run, folder):
    """Recomputed from the message log: mask 1 holds each turn's text and its end, in order, and nothing of the tool."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    compared = 0
    for line in run[1]:
        said = ""
        for segment in line["segments"]:
            said += tokenizer.decode([i for i, m in zip(segment["response"], segment["mask"], strict=True) if m])
        turns = [m for m in line["messages"] if m["role"] == "assistant" or m.get("name") == "compaction"]
        expected = ""
        for turn in turns:
            calls = ast.literal_eval(turn.get("tool_calls", "[]"))
            if len(calls) > 1 or any(not isinstance(c["function"]["arguments"], dict) for c in calls):
                break
            text = turn["content"]
            for call in calls:
                pairs = call["function"]["arguments"].items()
                pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in pairs)
                text += f"<tool_call>{call['function']['name']}\n{pairs}</tool_call>"
            expected += f"\n<think></think>\n{text}" + ("<|observation|>" if calls else "<|endoftext|>")
        else:
            compared += said == expected
    assert compared >= 0.9 * len(run[1])  # all but those in which the model left its format


def test_the_model_reads_special_tokens_of_the_tool_as_text(run, folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    user, response_end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|user|>", "</tool_response>"))
    looked = 0
    for line in run[1]:
        results = [m["content"] for m in line["messages"] if m["role"] == "tool" and "costs" in m["content"]]
        if len(line["segments"]) > 1 or not results:
            continue
        [segment] = line["segments"]
        context = [i for i, m in zip(segment["response"], segment["mask"], strict=True) if not m]
        tools = sum(m["role"] == "tool" for m in line["messages"])
        assert "<|user|> costs" in tokenizer.decode(context)
        assert context.count(user) == 0 and context.count(response_end) <= tools
        looked += 1
    assert looked >= SAMPLES


def test_a_lost_sandbox_is_retried_then_left_out_and_never_scored(run):
    steps, seen, log = run
    assert not [line for line in seen if line["ending"] == "sandbox_lost"]
    # each of the group's rollouts loses at most two sandboxes, its own and that of its retry
    first = steps[1]
    lost = first["rufus/faults/sandbox_lost"]
    assert LOST_CALLS - SAMPLES <= lost <= LOST_CALLS // 2
    assert lost == first["rufus/endings/sandbox_lost/total"] == first["rufus/faults"]
    assert first["rufus/rollout/retries/total"] == LOST_CALLS - lost
    assert first["rufus/groups/rollouts_outside"] == lost
    assert steps[2]["rufus/faults"] == 0
    assert "the dictionary's machine is gone" in log


def test_every_rollout_has_an_ending_of_ours(run):
    for metrics in run[0].values():
        endings = {k.split("/")[2]: v for k, v in metrics.items() if k.startswith("rufus/endings/")}
        assert sum(endings.values()) == 3 * SAMPLES
        assert endings["answered"] >= 3 * SAMPLES - LOST_CALLS // 2 - 2


def test_the_rollouts_kept_for_the_report_are_those_the_reward_saw_token_by_token(run, folder):
    """The reward's own log is the oracle: masks, log-probabilities and texts of all segments, in order."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    seen: dict[tuple, list] = {}
    for line in run[1]:
        masks = tuple("".join("ts"[m] for m in segment["mask"]) for segment in line["segments"])
        texts = tuple(tokenizer.decode(segment["response"]) for segment in line["segments"])
        seen.setdefault((line["task"], masks, texts), []).append(line)
    assert sorted(path.name for path in (folder / "samples").iterdir()) == ["step-000001.jsonl", "step-000002.jsonl"]
    compacted = lost = 0
    for step, metrics in run[0].items():
        lines = (folder / "samples" / f"step-{step:06d}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert len(records) == 3 * SAMPLES and len({(r["group"], r["rollout"]) for r in records}) == 3 * SAMPLES
        faulted = [record for record in records if record["termination"] == "sandbox_lost"]
        assert len(faulted) == metrics["rufus/faults"]
        for record in faulted:
            assert record["left_out"] and record["score"] is None and record["advantage"] is None
            assert not any("s" in part["kinds"] for segment in record["segments"] for part in segment["parts"])
        lost += len(faulted)
        scored = [record for record in records if record not in faulted]
        [best], [worst] = ([r for r in scored if r["chosen"] == name] for name in ("best", "worst"))
        assert best["score"] == max(r["score"] for r in scored) and worst["score"] == min(r["score"] for r in scored)
        for record in scored:
            parts = [segment["parts"] for segment in record["segments"]]
            assert all(len(part) == 1 for part in parts)
            masks = tuple(part[0]["kinds"] for part in parts)
            told = [logprob for part in parts for logprob in part[0]["logprobs"]]
            [line, *_] = [
                line  # the same words may have been sampled twice
                for line in seen[record["task"], masks, tuple("".join(part[0]["texts"]) for part in parts)]
                if told == pytest.approx([p for segment in line["segments"] for p in segment["logprobs"]], abs=1e-4)
            ]
            for segment, own in zip(record["segments"], line["segments"], strict=True):
                assert segment["prompt"] == tokenizer.decode(own["prompt"])
                assert segment["prompt_tokens"] == len(own["prompt"])
                assert segment["response_tokens"] == len(own["response"])
            right = record["metrics"]["right"]
            assert record["explanation"].startswith("the price" if right else "not the price")
            assert record["metrics"]["good_calls"] == sum(status == "ok" for _, status, _ in line["calls"])
            assert not record["left_out"] and record["termination"] == line["ending"]
            compacted += len(record["segments"]) == 2
    assert compacted and lost
