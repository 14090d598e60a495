"""Runs a chain: data, base model, and stage after stage verl's own trainer, measured before and after.

Everything it leaves is whole or absent, so that the same command goes on after a kill at any moment: a finished stage
is not run again, an unfinished one goes on from verl's last whole checkpoint, evidence and data are made once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, InfrastructureError, RufusError
from rufus_plugins.recipes.chains import checkpoints, commands, lineage, pinned, plateau, processes
from rufus_plugins.recipes.chains.lineage import event, read_json, write_json
from rufus_plugins.recipes.chains.metrics import Metrics, next_file
from rufus_plugins.recipes.chains.plan import (
    Options,
    Step,
    branch_of,
    families_of,
    folder_of,
    problems_of,
    reduced,
    selected,
    step_of,
)
from rufus_plugins.recipes.chains.spec import GENERATED, Entry
from rufus_plugins.recipes.demo.display import Display, sparkline

STALL_S = {"tiny": 900.0}
"""Without a new step for so long a command is stuck; other scales: `STALL_LARGE_S`. Ours."""
STALL_LARGE_S = 6 * 3600.0
LEFT_OVER_S = 30.0
"""For the processes of a killed run to be gone. Ours."""
REPORT_S = 30.0
"""Between two versions of the report while a stage runs. Ours."""
REWARD = ("critic/score/mean", "critic/rewards/mean")
"""verl's names of the mean reward of a step."""


class Runner:
    """One run folder; a context manager, which locks it."""

    def __init__(self, options: Options, display: Display | None = None, fresh: bool = False):
        self.options, self.display, self.fresh = options, display or Display(), fresh
        self.folder = options.folder
        self.chain = options.chain
        self.steps: dict[str, Step] = {}
        """Of the entries that this run takes, by name, once they are planned."""
        self._reported = 0.0
        self._report_problem = ""
        self._prepared: set[str] = set()

    def __enter__(self) -> Runner:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder.parent / f".{self.folder.name}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(
                f"another `rufus run` works in {self.folder}: wait for it, or take another --seed"
            ) from None
        if left := end_left_over(self.folder):
            self.display.say(f"Ended {left} processes that an earlier run had left behind.")
        try:
            self._clear()
            self._adopt()
        except BaseException:
            self._lock.close()
            raise
        return self

    def _clear(self) -> None:
        """Removes the folder for --fresh, and what a killed --fresh left of it."""
        aside = self.folder.with_name(f".{self.folder.name}.removed")
        if self.fresh and self.folder.exists():
            if self.options.branch:
                raise ConfigError("--fresh would remove the trunk, too: give --branch another name instead")
            if not (self.folder / "run.json").is_file() and any(self.folder.iterdir()):
                raise ConfigError(f"{self.folder} is no run folder: it was not removed. Move it away.")
            shutil.rmtree(aside, ignore_errors=True)
            self.folder.rename(aside)  # a folder half removed would be none that --fresh knows
        shutil.rmtree(aside, ignore_errors=True)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            what = {KeyboardInterrupt: "interrupted", ConfigError: "refused"}.get(kind, "failed")
            event(self.folder, what, None, "".join(str(error).splitlines()[:1]))
        self._lock.close()

    def _adopt(self) -> None:
        options = self.options
        asked = {"chain": self.chain.name, "scale": options.scale, "seed": options.seed, "base": options.base}
        stamp = self.folder / "run.json"
        there = read_json(stamp)
        if there is None:
            if self.folder.exists() and any(self.folder.iterdir()):
                raise ConfigError(f"{self.folder} holds other things and no run.json: move it away")
            if options.branch:
                raise ConfigError(f"--branch: there is no run in {self.folder} to branch from")
            self.folder.mkdir(parents=True, exist_ok=True)
            there = {"format": lineage.FORMAT, **asked, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "branches": {}}
            write_json(stamp, there)  # first of all: by it the folder is known as a run
            event(self.folder, "created")
        else:
            changed = lineage.differences({k: there.get(k) for k in asked}, asked)
            if changed:
                raise ConfigError(
                    f"{self.folder} was begun otherwise ({'; '.join(changed)}). Start over with --fresh, or use "
                    "another --runs."
                )
            if options.branch and options.branch not in there["branches"]:
                event(self.folder, "branched", options.since, options.branch)
        if (before := there.get("code")) and before != lineage.code():
            event(self.folder, "changed", None, f"code {before.get('digest')} -> {lineage.code()['digest']}")
            self.display.say("Note: the code of rufus-plugins has changed since this run was last worked on.")
        given = {"overrides": list(options.overrides), "own": {k: list(v) for k, v in options.own.items()}}
        if options.branch:
            there["branches"][options.branch] = {"from": options.since, **given}
        else:
            there |= given
        write_json(stamp, there | {"code": lineage.code(), "stages": [entry.name for entry in self.chain.entries]})

    # what the stages need

    def base(self) -> str:
        """The model that the first stage starts from. Raises `ConfigError`."""
        asked = self.options.base or self.chain.base.get(self.options.scale)
        if asked is None:
            raise ConfigError(
                f"{self.chain.name} at scale={self.options.scale} has no model to start from: --base MODEL (a folder "
                f"or a name), {'--base generated, ' if self.options.scale == 'tiny' else ''}or --from-run RUN FOLDER"
            )
        if asked != GENERATED:
            path = Path(asked).expanduser()
            return str(path.resolve()) if path.exists() else asked
        made = self.folder / "base"
        if not (made / "config.json").is_file():
            words = ["--output", str(made), "--seed", str(self.options.seed), "--vocabulary", "families"]
            self._prepare("base model", [sys.executable, "-m", "rufus_plugins.recipes.tiny.model", *words])
        return str(made)

    def family(self, entry: Entry) -> Path | None:
        """The folder of the entry's generated data; None where the user gave data."""
        if self.options.data is not None and any(
            (self.options.data / name / "train.parquet").is_file() for name in (entry.name, entry.stage.name)
        ):
            return None
        if self.options.scale != "tiny":
            return None
        made = self.folder / "data" / entry.name
        if entry.name not in self._prepared:
            if pinned.pinned(made) and (changed := pinned.changes(made)) and not self._trained(entry):
                event(self.folder, "changed", entry.name, f"data made anew: {', '.join(changed[:8])}")
                shutil.rmtree(made)
            if not pinned.pinned(made):
                shutil.rmtree(made, ignore_errors=True)  # a killed run left it half made
                self._generate(entry, made)
                pinned.pin(made)
            self._prepared.add(entry.name)
        return made

    def _generate(self, entry: Entry, made: Path) -> None:
        words = ["--stage", entry.stage.name, "--output", str(made), "--seed", str(self.options.seed)]
        if entry.supervised and entry.stage.tiny is None:
            for one in families_of(self.options, entry):
                words += ["--family", f"{one.name}={self.family(one)}"]
        self._prepare(f"data of {entry.name}", [sys.executable, "-m", "rufus_plugins.recipes.chains.tiny_data", *words])

    def _trained(self, entry: Entry) -> bool:
        """Whether anything was trained on the entry's data, on the trunk or on a branch."""
        own = folder_of(self.options, entry, None)
        folders = [own, *own.parent.glob(f"{own.name}@*")]
        return any(checkpoints.last_whole(folder / "checkpoints") for folder in folders)

    def _prepare(self, name: str, command: Sequence[str]) -> None:
        log = self.folder / "logs" / f"{name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = commands.environment(self.folder, self.options.scale, log.with_suffix(".jsonl"))
        processes.run(name, command, log, environment, lambda: None, STALL_S["tiny"])

    def plan(self) -> list[Step]:
        """All stages of this run: generates their data, composes and checks their configs. Raises `ConfigError` that
        names everything that is wrong with any of them."""
        self._prepared = set()
        base = self.base()
        problems: list[str] = []
        for entry in selected(self.options):
            try:
                step = step_of(self.options, entry, self.model_before(entry, base), self.family(entry))
            except ConfigError as error:
                problems.append(str(error))
                continue
            self.steps[entry.name] = step
            problems += problems_of(step)
        if problems:
            raise ConfigError("nothing was started:\n  - " + "\n  - ".join(dict.fromkeys(problems)))
        return list(self.steps.values())

    def model_before(self, entry: Entry, base: str) -> str:
        """The checkpoint that the entry starts from, or where it will be."""
        if entry.reads is None:
            return base
        parent = self.chain.entry(entry.reads)
        told = self._told(parent)
        if told and told.get("checkpoint"):
            return str(self.folder / told["checkpoint"]["path"])
        folder = folder_of(self.options, parent, branch_of(self.options, parent)) / "checkpoints"
        megatron = not parent.supervised and self.options.scale in commands.ENGINES
        model = "model/huggingface" if megatron else "huggingface"
        return str(folder / "global_step_<last>" / (model if parent.supervised else f"actor/{model}"))

    def _told(self, entry: Entry) -> dict[str, Any] | None:
        """`stage.json` of the entry in this run's branch, or the trunk's where the branch has not got it."""
        return read_json(folder_of(self.options, entry, branch_of(self.options, entry)) / "stage.json")

    # running

    def run(self) -> dict[str, Any]:
        """Runs what is missing; returns stage -> change of its held-out figures. Raises `RufusError`."""
        planned = self.plan()
        self.check_finished(planned)
        base = self.base()
        changes: dict[str, Any] = {}
        for number, step in enumerate(planned):
            told = self._told(step.entry)
            title = f"[{number + 1}/{len(planned)}] {step.label}"
            if told and told["state"] == "done":
                self.display.say(f"{title}: done")
            else:
                # the parent is finished now: the command names its checkpoint
                family = self.family(step.entry)
                step = step_of(self.options, step.entry, self.model_before(step.entry, base), family)
                self.steps[step.entry.name] = step
                start = self._start(step, base)
                if not step.entry.supervised:
                    self.measure(step.entry, start, f"{title} held-out, before")
                self.train(step, title, base)
            changes |= self.measured(step, title, base)
            self.report(now=True)
        event(self.folder, "finished")
        return changes

    def check_finished(self, planned: Sequence[Step]) -> None:
        """Raises `ConfigError` if a stage that has been trained was trained otherwise than is asked for now."""
        import yaml

        found: list[str] = []
        for step in planned:
            told = self._told(step.entry)
            if told is None or (told["state"] != "done" and not checkpoints.last_whole(step.folder / "checkpoints")):
                continue
            lines = []
            if told["config_digest"] != step.config_digest:
                old = yaml.safe_load((step.folder / "config.yaml").read_text(encoding="utf-8"))
                lines += lineage.differences(reduced(old, self.folder), step.settled) or ["the config"]
            data = data_digests(step.data, self.family(step.entry))
            lines += [f"data {line}" for line in lineage.differences(told["data"], data)]
            if told["parent"]["digest"] != (parent := self._parent_digest(step)):
                lines.append(f"what it starts from: {told['parent']['digest']} -> {parent}")
            if lines:
                found.append(f"{step.label}: " + "; ".join(lines[:8]) + (" ..." if len(lines) > 8 else ""))
                event(self.folder, "changed", step.label, "; ".join(lines))
        if found:
            first = next(step for step in planned if found[0].startswith(f"{step.label}:"))
            raise ConfigError(
                "finished stages were trained otherwise than this command asks for (old -> new):\n  - "
                + "\n  - ".join(found)
                + f"\nRun them anew beside the old ones: --from {first.entry.name} --branch NAME; or start over with "
                "--fresh."
            )

    def train(self, step: Step, title: str, base: str) -> None:
        folder, saved = step.folder, step.folder / "checkpoints"
        for name in ("logs", "metrics", "samples", "checkpoints"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if removed := checkpoints.remove_partial(saved):
            event(self.folder, "removed", step.label, f"half-written checkpoints {removed}")
        start = checkpoints.last_whole(saved)
        told = self._told(step.entry) or {}
        if told.get("code") not in (None, lineage.code()):
            event(self.folder, "changed", step.label, "goes on with other code than it began with")
        parent = self._parent(step, base)
        from omegaconf import OmegaConf

        OmegaConf.save(step.config, folder / "config.yaml")
        (folder / "command.txt").write_text(commands.shown(step.command) + "\n", encoding="utf-8")
        told = {
            "format": lineage.FORMAT,
            "name": step.entry.name,
            "stage": step.entry.stage.name,
            "branch": step.branch,
            "index": step.index,
            "state": "running",
            "command": list(step.command),
            "config_digest": step.config_digest,
            "parent": parent,
            "data": data_digests(step.data, self.family(step.entry)),
            "code": lineage.code(),
            "checkpoint": None,
            "seconds": told.get("seconds", 0.0),
            "attempts": told.get("attempts", 0) + 1,
            "steps": {"done": start, "total": step.total},
        }
        write_json(folder / "stage.json", told)
        event(self.folder, "resumed" if start else "started", step.label, f"from step {start}" if start else "")
        began, before = time.monotonic(), told["seconds"]
        try:
            if not self._complete(step):
                self._execute(step, title, told)
            self._finish(step, told)
        except BaseException as error:
            told["seconds"] = before + time.monotonic() - began
            told["steps"]["done"] = max(checkpoints.last_whole(saved), start)
            stopped = isinstance(error, KeyboardInterrupt)
            told["state"] = "interrupted" if stopped else "failed"
            write_json(folder / "stage.json", told)
            event(self.folder, told["state"], step.label, "" if stopped else str(error).splitlines()[0])
            raise
        told["seconds"] = before + time.monotonic() - began
        write_json(folder / "stage.json", told)
        event(self.folder, "finished", step.label, told["checkpoint"]["digest"])

    def _complete(self, step: Step) -> bool:
        """Whether all steps are there already: the run was killed between verl's end and ours."""
        return bool(step.total) and checkpoints.last_whole(step.folder / "checkpoints") >= step.total

    def _execute(self, step: Step, title: str, told: dict[str, Any]) -> None:
        if step.entry.supervised and int(step.config.trainer.nnodes) > 1:
            raise ConfigError(
                f"{step.label} runs on {step.config.trainer.nnodes} machines: start this command on each of them, then "
                f"`rufus run` again, which goes on from its checkpoints:\n\n{commands.shown(step.command)}"
            )
        metrics = Metrics(step.folder / "metrics")
        total = step.total or 0
        with self.display.stage(title, total) as update:

            def progress() -> object:
                seen = metrics.look()
                done = max(seen, default=0)
                update(min(done, total) if total else done, _summary(seen, step.entry.supervised))
                if done != told["steps"]["done"]:
                    told["steps"]["done"] = done
                    write_json(step.folder / "stage.json", told)
                self.report()
                return sum(map(len, seen.values()))

            log = step.folder / "logs" / "train.log"
            environment = commands.environment(self.folder, self.options.scale, next_file(step.folder / "metrics"))
            stall = STALL_S.get(self.options.scale, STALL_LARGE_S)
            processes.run(step.label, step.command, log, environment, progress, stall)

    def _finish(self, step: Step, told: dict[str, Any]) -> None:
        saved = step.folder / "checkpoints"
        last = checkpoints.last_whole(saved)
        if step.total and last < step.total:
            raise RufusError(
                f"{step.label} ended with a checkpoint of step {last} of {step.total}: trainer.total_epochs may be too "
                f"small for trainer.total_training_steps, or trainer.save_freq is not above 0. See "
                f"{step.folder / 'logs' / 'train.log'}"
            )
        if step.entry.supervised:
            seen = Metrics(step.folder / "metrics").look()
            told["pick"] = plateau.pick(seen, [s for s in checkpoints.steps(saved) if checkpoints.model_in(saved, s)])
            last = told["pick"]["step"]
        model = checkpoints.model_in(saved, last) if last else None
        if model is None:
            raise RufusError(
                f"{step.label} ended without a model that the next stage can load in {saved}. The end of its log:\n\n"
                + processes.tail(step.folder / "logs" / "train.log")
            )
        told["checkpoint"] = {
            "path": str(model.relative_to(self.folder)),
            "digest": lineage.digest_of(model),
            "step": last,
        }
        told["steps"]["done"] = checkpoints.last_whole(saved)
        told["state"] = "done"

    def _parent(self, step: Step, base: str) -> dict[str, Any]:
        """What the stage starts from. Raises `ConfigError` if it is not what its own stage left."""
        model = self._start(step, base)
        there = Path(model).is_dir()
        digest = lineage.digest_of(Path(model)) if there else None
        if step.entry.reads is None:
            return {"stage": None, "path": model, "digest": digest}
        expected = self._told(self.chain.entry(step.entry.reads))["checkpoint"]["digest"]
        if digest != expected:
            raise ConfigError(
                f"{model} is not the checkpoint that stage {step.entry.reads} left ({expected}, now {digest}): "
                "restore it, or start over with --fresh"
            )
        label = step.entry.reads
        if branch := branch_of(self.options, self.chain.entry(label)):
            label = f"{label}@{branch}"
        return {"stage": label, "path": str(Path(model).relative_to(self.folder)), "digest": digest}

    def _parent_digest(self, step: Step) -> str | None:
        if step.entry.reads is not None:
            told = self._told(self.chain.entry(step.entry.reads)) or {}
            return (told.get("checkpoint") or {}).get("digest")
        base = Path(self.base())
        return lineage.digest_of(base) if base.is_dir() else None

    def _start(self, step: Step, base: str) -> str:
        """The model that the stage starts from. Raises `ConfigError` if its own stage is not finished."""
        if (reads := step.entry.reads) is not None:
            told = self._told(self.chain.entry(reads))
            if not told or told["state"] != "done":
                raise ConfigError(
                    f"{step.label} starts from the checkpoint of {reads}, which is not finished: run it first, with "
                    f"--until {reads} and without --from"
                )
        return self.model_before(step.entry, base)

    # evidence

    def measured(self, step: Step, title: str, base: str) -> dict[str, Any]:
        """Own figures of the finished stage and those of the stages before it, on its checkpoint."""
        from rufus_plugins.recipes.evidence.compare import compare

        if self.options.scale != "tiny":
            return {}
        told = self._told(step.entry) or {}
        end = str(self.folder / told["checkpoint"]["path"])
        changes: dict[str, Any] = {}
        for entry in self.chain.entries[: step.index + 1]:
            if entry.supervised:
                continue
            own = entry == step.entry
            after = self.measure(entry, end, f"{title} held-out{'' if own else f', {entry.name}'}")
            if own:
                before = self.measure(entry, self._start(step, base), f"{title} held-out, before")
                changes[step.label] = compare(before, after)
                self.display.say(f"{title}: mean reward {changes[step.label].words}")
        return changes

    def measure(self, entry: Entry, model: str, title: str) -> Path:
        """The evidence file of a checkpoint under the entry's protocol, made unless it is there."""
        from rufus_plugins.recipes.evidence.protocol import from_config

        step = self.steps.get(entry.name) or step_of(self.options, entry, model, self.family(entry))
        self.steps[entry.name] = step
        protocol = from_config(
            entry.name,
            entry.stage.name,
            step.config,
            step.data / "heldout.parquet",
            samples=self.options.samples,
            seed=self.options.seed,
            items=self.options.items,
        )
        where = self.folder / "protocols" / f"{protocol.digest}.json"
        if not where.is_file():
            protocol.write(where)
        output = self.folder / "evidence" / protocol.digest / f"{lineage.digest_of(Path(model))}.json"
        if output.is_file():
            return output
        output.parent.mkdir(parents=True, exist_ok=True)
        log = self.folder / "logs" / f"measure-{entry.name}-{output.stem[:12]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        words = [
            "--protocol",
            str(where),
            "--checkpoint",
            model,
            "--output",
            str(output),
            "--name",
            _name(model, self.folder),
        ]
        command = [sys.executable, "-m", "rufus_plugins.recipes.evidence", "measure", *words]
        with self.display.stage(title, 100) as update:

            def progress() -> object:
                lines = [one for one in processes.tail(log, 5).splitlines() if one.startswith("measured ")]
                if lines:
                    done, total = lines[-1].split()[1].split("/")
                    update(round(100 * int(done) / max(1, int(total))))
                return lines[-1:]

            environment = commands.environment(self.folder, self.options.scale, log.with_suffix(".jsonl"))
            processes.run(title, command, log, environment, progress, STALL_S["tiny"])
            update(100)
        return output

    def report(self, now: bool = False) -> None:
        """Writes the report at most every `REPORT_S`; that it could not be is said once, and ends nothing."""
        if not now and time.monotonic() - self._reported < REPORT_S:
            return
        try:
            from rufus_plugins.recipes.report.page import write

            write(self.folder)
        except Exception as error:  # a picture of the run must not end the run
            if str(error) != self._report_problem:
                self._report_problem = str(error)
                self.display.say(f"The report could not be written: {type(error).__name__}: {error}")
        self._reported = time.monotonic()


@contextmanager
def rehearsal(options: Options) -> Iterator[Runner]:
    """A runner over a temporary folder, for `--dry-run`: data and the base model are made there and removed."""
    with tempfile.TemporaryDirectory(prefix="rufus-run-") as scratch:
        runner = Runner(dataclasses.replace(options, runs=Path(scratch)))
        runner.folder.mkdir(parents=True)
        yield runner


def data_digests(folder: Path, generated: Path | None) -> dict[str, str]:
    """Of the two files that verl reads, and of all that was generated with them."""
    names = [name for name in ("train.parquet", "heldout.parquet") if (folder / name).exists()]
    digests = {name: lineage.digest_of(folder / name) for name in names}
    return digests if generated is None else digests | {"all generated files": pinned.digest(generated)}


def end_left_over(run: Path) -> int:
    """Kills processes of an earlier run of this folder whose runner was killed; returns how many."""
    mark = f"{commands.RUN}={run}".encode()
    own = {os.getpid(), os.getppid()}
    killed: set[int] = set()
    deadline = time.monotonic() + LEFT_OVER_S
    while alive := [pid for pid in _marked(mark) if pid not in own]:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(alive)
        if time.monotonic() > deadline:
            raise InfrastructureError(f"processes {alive} of an earlier run in {run} do not end: end them yourself")
        time.sleep(0.05)
    return len(killed)


def _marked(mark: bytes) -> list[int]:
    """Processes with `mark` in their environment, zombies left out: those have none."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it ended, or belongs to another user
            continue
    return found


def _name(model: str, run: Path) -> str:
    """Of a checkpoint in reports: its stage."""
    path = Path(model)
    try:
        parts = path.relative_to(run).parts
    except ValueError:
        return path.name
    return parts[1] if parts[0] == "stages" else parts[0]


def _summary(seen: dict[int, dict[str, Any]], supervised: bool) -> str:
    if supervised:
        losses = [m["train/loss"] for _, m in sorted(seen.items()) if "train/loss" in m]
        held = [m[plateau.LOSS] for _, m in sorted(seen.items()) if plateau.LOSS in m]
        text = f"loss {losses[-1]:.3f}" if losses else "starting"
        return text + (f", held-out {held[-1]:.3f}" if held else "")
    rewards = [m[name] for _, m in sorted(seen.items()) for name in REWARD if name in m]
    low, high = min(rewards, default=0.0), max(rewards, default=1.0)
    curve = sparkline(rewards, min(low, 0.0), max(high, low + 1e-6, 1.0), width=20) if rewards else ""
    return f"reward {rewards[-1]:.2f} {curve}" if rewards else "starting"
