"""verl's own command with the group filter, on CPU with a tiny model: the band, the message, a killed worker."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
REWARDS = Path(__file__).with_name("run_reward.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rufus_plugins.recipes.tiny import model

    path = tmp_path_factory.mktemp("run")
    model.save(path / "model", seed=0)
    rows = [
        {
            "data_source": "coin",
            "prompt": [{"role": "user", "content": f"Print {i}."}],
            "reward_model": {"style": "rule", "ground_truth": str(i)},
            "extra_info": {"id": f"coin-{i}", "index": i},
        }
        for i in range(64)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path / "train.parquet")
    return path


class Run:
    def __init__(self, folder: Path, name: str, reward: str, *overrides: str):
        self.output, self.log, self.metrics = folder / name, folder / f"{name}.log", folder / f"{name}.jsonl"
        command = [
            sys.executable,
            *("-m", "verl.trainer.main_ppo", "--config-name", "rufus"),
            *("algorithm=mean_only", "scale=tiny"),
            f"actor_rollout_ref.model.path={folder / 'model'}",
            f"data.train_files={folder / 'train.parquet'}",
            f"data.val_files={folder / 'train.parquet'}",
            *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=16"),
            *("data.dataloader_num_workers=0", "+data.apply_chat_template_kwargs.enable_thinking=false"),
            *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
            *("actor_rollout_ref.rollout.temperature=1.0", "actor_rollout_ref.rollout.calculate_log_probs=true"),
            f"reward.custom_reward_function.path={REWARDS}",
            f"reward.custom_reward_function.name={reward}",
            *("trainer.total_epochs=9", "trainer.val_before_train=false", "trainer.test_freq=-1"),
            *("trainer.save_freq=-1", "trainer.resume_mode=disable", "trainer.logger=[console,file]"),
            f"trainer.default_local_dir={self.output}",
            *overrides,
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "RAY_ADDRESS": "local",
            "RAY_USAGE_STATS_ENABLED": "0",
            "VERL_FILE_LOGGER_PATH": str(self.metrics),
        }
        self.process = subprocess.Popen(
            command, stdout=self.log.open("w"), stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in [*self.pids(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def pids(self, title: str = "") -> list[int]:
        """Processes that this run started, at any depth; `title` is how Ray names its workers."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                children.setdefault(parent, []).append(int(entry.name))
        found, todo = [], [self.process.pid]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return [pid for pid in found if title in _command_line(pid)]

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def finish(self, timeout_s: float = 400) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run did not end within {timeout_s} s:\n{self.text()[-5000:]}")

    def steps(self) -> list[dict]:
        return [json.loads(line)["data"] for line in self.metrics.read_text().splitlines()]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_a_run_trains_on_the_band_and_keeps_the_curriculum(folder):
    from rufus_plugins.algos.curriculum import FILE, read
    from rufus_plugins.cli import main

    rule = ("rufus.group_filter={low:0.0,high:0.8,oversample:1.5}", "rufus.mask_terminations=[]")
    penalty = ("rufus.length_penalty={kind:shortest_correct}",)
    budgets = ("rufus.response_budgets={budgets:[12,16],threshold:0.1,patience:1,move_on:true}",)
    with Run(folder, "band", "coin", *rule, *penalty, *budgets, "trainer.total_training_steps=3") as run:
        assert run.finish() == 0, run.text()[-5000:]
    steps = run.steps()
    assert len(steps) == 3
    for step in steps:
        assert step["rufus/group_filter/total/trained"] == 4
        assert 0 < step["rufus/group_filter/reward_trained/mean"] <= 0.8
        assert step["rufus/group_filter/total/generated"] >= 4
        assert step["rufus/groups/without_signal"] == 0
        assert step["rufus/length_penalty/taken/mean"] >= 0
        assert abs(step["critic/advantages/mean"]) < 0.2
        assert step["rufus/group_filter/truncated/mean"] > 0.1  # an untrained model does not end its answers
    assert [step["rufus/response_budget/max"] for step in steps] == [12, 16, 16]
    assert steps[0]["response_length/max"] == 12 and steps[2]["response_length/max"] == 16
    assert "from the next step on the budget is 16" in run.text()
    entries = read(run.output / FILE)
    judged = sum(s["rufus/group_filter/total/generated"] for s in steps)
    assert {e.step for e in entries} == {1, 2, 3} and len(entries) <= judged
    assert all(re.fullmatch(r"coin:coin-\d+", e.prompt) and e.rollouts == 4 for e in entries)
    assert main(["curriculum", str(run.output)]) == 0


def test_a_run_whose_groups_never_enter_the_band_ends_with_the_histogram(folder):
    rule = ("rufus.group_filter={low:0.0,high:0.8,max_rounds:2}", "rufus.mask_terminations=[]")
    with Run(folder, "never", "nothing", *rule, "trainer.total_training_steps=3") as run:
        assert run.finish() != 0
        text = run.text()
    assert "0 of 4 groups passed the filter (0 < mean reward <= 0.8, at least 2 healthy rollouts)" in text
    assert "8 prompts in 2 rounds" in text and "below_band 8" in text
    assert re.search(r"0\s+#{40}\s+8", text)


def test_a_killed_rollout_worker_does_not_hold_the_run(folder):
    rule = ("rufus.group_filter={low:0.0,high:0.8}", "rufus.mask_terminations=[]")
    # long answers, so that there is time to kill a worker while the sampler waits
    slow = ("data.max_response_length=160", "actor_rollout_ref.rollout.agent.num_workers=2")
    with Run(folder, "killed", "coin", *rule, *slow, "trainer.total_training_steps=2") as run:
        deadline = time.monotonic() + 300
        workers: list[int] = []
        while "Training Progress" not in run.text() and run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        while len(workers) < 2 and time.monotonic() < deadline:
            workers = run.pids("AgentLoopWorkerTQ")
        time.sleep(1)
        os.kill(workers[0], signal.SIGKILL)
        assert run.finish() == 0, run.text()[-5000:]
    assert len(run.steps()) == 2
    assert "a rollout worker died" in run.text()


def test_a_separate_rollout_trains_on_the_band_with_weights_of_every_step(folder):
    """verl's separate_async: a rollout of its own beside the trainer, the weights by gloo; the trainer's process
    helps generating where it would wait."""
    rule = ("rufus.group_filter={low:0.0,high:0.8}", "rufus.mask_terminations=[]", "rufus.routing_replay=rollout")
    mode = ("trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.rollout.nnodes=1")
    apart = ("trainer.v1.separate_async.parameter_sync_step=1", "data.max_response_length=48")
    with Run(folder, "apart", "coin", *rule, *mode, *apart, "trainer.total_training_steps=3") as run:
        assert run.finish() == 0, run.text()[-5000:]
    steps = run.steps()
    assert len(steps) == 3
    for step in steps:
        assert step["rufus/group_filter/total/trained"] == 4
        assert 0 < step["rufus/group_filter/reward_trained/mean"] <= 0.8
