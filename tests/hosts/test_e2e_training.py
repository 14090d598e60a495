"""verl's own command line on CPU, for real: two data-parallel ranks, routes, faults, checkpoint, resume, Ctrl-C.

Two runs in all. The first trains two steps; the second resumes and is interrupted after a further one.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
import uuid
import zlib
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

PLUGIN = '''
"""Rewards the share of one letter; about every fourth answer meets a judge that is down."""
import zlib
from dataclasses import dataclass

from rufus_plugins import InfrastructureError, Score, Termination, hookimpl


@dataclass
class Letters:
    """Share of one letter in the answer."""

    letter: str = "e"

    async def __call__(self, trajectory):
        text = trajectory.response
        if zlib.crc32(text.encode()) % 4 == 0:
            raise InfrastructureError("the judge is down", Termination.JUDGE_FAILED)
        return Score(text.count(self.letter) / max(len(text), 1), {"length": len(text)})


@hookimpl
def register_rewards():
    return {"letters": Letters}
'''
START_S = 800
"""Until the first step is over; a busy machine with two cores needs minutes to import verl ten times."""


class Run:
    """One `python -m verl.trainer.main_ppo` in a session of its own."""

    def __init__(self, folder: Path, *overrides: str):
        self.folder, self.overrides = folder, overrides
        self.mark = uuid.uuid4().hex
        """In the environment of every process of the run."""
        self.log = folder / f"{self.mark}.log"
        self.metrics_file = folder / f"{self.mark}.jsonl"

    def start(self) -> "Run":
        env = os.environ | {
            "PYTHONPATH": str(self.folder / "plugin"),
            "OMP_NUM_THREADS": "1",
            "VERL_FILE_LOGGER_PATH": str(self.metrics_file),
            "RUFUS_TEST_RUN": self.mark,
            "RAY_worker_niceness": "0",
        }
        command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-name", "rufus", *self.overrides]
        self.process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=self.log.open("wb"), stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        return self

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + START_S
        while step not in {line["step"] for line in self.lines()}:
            assert self.process.poll() is None, self.tail()
            assert time.monotonic() < deadline, f"step {step} not reached:\n{self.tail()}"
            time.sleep(0.5)

    def wait(self) -> int:
        try:
            return self.process.wait(timeout=START_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run did not end:\n{self.tail()}") from None

    def kill(self) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def processes(self, name: str = "") -> list[int]:
        """Everything of this name that this run started and that still lives, wherever it was re-parented."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                marked = f"RUFUS_TEST_RUN={self.mark}".encode() in (entry / "environ").read_bytes()
                marked = marked and name.encode() in (entry / "cmdline").read_bytes()
                dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
            if marked and not dead:
                found.append(int(entry.name))
        return found

    def lines(self) -> list[dict]:
        if not self.metrics_file.exists():
            return []
        text = self.metrics_file.read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def steps(self) -> dict[int, dict]:
        """Step -> metrics, of training steps."""
        return {line["step"]: line["data"] for line in self.lines() if "training/global_step" in line["data"]}

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Plugin, model and data. The model's output layer is scaled: flat probabilities would hide differences."""
    import pandas
    import torch

    from rufus_plugins.recipes.tiny.model import build

    folder = tmp_path_factory.mktemp("e2e")
    info = folder / "plugin" / "letters_plugin-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: letters-plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[rufus]\nletters = letters_plugin\n")
    (folder / "plugin" / "letters_plugin.py").write_text(PLUGIN)
    model, tokenizer = build(seed=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(5)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Print {a} plus {b}" + " please" * (a % 3)}],
            "data_source": "toy",
            "reward_model": {"ground_truth": str(a + b)},
            "extra_info": {"index": 8 * a + b},
        }
        for a in range(8)
        for b in range(8)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows[:16]).to_parquet(folder / "val.parquet")
    return folder


def overrides(folder: Path, *more: str) -> list[str]:
    return [
        "algorithm=gspo", "reward=letters", "scale=tiny",
        f"data.train_files={folder}/train.parquet", f"data.val_files={folder}/val.parquet",
        "data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=24",
        f"actor_rollout_ref.model.path={folder}/model",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.val_kwargs.n=1",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        "trainer.n_gpus_per_node=2", "trainer.save_freq=2", "trainer.val_before_train=True",
        "trainer.test_freq=-1", "trainer.logger=[console,file]", "trainer.total_epochs=1000",
        f"trainer.default_local_dir={folder}/checkpoints", f"trainer.rollout_data_dir={folder}/rollouts",
        # an untrained model never ends by itself: everything would be masked
        "rufus.mask_terminations=[]", "rufus.routing_replay=rollout", f"rufus.samples.dir={folder}/samples",
        *more,
    ]  # fmt: skip


@pytest.fixture(scope="session")
def trained(folder):
    run = Run(folder, *overrides(folder, "trainer.total_training_steps=2")).start()
    try:
        code = run.wait()
    finally:
        run.kill()
    assert code == 0, run.tail()
    return run


def test_two_ranks_train_and_their_probabilities_are_those_of_the_rollout_on_every_step(trained):
    steps = trained.steps()
    assert sorted(steps) == [1, 2]
    for metrics in steps.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_max"] < 1e-6
        assert metrics["actor/grad_norm"] > 0
        assert metrics["perf/total_num_tokens"] > 0


def test_the_routes_of_the_rollout_are_those_the_trainer_would_choose(trained):
    for metrics in trained.steps().values():
        [match] = [value for key, value in metrics.items() if key.endswith("routing_replay/match_rate")]
        assert match > 0.999


def test_faulted_samples_are_counted_and_stay_out_of_the_reward(trained, folder):
    total = 0
    for step, metrics in trained.steps().items():
        rows = [json.loads(line) for line in (folder / "rollouts" / f"{step}.jsonl").read_text().splitlines()]
        sound = [row["score"] for row in rows if zlib.crc32(row["output"].encode()) % 4]
        faulted = len(rows) - len(sound)
        total += faulted
        assert metrics["rufus/faults"] == faulted
        assert metrics.get("rufus/faults/judge_failed", 0) == faulted
        assert math.isclose(metrics["critic/score/mean"], sum(sound) / len(sound), rel_tol=1e-4)
    assert total > 0, "choose another seed: no answer met the broken judge"


def test_by_default_four_rollouts_of_the_first_step_are_kept_the_best_and_the_worst_among_them(trained, folder):
    assert [path.name for path in (folder / "samples").iterdir()] == ["step-000001.jsonl"]
    records = [json.loads(line) for line in (folder / "samples/step-000001.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (folder / "rollouts/1.jsonl").read_text().splitlines()]
    sound = [row["score"] for row in rows if zlib.crc32(row["output"].encode()) % 4]
    assert [record["chosen"] for record in records] == ["best", "worst", "random", "random"]
    assert records[0]["score"] == pytest.approx(max(sound)) and records[1]["score"] == pytest.approx(min(sound))
    for record in records:
        [segment] = record["segments"]
        [part] = segment["parts"]
        assert len(part["texts"]) == len(part["kinds"]) == len(part["logprobs"]) == segment["response_tokens"]
        assert 0 < segment["response_tokens"] <= 24
        assert record["left_out"] == (record["termination"] == "judge_failed")
        assert set(part["kinds"]) == ({"m"} if record["left_out"] else {"s"})
        assert (record["explanation"] == "the judge is down") == record["left_out"]


def test_validation_runs_before_training_and_does_not_count_faults(trained):
    [first] = [line["data"] for line in trained.lines() if line["step"] == 0]
    assert any(key.startswith("val-core/toy/reward") for key in first)
    assert "val-aux/rufus/faults" in first


def test_the_weights_change_and_are_saved_as_a_model_that_loads(trained, folder):
    from transformers import AutoModelForCausalLM

    before = AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    after = AutoModelForCausalLM.from_pretrained(folder / "checkpoints/global_step_2/actor/huggingface").state_dict()
    assert before.keys() == after.keys()
    changed = [name for name in before if not before[name].equal(after[name])]
    assert any(".experts." in name for name in changed) and any(".gate.weight" in name for name in changed)


def test_nothing_is_left_running_after_the_run(trained):
    assert not trained.processes()


def test_a_run_resumes_survives_its_reward_worker_and_leaves_nothing_behind_on_ctrl_c(trained, folder):
    run = Run(folder, *overrides(folder, "trainer.total_training_steps=1000", "trainer.val_before_train=False")).start()
    try:
        run.wait_for_step(3)
        assert min(run.steps()) == 3, "it goes on after the checkpoint of step 2"
        assert run.steps()[3]["training/rollout_probs_diff_max"] < 1e-6, "restored weights reached the rollout"
        for pid in run.processes("RewardLoopWorker"):
            os.kill(pid, signal.SIGKILL)  # mid-step: the samples are scored again by a new worker
        last = max(run.steps())
        run.wait_for_step(last + 3)
        assert run.processes("RewardLoopWorker")
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        assert run.process.wait(timeout=60) != 0
        deadline = time.monotonic() + 30
        while run.processes() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert not run.processes(), subprocess.run(["ps", "-ef"], capture_output=True, text=True).stdout
    finally:
        run.kill()
