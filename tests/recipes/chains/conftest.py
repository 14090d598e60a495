"""A small chain and the way to run it in a process that can be killed. The runner, its config, data and lineage are
real; verl's trainers and the evaluation are stood for (stand_in/sitecustomize.py)."""

import copy
import functools
import json
import os
import sys
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


@functools.cache
def template(config_name, groups):
    from rufus_plugins import cli_check

    return cli_check.composed(config_name, list(groups))


def composed_quickly(config_name, command, stage):
    """What Hydra composes where overrides are plain values: the groups are composed, once for all tests."""
    import yaml
    from omegaconf import OmegaConf

    from rufus_plugins.recipes.chains import commands

    words = commands.overrides(command)
    groups = tuple(word for word in words if "." not in word.partition("=")[0])
    config = copy.deepcopy(template(config_name, groups))
    for word in words:
        if word not in groups:
            key, _, text = word.partition("=")
            OmegaConf.update(config, key.lstrip("+"), yaml.safe_load(text), force_add=True)
    return config


class Kit:
    def __init__(self, place):
        import pyarrow.parquet as pq

        from rufus_plugins.recipes.tiny import model, tokenizer
        from rufus_plugins.recipes.tiny.families.writing import write

        self.place = place
        base = place / "base"
        model.config(tokenizer.build()).save_pretrained(base)
        (base / "model.safetensors").write_text("base\nwhole\n")
        write("reasoning_rl", place / "family", 0, sft_rows=4)
        for name in ("first", "second", "sft"):
            (place / "data" / name).mkdir(parents=True)
            for part in ("train", "heldout"):
                table = pq.read_table(place / "family" / "rl" / f"{part}.parquet")
                pq.write_table(table.slice(0, 12), place / "data" / name / f"{part}.parquet")
        (place / "small.yaml").write_text(CHAIN)
        template("rufus", ("stage=reasoning_rl", "scale=tiny"))
        template("sft_trainer_engine", ("+stage=sft", "+stage_scale=sft_tiny"))

    def start(self, runs, *more, overrides=OVERRIDES, data=None, base=None, quickly=True):
        """pid of a forked `rufus run`: everything heavy is imported already. It leads a session of its own."""
        pid = os.fork()
        if pid:
            return pid
        code = 99
        try:
            os.setsid()
            out = os.open(self.place / "out.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout = sys.stderr = os.fdopen(out, "w", buffering=1)  # pytest's own go elsewhere
            os.environ.update(PYTHONPATH=str(STAND_IN), RUFUS_STAND_IN=str(self.place))
            from rufus_plugins import cli
            from rufus_plugins.recipes.chains import plan

            if quickly:
                plan.composed = composed_quickly
            words = ["run", str(self.place / "small.yaml"), "--runs", str(runs)]
            words += ["--base", str(base or self.place / "base"), "--data", str(data or self.place / "data")]
            code = cli.main([*words, *more, *overrides])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def run(self, runs, *more, **options):
        """The exit code; `said` is what it printed."""
        return os.waitstatus_to_exitcode(os.waitpid(self.start(runs, *more, **options), 0)[1])

    @property
    def said(self):
        return (self.place / "out.log").read_text()

    def living(self):
        """Command lines of what a run started and that still lives."""
        mark = f"RUFUS_STAND_IN={self.place}".encode()
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.append(Path("/proc", entry, "cmdline").read_bytes())
            except OSError:
                continue
        return [line for line in found if line]  # a zombie has none


def folder_of(runs):
    (folder,) = (path for path in runs.iterdir() if path.is_dir() and not path.name.startswith("."))
    return folder


def products(runs):
    """All that a run leaves and that must not depend on how often it was killed."""
    folder = folder_of(runs)
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


@pytest.fixture(scope="session")
def kit(tmp_path_factory):
    import verl.trainer.ppo.core_algos  # noqa: F401

    import rufus_plugins.hosts.verl.chat_tokens
    import rufus_plugins.hosts.verl.validation
    import rufus_plugins.recipes.evidence.compare  # noqa: F401
    import rufus_plugins.recipes.report.page  # noqa: F401
    from rufus_plugins.recipes.chains import lineage

    lineage.code()  # reads the whole package; the forked runs know it already
    return Kit(tmp_path_factory.mktemp("chains"))


@pytest.fixture(scope="session")
def whole(kit):
    """The folder of runs of one that nothing disturbed."""
    runs = kit.place / "whole"
    assert kit.run(runs, quickly=False) == 0, kit.said[-4000:]
    return runs
