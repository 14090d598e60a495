"""What `rufus run` notices, refuses, goes on with and says."""

import json
import os
import shutil
import signal
import time

import pytest

from .conftest import OVERRIDES, folder_of, products

OTHER_LR = "second:actor_rollout_ref.actor.optim.lr=0.2"


@pytest.fixture
def runs(whole, tmp_path):
    """A finished run where it was made: run folders do not move."""
    kept = shutil.copytree(folder_of(whole), tmp_path / "kept", symlinks=True)
    yield whole
    shutil.rmtree(folder_of(whole))
    shutil.copytree(kept, whole / "small-tiny-seed0", symlinks=True)


def told(runs, stage):
    return json.loads((folder_of(runs) / "stages" / stage / "stage.json").read_text())


def events(runs):
    return [json.loads(line) for line in (folder_of(runs) / "events.jsonl").read_text().splitlines()]


def test_a_finished_run_is_not_run_again(kit, runs):
    before = products(runs)
    assert kit.run(runs) == 0, kit.said
    assert products(runs) == before and told(runs, "02-second")["attempts"] == 1
    assert "second: done" in kit.said and "mean reward" in kit.said


def test_a_finished_stage_with_another_config_is_refused_by_key_and_a_branch_leaves_the_trunk_alone(kit, runs):
    before = products(runs)
    assert kit.run(runs, overrides=[*OVERRIDES, OTHER_LR]) == 2
    assert "actor_rollout_ref.actor.optim.lr: 0.1 -> 0.2" in kit.said
    assert "--from second --branch" in kit.said and "--fresh" in kit.said
    assert products(runs) == before
    assert kit.run(runs, "--from", "second", "--branch", "faster", overrides=[*OVERRIDES, OTHER_LR]) == 0, kit.said
    after = products(runs)
    assert {name: after[name] for name in before} == before
    branch = after["02-second@faster"]
    assert branch["branch"] == "faster" and branch["parent"] == before["02-second"]["parent"]
    assert branch["checkpoint"]["digest"] != before["02-second"]["checkpoint"]["digest"]
    assert kit.run(runs) == 0, kit.said  # the trunk is as it was


def test_changed_data_of_a_finished_stage_is_noticed(kit, runs, tmp_path):
    data = shutil.copytree(kit.place / "data", tmp_path / "data")
    shutil.copy(data / "sft" / "heldout.parquet", data / "first" / "train.parquet")
    assert kit.run(runs, data=data) == 2
    assert "first: data train.parquet: " in kit.said and "--from first --branch" in kit.said


def test_a_base_model_that_changed_in_its_place_is_noticed(kit, runs, tmp_path):
    file = kit.place / "base" / "model.safetensors"
    was = file.read_text()
    file.write_text("another\nwhole\n")
    try:
        assert kit.run(runs) == 2
    finally:
        file.write_text(was)
    assert "sft: what it starts from: " in kit.said and "first" not in kit.said.splitlines()[-2]


def test_a_stage_does_not_start_from_a_checkpoint_that_is_not_what_its_stage_left(kit, runs):
    folder = folder_of(runs)
    shutil.rmtree(folder / "stages" / "02-second")
    with (folder / told(runs, "01-first")["checkpoint"]["path"] / "config.json").open("a") as file:
        file.write(" ")
    assert kit.run(runs) == 2
    assert "is not the checkpoint that stage first left" in kit.said


def test_a_branch_from_a_stage_whose_parent_is_not_finished_says_what_to_do(kit, tmp_path):
    runs = tmp_path / "runs"
    assert kit.run(runs, "--until", "sft") == 0, kit.said
    assert told(runs, "00-sft")["state"] == "done" and not (folder_of(runs) / "stages" / "01-first").exists()
    assert kit.run(runs, "--from", "second", "--branch", "b") == 2
    assert "--until first" in kit.said


def test_ctrl_c_ends_everything_and_the_same_command_goes_on(kit, whole, tmp_path):
    runs = tmp_path / "runs"
    pid = kit.start(runs)
    deadline = time.monotonic() + 60
    while not list(runs.glob("*/stages/01-first/checkpoints")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(pid, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert "no process is left" in kit.said and not kit.living()
    assert events(runs)[-1]["event"] == "interrupted"
    assert kit.run(runs) == 0, kit.said
    assert products(runs) == products(whole)


def test_a_stage_that_fails_shows_the_end_of_its_log_and_how_to_go_on(kit, whole, tmp_path):
    runs = tmp_path / "runs"
    assert kit.run(runs, overrides=[*OVERRIDES, "first:trainer.save_freq=0"]) == 1
    assert "ZeroDivisionError" in kit.said and "same command" in kit.said
    assert told(runs, "01-first")["state"] == "failed" and events(runs)[-1]["event"] == "failed"
    assert kit.run(runs) == 0, kit.said  # nothing was trained with the wrong value
    assert products(runs) == products(whole)


def test_two_runs_do_not_share_a_folder(kit, runs):
    import fcntl

    with (runs / ".small-tiny-seed0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert kit.run(runs) == 2
    assert "another `rufus run` works in" in kit.said


def test_other_code_is_a_warning_and_an_event(kit, runs):
    stamp = folder_of(runs) / "run.json"
    stamp.write_text(
        json.dumps({**json.loads(stamp.read_text()), "code": {"version": "0", "git": None, "digest": "of old"}})
    )
    assert kit.run(runs) == 0, kit.said
    assert "code" in kit.said and [e for e in events(runs) if e["event"] == "changed" and "of old" in e["detail"]]


def test_what_a_folder_holds_decides_whether_fresh_removes_it(kit, tmp_path):
    foreign = tmp_path / "small-tiny-seed0"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    for more in ((), ("--fresh",)):
        assert kit.run(tmp_path, *more) == 2
        assert (foreign / "thesis.tex").exists()


def test_fresh_begins_again_but_never_with_a_branch(kit, runs):
    assert kit.run(runs, "--fresh", "--from", "second", "--branch", "b") == 2
    assert "--fresh would remove the trunk" in kit.said
    assert kit.run(runs, "--fresh", "--until", "sft") == 0, kit.said
    assert not (folder_of(runs) / "stages" / "01-first").exists()
