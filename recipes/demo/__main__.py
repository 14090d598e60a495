"""`make demo`, that is `python -m rufus_plugins.recipes.demo [--seed N] [--fresh] [--control]`.

Each stage leaves its product in the run's folder, so a second run goes on where the first one stopped.
Exit codes: 0 the held-out pass rate rose, 1 it did not (or a command failed), 2 wrong usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, RufusError
from rufus_plugins.recipes.chains import processes
from rufus_plugins.recipes.demo import commands, data, report
from rufus_plugins.recipes.demo.display import Display, sparkline
from rufus_plugins.recipes.demo.settings import Settings
from rufus_plugins.recipes.tiny import model, tasks

STALL_S = 900.0
"""A command without a new step for so long is stuck (the first step of RL takes 1-2 minutes). Ours."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.demo", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders are made")
    parser.add_argument("--fresh", action="store_true", help="remove the run's folder first")
    parser.add_argument("--control", action="store_true", help="also: the same time spent on more SFT instead")
    for field in dataclasses.fields(Settings):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    options = parser.parse_args(argv)
    settings = Settings(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Settings)})
    processes.become_reaper()
    display = Display()
    try:
        with Demo(settings, options.runs.resolve(), options.fresh, display) as demo:
            risen = demo.run()
            if options.control:
                demo.control()
        return 0 if risen else 1
    except KeyboardInterrupt:
        processes.end_descendants()
        display.say("\nStopped; no process is left. The same command goes on from here; FRESH=1 starts over.")
        return 130
    except RufusError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


class Demo:
    """One run folder. A context manager: the folder is locked while it is in use."""

    def __init__(self, settings: Settings, runs: Path, fresh: bool, display: Display):
        self.settings, self.display = settings, display
        self.folder = settings.folder(runs)
        self.data, self.metrics, self.logs = self.folder / "data", self.folder / "metrics", self.folder / "logs"
        self.model = self.folder / "model"
        self.base = self.folder / "sft" / f"global_step_{settings.sft_steps}" / "huggingface"
        self.trained = self.folder / "rl" / f"global_step_{settings.rl_steps}" / "actor" / "huggingface"
        self._fresh = fresh
        self._started = time.monotonic()

    def __enter__(self) -> Demo:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder.parent / f".{self.folder.name}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another demo is running in {self.folder}. Wait for it, or take another SEED.") from None
        stamp = self.folder / "settings.json"
        now = {"settings": dataclasses.asdict(self.settings), "code": code_digest()}
        if self.folder.exists():
            if self._fresh and (stamp.is_file() or not any(self.folder.iterdir())):
                shutil.rmtree(self.folder)
            elif not stamp.is_file():
                raise ConfigError(f"{self.folder} is no run of the demo. Move it away.")
            elif json.loads(stamp.read_text()) != now:
                raise ConfigError(
                    f"{self.folder} was made by another version of the demo. Start over: make demo FRESH=1"
                )
            else:
                self.display.say(f"Going on in {self.folder} (make demo FRESH=1 starts over).")
        for directory in (self.folder, self.logs, self.metrics):
            directory.mkdir(parents=True, exist_ok=True)
        stamp.write_text(json.dumps(now, indent=2) + "\n")
        return self

    def __exit__(self, *_: Any) -> None:
        self._lock.close()

    def run(self) -> bool:
        """All stages and the final table; returns whether the pass rate rose."""
        settings = self.settings
        self.display.say(
            f"Seed {settings.seed}. A {model_size()} MoE learns small programs: {settings.sft_steps} steps of SFT on "
            f"demonstrations of which {settings.faulty_share:.0%} hold a mistake, then {settings.rl_steps} steps of "
            f"Coding RL (GSPO), {settings.rl_prompts} problems x {settings.rl_group} answers each."
        )
        self.once("data", self.write_data)
        self.once("sft", self.warm_start)
        before = self.evaluated("before", self.base)
        self.once("rl", self.reinforce)
        after = self.evaluated("after", self.trained)
        result = report.summary(
            before, after, commands.metrics(self.metrics, "rl"), settings.rl_prompts * settings.rl_group
        )
        result["seconds"] = self.times()
        risen, sentence = report.verdict(result)
        (self.folder / "report.json").write_text(json.dumps(result, default=dataclasses.asdict, indent=2) + "\n")
        baseline = data.constant_baseline(tasks.problems(settings.seed, "heldout"))
        title = f"Coding RL with GSPO, seed {settings.seed}: {result['problems']} held-out problems, 95 % intervals"
        self.display.console.print(report.table(result, baseline, title))
        files = {"checkpoint": self.trained, "before RL": self.base, "logs": self.logs, "metrics": self.metrics}
        for line in report.lines(result, {name: relative(path) for name, path in files.items()}):
            self.display.say(line)
        self.display.say(f"\n{sentence}")
        return risen

    def control(self) -> None:
        """Where would the same time of more SFT have led? From the same start, on the same demonstrations."""
        seconds = self.times()
        steps = max(1, round(self.settings.sft_steps * seconds["rl"] / seconds["sft"]))
        output = self.folder / "control"
        checkpoint = output / f"global_step_{steps}" / "huggingface"
        command = commands.sft(self.settings, self.base, self.data / "sft.parquet", output, steps)
        self.once("control", lambda: self.sft("more SFT (control)", "control", command, steps))
        control = self.evaluated("control", checkpoint)
        before = self.evaluated("before", self.base)
        for how in ("sampled", "greedy"):
            rate, change = report.pass_rate(control[how]), report.gain(before[how], control[how])
            self.display.say(f"control, {steps} more SFT steps, {how}: {rate}, gain {change.signed}")

    def write_data(self) -> None:
        model.save(self.model, self.settings.seed)
        counts = data.write(self.settings, self.data)
        self.display.say(f"model and data written: {counts} rows")

    def warm_start(self) -> None:
        steps = self.settings.sft_steps
        command = commands.sft(self.settings, self.model, self.data / "sft.parquet", self.folder / "sft", steps)
        self.sft("SFT (verl, torchrun)", "sft", command, steps)

    def sft(self, title: str, name: str, command: Sequence[str], steps: int) -> None:
        for file in self.metrics.glob(f"{name}-*.jsonl"):
            file.unlink()  # SFT starts from its beginning
        file = commands.next_metrics_file(self.metrics, name)
        with self.display.stage(title, steps) as update:

            def progress() -> int:
                seen = commands.metrics(self.metrics, name)
                losses = [m["train/loss"] for _, m in sorted(seen.items()) if "train/loss" in m]
                update(max(seen, default=0), f"loss {losses[-1]:.3f}" if losses else "starting")
                return max(seen, default=0)

            self.execute(name, command, commands.environment(file), progress)

    def reinforce(self) -> None:
        settings = self.settings
        command = commands.rl(settings, self.base, self.data / "rl", self.folder / "rl")
        file = commands.next_metrics_file(self.metrics, "rl")
        with self.display.stage("Coding RL (verl, GSPO)", settings.rl_steps) as update:

            def progress() -> int:
                seen = commands.metrics(self.metrics, "rl")
                rewards = [m[report.REWARD] for _, m in sorted(seen.items()) if report.REWARD in m]
                text = f"reward {rewards[-1]:.2f} {sparkline(rewards, width=20)}" if rewards else "starting"
                update(max(seen, default=0), text)
                return len(seen)

            self.execute("rl", command, commands.environment(file), progress)
        if not self.trained.is_dir():
            raise processes.CommandFailed("rl", f"ended without {self.trained}", self.logs / "rl.log")

    def evaluated(self, name: str, checkpoint: Path) -> dict[str, Any]:
        output = self.folder / f"heldout-{name}.json"

        def evaluate() -> None:
            log = self.logs / f"heldout-{name}.log"
            log.unlink(missing_ok=True)
            with self.display.stage(f"held-out, {name}", 100) as update:

                def progress() -> str:
                    last = [line for line in processes.tail(log, 5).splitlines() if line.startswith("evaluated ")]
                    if last:
                        done, total = last[-1].split()[1].split("/")
                        update(round(100 * int(done) / int(total)))
                    return last[-1] if last else ""

                command = commands.evaluate(self.settings, checkpoint, self.data / "rl", output)
                self.execute(f"heldout-{name}", command, commands.environment(self.metrics / "unused"), progress)
                update(100)

        self.once(f"heldout-{name}", evaluate)
        return json.loads(output.read_text())

    def execute(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], progress: Callable[[], object]
    ) -> None:
        processes.run(name, command, self.logs / f"{name}.log", environment, progress, STALL_S)

    def once(self, name: str, stage: Callable[[], None]) -> None:
        """Runs the stage unless an earlier run finished it; keeps how long it took, all attempts together."""
        done = self.folder / f"{name}.done"
        if done.is_file():
            return
        started = time.monotonic()
        try:
            stage()
        finally:
            seconds = {**self.times(), name: self.times().get(name, 0.0) + time.monotonic() - started}
            (self.folder / "seconds.json").write_text(json.dumps(seconds))
        done.touch()

    def times(self) -> dict[str, float]:
        file = self.folder / "seconds.json"
        return json.loads(file.read_text()) if file.is_file() else {}


def code_digest() -> str:
    """Of the files that decide what a run's products mean."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in (*sorted((here.parent / "tiny").glob("*.*")), here / "data.py", here / "commands.py"):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def model_size() -> str:
    return "1.8M-parameter"


def relative(path: Path) -> Path:
    return Path(os.path.relpath(path))


if __name__ == "__main__":
    raise SystemExit(main())
