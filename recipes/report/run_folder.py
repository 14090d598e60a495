"""A chain's run folder as the report reads it, in whatever state it is: running, killed, half-written, branched."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError

FORMAT = 1
QUIET_S = 600.0
"""A run that says it runs and has written nothing for so long gives no sign of life. Ours."""
STOPPED = ("failed", "interrupted")
MAX_TEXT = 200_000
"""Characters of a config or command file that are read. Ours."""


@dataclass
class StageRun:
    """One folder below `stages/`."""

    folder: Path
    name: str
    stage: str
    branch: str | None
    index: int
    state: str
    told: Mapping[str, Any]
    """`stage.json` as it is."""

    @property
    def label(self) -> str:
        return f"{self.name}@{self.branch}" if self.branch else self.name

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w-]+", "-", self.folder.name)

    def data_folder(self, run: Run) -> Path:
        """Below `data/`; a name that is no plain one leads nowhere else."""
        names = [name for name in (self.name, self.stage) if re.fullmatch(r"\w[\w.-]*", name)]
        folders = [run.folder / "data" / name for name in [*names, re.sub(r"^\d+-|@.*$", "", self.folder.name)]]
        return next((folder for folder in folders if folder.is_dir()), folders[0])

    @property
    def parent(self) -> Mapping[str, Any]:
        return mapping(self.told.get("parent"))

    @property
    def digest(self) -> str | None:
        """Of the checkpoint."""
        found = mapping(self.told.get("checkpoint")).get("digest")
        return found if isinstance(found, str) else None

    @property
    def steps(self) -> tuple[int | None, int | None]:
        told = mapping(self.told.get("steps"))
        return whole(told.get("done")), whole(told.get("total"))

    def files(self, pattern: str) -> list[Path]:
        """Oldest attempt first."""
        found = [path for path in self.folder.glob(pattern) if path.is_file()]
        return sorted(found, key=lambda path: (_numbers(path.name), path.name))


@dataclass
class Run:
    folder: Path
    told: Mapping[str, Any]
    """`run.json` as it is."""
    stages: list[StageRun]
    events: list[Mapping[str, Any]]
    evidence: list[Mapping[str, Any]]
    problems: list[str] = field(default_factory=list)
    """What is missing or unreadable, one sentence each."""
    touched: float = 0.0
    """When the youngest file changed, seconds since the epoch."""

    @property
    def title(self) -> str:
        told = self.told
        known = [str(told[key]) for key in ("chain", "scale") if told.get(key)]
        return " \u00b7 ".join([*known, f"seed {told['seed']}"] if "seed" in told else known) or self.folder.name

    @property
    def unfinished(self) -> bool:
        return any(stage.state != "done" for stage in self.stages)

    @property
    def closed(self) -> bool:
        """Whether the last that happened is that the run came to its end or was stopped."""
        last = self.events[-1] if self.events else {}
        return last.get("event") in STOPPED or (last.get("event") == "finished" and not last.get("stage"))

    def alive(self, now: float | None = None, between_s: float = 0.0) -> bool:
        """Whether something is still going on, as far as files tell. `between_s`: how long the next stage may take to
        appear after the last one that is known."""
        if self.closed:
            return False
        quiet = (time.time() if now is None else now) - self.touched
        return quiet < (QUIET_S if self.unfinished else between_s)

    def stage(self, name: Any, branch: str | None = None) -> StageRun | None:
        """The stage of this name, on the branch if it is there, else on the trunk."""
        found = [stage for stage in self.stages if name in (stage.name, stage.label, stage.folder.name)]
        own = [stage for stage in found if stage.branch == branch or stage.label == name]
        trunk = [stage for stage in found if stage.branch is None]
        return (own or trunk or found or [None])[0]


def load(folder: str | Path) -> Run:
    """Raises `ConfigError` for what is no run folder, or one of another format."""
    folder = Path(folder)
    told, stages = folder / "run.json", folder / "stages"
    if not told.is_file() and not stages.is_dir():
        raise ConfigError(
            f"{folder} is no run folder: it has neither run.json nor stages/. `rufus run CHAIN` makes one, "
            "as runs/<chain>-<scale>-seed<N>."
        )
    problems: list[str] = []
    run = Run(folder, read_json(told, problems), [], [], [], problems)
    _check_format(run.told, told)
    run.touched = _youngest(folder)
    run.stages = [s for s in (_stage(path, problems) for path in sorted(stages.glob("*"))) if s is not None]
    run.stages += _to_come(run)
    run.stages.sort(key=lambda stage: (stage.index, stage.branch or ""))
    if not run.stages:
        problems.append("No stage has started: stages/ is empty.")
    run.events = [event for event in json_lines(folder / "events.jsonl") if isinstance(event, Mapping)]
    if not run.events:
        problems.append("events.jsonl is missing or empty: when what began and ended is not known.")
    run.evidence = list(_evidence(folder, problems))
    return run


def _check_format(told: Mapping[str, Any], path: Path) -> None:
    found = told.get("format", FORMAT)
    if found != FORMAT:
        raise ConfigError(
            f"{path} has format {found!r}; this version of rufus-plugins reads format {FORMAT}. "
            "Make the report with the version that made the run."
        )


def _stage(folder: Path, problems: list[str]) -> StageRun | None:
    if not folder.is_dir():
        return None
    told = read_json(folder / "stage.json", problems)
    _check_format(told, folder / "stage.json")
    named = re.fullmatch(r"(\d+)-(.+?)(?:@(.+))?", folder.name)
    index, name, branch = (int(named[1]), named[2], named[3]) if named else (len(problems) + 1000, folder.name, None)
    told_index = whole(told.get("index"))
    return StageRun(
        folder=folder,
        name=str(told.get("name") or name),
        stage=str(told.get("stage") or told.get("name") or name),
        branch=str(told["branch"]) if told.get("branch") else branch,
        index=index if told_index is None else told_index,
        state=str(told.get("state") or "unknown"),
        told=told,
    )


def _to_come(run: Run) -> list[StageRun]:
    """The stages of the chain, where it is one that is known here, that have no folder yet."""
    try:
        from rufus_plugins.recipes.chains.spec import chain_of

        entries = chain_of(str(run.told["chain"])).entries
    except Exception:  # a chain of the user's own file, or of a plugin that is not installed here
        return []
    known = {stage.name for stage in run.stages if stage.branch is None}
    return [
        StageRun(
            folder=run.folder / "stages" / f"{index:02d}-{entry.name}",
            name=entry.name,
            stage=entry.stage.name,
            branch=None,
            index=index,
            state="pending",
            told={"parent": {"stage": entry.reads}},
        )
        for index, entry in enumerate(entries)
        if entry.name not in known
    ]


def _evidence(folder: Path, problems: list[str]) -> Iterator[Mapping[str, Any]]:
    from rufus_plugins.recipes.evidence.measure import load as load_evidence

    for path in sorted(folder.glob("evidence/*/*.json")):
        try:
            yield load_evidence(path)
        except ConfigError as error:
            problems.append(f"Evidence left out: {error}")


def _youngest(folder: Path) -> float:
    """Of the files that a living run writes; checkpoints are many and say no more."""
    patterns = ("*.json*", "stages/*/*.json", "stages/*/logs/*", "stages/*/metrics/*", "data/*/*", "evidence/*/*")
    times = []
    for pattern in patterns:
        for path in folder.glob(pattern):
            try:
                times.append(path.stat().st_mtime)
            except OSError:  # replaced while we looked
                continue
    return max(times, default=0.0)


def read_json(path: Path, problems: list[str]) -> Mapping[str, Any]:
    """An object; {} where there is none, which becomes a problem."""
    where = "/".join(path.parts[-2:])
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        problems.append(f"{where} is missing.")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{where} cannot be read ({error}).")
        return {}
    if not isinstance(found, Mapping):
        problems.append(f"{where} holds no JSON object.")
        return {}
    return found


def json_lines(path: Path) -> Iterator[Any]:
    """What the lines hold; lines that are none (half-written by a killed run) are passed over."""
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    continue
    except OSError:
        return


def read_text(path: Path) -> str | None:
    """None where there is no such file; a long one is cut with a note."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_TEXT + 1)
    except OSError:
        return None
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n[... the rest is left out; see the file ...]"


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: Any) -> float | None:
    """A finite or infinite number; None for everything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", name))
