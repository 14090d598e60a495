"""Harbor's verifier rules: on files as a verifier leaves them, and by really running test scripts."""

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from rufus_plugins.errors import DataError, InfrastructureError
from rufus_plugins.rewards.harbor_verifier import read_reward, run_verifier
from rufus_plugins.rewards.task_tests import TaskTests, step_rewards
from rufus_plugins.types import ExecResult, Task, Termination, Trajectory


def files(json=None, txt=None, **more):
    return {"reward.json": json, "reward.txt": txt, "exit_code": 0, "timed_out": False} | more


def test_reward_json_beats_reward_txt():
    assert read_reward(files('{"reward": 0.25, "style": 1}', "1.0")) == {"reward": 0.25, "style": 1.0}
    assert read_reward(files(None, " 0.5\n")) == {"reward": 0.5}


def test_the_exit_code_is_ignored():
    assert read_reward(files(None, "1", exit_code=1)) == {"reward": 1.0}


@pytest.mark.parametrize(
    "found",
    [
        files(),
        files(None, ""),
        files(None, "nan"),
        files(None, "inf"),
        files(None, "passed"),
        files("", "1"),
        files("{}", "1"),
        files("[1]"),
        files('{"reward": NaN}'),
        files('{"reward": null}'),
        files('{"reward": "1"}'),
        files('{"reward": true}'),
        files('{"reward": {"a": 1}}'),
        files(None, "1", timed_out=True),
    ],
)
def test_a_reward_that_is_missing_or_no_finite_number_is_a_typed_error(found):
    with pytest.raises(InfrastructureError) as caught:
        read_reward(found)
    assert caught.value.termination is Termination.REWARD_FAILED


def step(reward, min_reward=None, name="s"):
    return {"name": name, "verifier": files(None, str(reward)), "min_reward": min_reward}


def test_the_mean_is_over_the_steps_that_ran():
    assert step_rewards([step(0.25), step(0.75)], "mean") == ({"reward": 0.5}, 2)


def test_final_takes_the_last_step_that_ran():
    assert step_rewards([step(0.25), step(0.75)], "final") == ({"reward": 0.75}, 2)


def test_a_missed_min_reward_ends_the_task_at_its_step():
    assert step_rewards([step(0.25, 0.5), step(1.0)], "mean") == ({"reward": 0.25}, 1)
    assert step_rewards([step(0.25, 0.5), step(1.0)], "final") == ({"reward": 0.25}, 1)
    assert step_rewards([step(0.5, 0.5), step(1.0)], "mean") == ({"reward": 0.75}, 2)


def test_min_reward_may_name_a_reward():
    first = {"name": "a", "verifier": files('{"reward": 1, "safety": 0}'), "min_reward": {"safety": 1}}
    assert step_rewards([first, step(1.0)], "mean")[1] == 1
    assert step_rewards([step(1.0, {"safety": 1}), step(1.0)], "mean")[1] == 1


def test_a_name_that_a_step_lacks_counts_0_in_the_mean():
    first = {"name": "a", "verifier": files('{"reward": 1, "style": 1}')}
    assert step_rewards([first, step(0.0)], "mean")[0] == {"reward": 0.5, "style": 0.5}


def test_a_broken_step_is_no_half_reward():
    with pytest.raises(InfrastructureError):
        step_rewards([step(1.0), {"name": "b", "verifier": files()}], "mean")


def score(artifacts, ending=Termination.ANSWERED, extra=None, **config):
    trajectory = Trajectory(Task("1", "harbor", [], extra=extra or {}), artifacts=artifacts, termination=ending)
    return asyncio.run(TaskTests(**config)(trajectory))


def test_the_reward_reads_what_the_environment_kept():
    assert score({"verifier": files('{"reward": 0.5, "lint": 1}')}).value == 0.5
    assert score({"verifier": files('{"passed": 1}')}).value == 1.0
    assert score({"verifier": files('{"a": 1, "b": 0}')}, key="b").value == 0.0
    with pytest.raises(DataError, match="rufus.reward.key"):
        score({"verifier": files('{"a": 1, "b": 0}')})


def test_the_record_names_the_strategy():
    artifacts = {"verifier_steps": [step(0.0), step(1.0)]}
    assert score(artifacts).value == 0.5
    assert score(artifacts, extra={"multi_step_reward_strategy": "final"}).value == 1.0


def test_no_artifact_or_a_lost_sandbox_is_no_0():
    with pytest.raises(InfrastructureError, match="verifier"):
        score({})
    with pytest.raises(InfrastructureError):
        score({"verifier": files(None, "0")}, Termination.SANDBOX_LOST)


def test_a_budget_that_ran_out_is_still_tested():
    assert score({"verifier": files(None, "1")}, Termination.MAX_TURNS).value == 1.0


class Here:
    """A sandbox that is a folder of this machine: these scripts are ours."""

    def __init__(self, root):
        self.root = root

    async def exec(self, command, timeout_s):
        begin = time.monotonic()
        try:
            ran = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, timeout=timeout_s, cwd=self.root
            )
            return ExecResult(ran.returncode, ran.stdout, ran.stderr, True, time.monotonic() - begin)
        except subprocess.TimeoutExpired:
            return ExecResult(None, "", "", True, timeout_s)

    async def read_file(self, path):
        return Path(path).read_bytes()

    async def write_file(self, path, content):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)

    async def close(self):
        pass


def run(root, script, timeout_s=20.0, **more):
    tests = {"test.sh": b"#!/bin/bash\n" + script.encode(), "deep/data.txt": b"42"} | more.pop("tests", {})
    return asyncio.run(
        run_verifier(Here(root), tests, timeout_s=timeout_s, tests_dir=f"{root}/tests", logs_dir=f"{root}/logs", **more)
    )


def test_a_reward_that_the_agent_wrote_itself_is_deleted_first(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/reward.json").write_text('{"reward": 1}')
    with pytest.raises(InfrastructureError, match="neither"):
        read_reward(run(tmp_path, "exit 0"))


def test_tests_that_the_agent_planted_are_replaced(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text("planted")
    found = run(tmp_path, f"ls {tmp_path}/tests > {tmp_path}/seen; echo 1 > {tmp_path}/logs/reward.txt; exit 3")
    assert read_reward(found) == {"reward": 1.0} and found["exit_code"] == 3
    assert (tmp_path / "seen").read_text().split() == ["deep", "test.sh"]


def test_the_script_sees_its_environment_and_work_directory(tmp_path):
    script = f'echo "{{\\"reward\\": $POINTS}}" > {tmp_path}/logs/reward.json; pwd > {tmp_path}/where'
    (tmp_path / "app").mkdir()
    found = run(tmp_path, script, env={"POINTS": "0.5"}, workdir=f"{tmp_path}/app")
    assert read_reward(found) == {"reward": 0.5}
    assert (tmp_path / "where").read_text().strip() == f"{tmp_path}/app"


def test_a_verifier_that_hangs_is_a_typed_error(tmp_path):
    found = run(tmp_path, f"echo 1 > {tmp_path}/logs/reward.txt; sleep 30", timeout_s=0.5)
    with pytest.raises(InfrastructureError, match="time"):
        read_reward(found)


@pytest.mark.parametrize(
    "found", [files('{"reward": 1%s}' % ("0" * 400)), files(None, 1), files({"reward": 1}), files(None, "1" * 400)]
)
def test_numbers_beyond_floats_and_files_that_are_no_text_are_typed_errors(found):
    with pytest.raises(InfrastructureError) as caught:
        read_reward(found)
    assert caught.value.termination is Termination.REWARD_FAILED


@pytest.mark.parametrize("steps", [["x"], [{"name": "a"}], [{"name": "a", "verifier": None}]])
def test_a_step_without_a_verifier_is_a_typed_error(steps):
    with pytest.raises(InfrastructureError, match="no verifier"):
        step_rewards(steps, "mean")


def test_a_least_reward_that_is_no_number_is_a_fault_of_the_record():
    with pytest.raises(DataError, match="min_reward"):
        step_rewards([{"name": "a", "verifier": files(None, "1"), "min_reward": "high"}], "mean")
