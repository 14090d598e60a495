"""`rufus run`, killed with -9 at random moments and given again, against a run that nothing disturbed. The runner, its
config, data and lineage are real; verl's trainers and the evaluation are stood for (stand_in/sitecustomize.py)."""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "stand_in"
CHAIN = """
name: small
stages:
  - {stage: sft}
  - {stage: reasoning_rl, name: first}
  - {stage: reasoning_rl, name: second}
"""
OVERRIDES = [
    *("trainer.total_training_steps=5", "trainer.save_freq=2", "actor_rollout_ref.actor.optim.lr=0.1"),
    *("sft:trainer.total_training_steps=6", "sft:trainer.save_freq=1", "sft:trainer.test_freq=1", "sft:optim.lr=0.1"),
]


class Kit:
    """A chain, its base and its data, and the way to run it in a process that can be killed."""

    def __init__(self, place):
        import pyarrow.parquet as pq

        from rufus_plugins.recipes.tiny import model, tokenizer
        from rufus_plugins.recipes.tiny.families.writing import write

        self.place = place
        base = place / "base"
        model.config(tokenizer.build()).save_pretrained(base)
        (base / "model.safetensors").write_text("base\nwhole\n")
        write("reasoning_rl", place / "family", 0, sft_rows=4)
        for name, rows in (("first", 12), ("second", 12), ("sft", 12)):
            (place / "data" / name).mkdir(parents=True)
            for part in ("train", "heldout"):
                table = pq.read_table(place / "family" / "rl" / f"{part}.parquet")
                pq.write_table(table.slice(0, rows), place / "data" / name / f"{part}.parquet")
        (place / "small.yaml").write_text(CHAIN)

    def start(self, runs, *more, overrides=OVERRIDES):
        """pid of a forked `rufus run`: everything heavy is imported already."""
        pid = os.fork()
        if pid:
            return pid
        code = 99
        try:
            out = os.open(self.place / "out.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.environ.update(PYTHONPATH=str(STAND_IN), RUFUS_STAND_IN=str(self.place))
            from rufus_plugins import cli

            words = ["run", str(self.place / "small.yaml"), "--runs", str(runs), "--base", str(self.place / "base")]
            code = cli.main([*words, "--data", str(self.place / "data"), *more, *overrides])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def run(self, runs, *more, **options):
        return os.waitstatus_to_exitcode(os.waitpid(self.start(runs, *more, **options), 0)[1])

    @property
    def said(self):
        return (self.place / "out.log").read_text()

    def living(self):
        mark = f"RUFUS_STAND_IN={self.place}".encode()
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.append(Path("/proc", entry, "cmdline").read_bytes())
            except OSError:
                continue
        return [line for line in found if line]  # a zombie has no command line


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    import verl.trainer.ppo.core_algos  # noqa: F401

    import rufus_plugins.hosts.verl.chat_tokens
    import rufus_plugins.hosts.verl.validation
    import rufus_plugins.recipes.evidence.protocol  # noqa: F401

    return Kit(tmp_path_factory.mktemp("killed"))


@pytest.fixture(scope="module")
def whole(kit):
    """The run that nothing disturbed, its products and how long it took."""
    began = time.monotonic()
    assert kit.run(kit.place / "whole") == 0, kit.said[-4000:]
    return products(kit.place / "whole"), time.monotonic() - began


def products(runs):
    """All that a run leaves and that must not depend on how often it was killed."""
    (folder,) = (path for path in runs.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = {}
    for stage in sorted((folder / "stages").iterdir()):
        told = json.loads((stage / "stage.json").read_text())
        kept = ("name", "stage", "branch", "index", "state", "config_digest", "parent", "data", "checkpoint", "pick")
        found[stage.name] = {key: told.get(key) for key in kept} | {"steps": told["steps"]}
        for file in sorted((stage / "checkpoints").rglob("*")):
            if file.is_file():
                found[str(file.relative_to(folder))] = file.read_text()
    for file in sorted((folder / "evidence").rglob("*.json")):
        evidence = json.loads(file.read_text())
        found[str(file.relative_to(folder))] = {k: v for k, v in evidence.items() if k not in ("seconds", "code")}
    return json.loads(json.dumps(found).replace(str(folder), "<run>"))


def test_an_undisturbed_run_hands_each_checkpoint_to_the_next_stage(kit, whole):
    found, _ = whole
    sft, first, second = (found[name] for name in ("00-sft", "01-first", "02-second"))
    assert [stage["state"] for stage in (sft, first, second)] == ["done"] * 3
    assert first["parent"]["stage"] == "sft" and first["parent"]["digest"] == sft["checkpoint"]["digest"]
    assert second["parent"]["stage"] == "first" and second["parent"]["digest"] == first["checkpoint"]["digest"]
    # losses 1.5, 1.25, 1.125, 1.0625, 1.03125, 1.015625: the fifth is the first within 2 % of the best later one
    assert sft["pick"]["step"] == 5 and "global_step_5" in sft["checkpoint"]["path"]
    assert len([name for name in found if name.startswith("evidence/")]) == 5  # 2 + 2, and the first one's guard
    assert not kit.living()


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 7))]
"""Three kills each."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_killed_at_random_moments_ends_like_one_that_was_not(kit, whole, seed):
    wanted, seconds = whole
    runs, rng = kit.place / f"killed-{seed}", random.Random(seed)
    for _ in range(3):
        pid = kit.start(runs)
        deadline = time.monotonic() + rng.uniform(0, 0.7 * seconds)
        while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.005)
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):  # it had finished
            pass
    assert kit.run(runs) == 0, kit.said[-4000:]
    assert products(runs) == wanted
    assert not (kit.place / "overlaps").exists(), (kit.place / "overlaps").read_text()
    assert not kit.living()
