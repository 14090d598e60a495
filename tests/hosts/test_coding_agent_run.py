"""Coding Agent in verl's own command on CPU: shipped tasks, baked environments, a shell per rollout, own tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RECIPE = Path(__file__).parents[2] / "recipes" / "coding_agent"
RUN_S = 900
KNOWN = 4


def call(folder, *command, **env):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"} | env
    log = folder / "run.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=RUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
    assert code == 0, log.read_text(errors="replace")[-6000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The commands of the recipe's README, in its order."""
    folder = tmp_path_factory.mktemp("coding_agent")
    rufus = str(Path(sys.executable).with_name("rufus"))
    call(folder, rufus, "prepare", "coding_agent", "--input", str(RECIPE / "tasks"), "--output", "data/agent")
    module = "rufus_plugins.recipes.coding_agent.warm_start"
    call(folder, sys.executable, "-m", module, "--data", "data/agent/train.parquet", "--output", "model")
    (command,) = [block for block in blocks((RECIPE / "README.md").read_text()) if "scale=tiny" in block]
    words = command.replace("\\\n", " ").replace("$PWD", str(folder)).split()
    assert words[:2] == ["python", "-m"]
    call(
        folder, sys.executable, *words[1:], "trainer.logger=[console,file]", "trainer.rollout_data_dir=rollouts",
        VERL_FILE_LOGGER_PATH=str(folder / "metrics.jsonl"),
    )  # fmt: skip
    return folder


def blocks(text):
    """Indented commands of a markdown page."""
    return ["\n".join(line[4:] for line in part.splitlines()) for part in text.split("\n\n") if part.startswith("    ")]


@pytest.fixture(scope="module")
def steps(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["data"] for line in lines if "training/global_step" in line["data"]}


def test_the_tasks_that_the_model_knows_are_solved_and_the_others_are_not(folder, steps):
    assert sorted(steps) == [1, 2]
    for step, metrics in steps.items():
        rows = [json.loads(line) for line in (folder / "rollouts" / f"{step}.jsonl").read_text().splitlines()]
        assert len(rows) == 32
        solved = [row for row in rows if row["score"] == 1.0]
        assert 10 <= len(solved) <= 4 * KNOWN and all("<tool_call>bash" in row["output"] for row in solved)
        assert {row["score"] for row in rows} == {0.0, 1.0}
        assert 0.3 <= metrics["critic/score/mean"] <= 0.55
        assert metrics["rufus/faults"] == 0


def test_every_rollout_ran_its_commands_in_a_sandbox(steps):
    for metrics in steps.values():
        assert metrics["rufus/rollout/commands/mean"] >= 0.4
        assert metrics["rufus/rollout/retries/total"] == 0


def test_rollout_and_trainer_agree_on_tokens_probabilities_and_routes(steps):
    for metrics in steps.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_max"] < 1e-6
        assert metrics["rufus/rollout/tokens_diverged/total"] == 0
        assert metrics["actor/routing_replay/match_rate_fresh"] == 1.0
        assert metrics["actor/routing_replay/native_share"] == 0.0
