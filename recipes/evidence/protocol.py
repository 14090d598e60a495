"""What is measured, pinned: held-out items, reward, environment, episode rules, lengths, samples and seeds.

Two figures may be compared if their protocols have the same `digest`. All that decides a figure is in it, and the
content of files in the place of their paths. The paper's own tables warn of less: GPQA 71.1 in one and 73.36 in
another for the same checkpoint, by other conditions of evaluation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.types import Task

SAMPLES = 4
"""Samples per item at temperature 1. Ours."""
PASSES_AT = {"preference": 0.0, "search_answer": 0.5}
"""Reward -> score from which on an attempt counts as a pass; 1 for all others. Ours: a preference has no natural
threshold, and a right answer of a search costs up to a half for malformed calls."""
_APART = ("file", "paths", "baseline")
"""Of no weight for a figure: where files lie, and what a constant answer would score."""
SEED_OWN = frozenset({"seed", "heldout", "files"})
"""What may differ between the protocols of one stage on several seeds of a chain: each seed generates its own data."""


@dataclass(frozen=True)
class Protocol:
    """Fields in JSON; `read` and `write` keep it in a file."""

    name: str
    stage: str
    file: str
    """Parquet of held-out rows in verl's format."""
    heldout: Mapping[str, Any]
    """`file name`, `sha256` of the file, `rows` in it, `items` measured: a subset drawn by `seed` if fewer."""
    reward: Mapping[str, Any]
    """`name` and `fields`."""
    environment: Mapping[str, Any] | None = None
    """`name` and `fields`; None for one answer to the prompt."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Of the episode (rollouts/rules.py), all of them."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""
    tool_format: str | None = None
    """None: that of the model family."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """`dtype` and `attn_implementation` of the rollout."""
    max_tokens: int = 0
    """Response of an item: all that follows the prompt of a context."""
    context: int = 0
    """Prompt and response."""
    samples: int = SAMPLES
    temperature: float = 1.0
    greedy: bool = True
    """Also one attempt per item by the likeliest tokens."""
    seed: int = 0
    passes_at: float = 1.0
    files: Mapping[str, str] = field(default_factory=dict)
    """Digests of the files and folders that reward and environment read, by their field."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Where they are."""
    baseline: Mapping[str, Any] = field(default_factory=dict)
    """The best constant `answer` (or call sequence, `kind`) on the held-out rows, and the `share` of them it solves."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.max_tokens < 1 or self.context <= 1:
            raise ConfigError(
                f"protocol {self.name}: samples={self.samples}, max_tokens={self.max_tokens}, context={self.context}: "
                "all must be positive"
            )
        if self.temperature <= 0:
            raise ConfigError(f"protocol {self.name}: temperature={self.temperature} must be above 0")

    @property
    def attempts(self) -> int:
        """Per item."""
        return self.samples + bool(self.greedy)

    def conditions(self) -> dict[str, Any]:
        """Name -> value of all that decides a figure."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _APART}

    @property
    def digest(self) -> str:
        return digest_of_conditions(self.conditions())

    def as_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of(cls, found: Any, where: str) -> Protocol:
        known = {f.name for f in fields(cls)}
        if not isinstance(found, Mapping) or set(found) - known:
            raise ConfigError(f"{where} is no protocol: it is a JSON object with {', '.join(sorted(known))}")
        try:
            return cls(**found)
        except TypeError as error:
            raise ConfigError(f"{where} is no protocol: {error}") from None

    def write(self, path: Path) -> None:
        from rufus_plugins.recipes.data.writing import write_atomically

        write_atomically(path, json.dumps(self.as_json(), indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(cls, path: Path) -> Protocol:
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"the protocol {path} cannot be read: {error}") from None
        return cls.of(found, str(path))

    def part(self, kind: str) -> tuple[str, dict[str, Any]] | None:
        """Name and fields of `reward` or `environment`, with the paths of files in their places."""
        own = getattr(self, kind)
        if own is None:
            return None
        return own["name"], _placed(own["fields"], kind, self.paths)

    def tasks(self) -> list[Task]:
        """The items in the order of the file. Raises `ConfigError` if the file is not the one that was pinned."""
        now = content_digest(Path(self.file))
        if now != self.heldout["sha256"]:
            raise ConfigError(
                f"{self.file} is not the held-out file of protocol {self.name}: its sha256 is {now[:12]}, not "
                f"{self.heldout['sha256'][:12]}. Restore the file, or make a new protocol; figures of the two are not "
                "comparable."
            )
        for where, path in self.paths.items():
            if content_digest(Path(path)) != self.files[where]:
                raise ConfigError(f"{where} of protocol {self.name}: {path} has changed since the protocol was made")
        return _drawn(tasks_in(Path(self.file)), self.heldout["items"], self.seed)


def digest_of_conditions(conditions: Mapping[str, Any]) -> str:
    text = json.dumps(conditions, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def from_config(
    name: str,
    stage: str,
    config: Any,
    heldout: Path,
    samples: int = SAMPLES,
    seed: int = 0,
    items: int | None = None,
    passes_at: float | None = None,
) -> Protocol:
    """The protocol by which `config`, composed for verl's trainer, trains: its reward, environment, rules, lengths,
    chat template and engine. `items` caps the held-out rows. The baseline is that of `family.json` beside the data.

    Raises `ConfigError`.
    """
    from rufus_plugins import selection
    from rufus_plugins.plugins import registry

    heldout = Path(heldout).resolve()
    reward = selection.name_of(config, "reward")
    if reward is None:
        raise ConfigError(
            f"protocol {name}: the config selects no reward of ours (reward=<name>): nothing to measure by"
        )
    selection.check(config)
    tasks = tasks_in(heldout)
    parts: dict[str, Any] = {"reward": {"name": reward, "fields": selection.fields_of(config, "reward")}}
    rules: dict[str, Any] = {}
    tool_format = None
    if (environment := selection.name_of(config, "environment")) is not None:
        from dataclasses import asdict

        from rufus_plugins.hosts.verl.chat_tokens import asked_format

        own = selection.rules_of(config)
        registry().get("environment", environment)
        parts["environment"] = {"name": environment, "fields": selection.fields_of(config, "environment")}
        rules, tool_format = asdict(own), asked_format(config, own)
    paths: dict[str, str] = {}
    for kind, part in parts.items():
        part["fields"] = _without_paths(part["fields"], kind, paths)
    files = {where: content_digest(Path(path)) for where, path in paths.items()}
    rollout, data = config.actor_rollout_ref.rollout, config.data
    model = config.actor_rollout_ref.model.get("override_config") or {}
    measured = len(tasks) if items is None else min(items, len(tasks))
    if measured < 1:
        raise ConfigError(f"protocol {name}: {heldout} has no rows, or items={items}")
    return Protocol(
        name=name,
        stage=stage,
        file=str(heldout),
        heldout={
            "file name": heldout.name,
            "sha256": content_digest(heldout),
            "rows": len(tasks),
            "items": measured,
        },
        reward=parts["reward"],
        environment=parts.get("environment"),
        rules=rules,
        template=_plain(data.get("apply_chat_template_kwargs") or {}),
        tool_format=tool_format,
        engine={"dtype": str(rollout.dtype), "attn_implementation": model.get("attn_implementation")},
        max_tokens=int(rollout.response_length),
        context=int(rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length),
        samples=samples,
        seed=seed,
        passes_at=PASSES_AT.get(reward, 1.0) if passes_at is None else passes_at,
        files=files,
        paths=paths,
        baseline=_baseline(heldout),
    )


def tasks_in(path: Path) -> list[Task]:
    """The rows of a parquet file as tasks. Raises `ConfigError` for what is no such file and for an id given twice."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} is no parquet file of held-out rows: {error}") from None
    tasks: dict[str, Task] = {}
    for number, row in enumerate(rows):
        extra = dict(row.get("extra_info") or {})
        id_ = str(extra.get("id", extra.get("index", number)))
        if not isinstance(row.get("prompt"), list) or "reward_model" not in row:
            raise ConfigError(f"{path}, row {number}: no prompt or no reward_model. `rufus prepare` writes such rows.")
        if id_ in tasks:
            raise ConfigError(f"{path} has the id {id_!r} twice: items are what is compared, so each needs its own")
        truth = (row["reward_model"] or {}).get("ground_truth")
        tasks[id_] = Task(id_, str(row.get("data_source", "unknown")), tuple(row["prompt"]), truth, extra)
    return list(tasks.values())


def _drawn(tasks: list[Task], count: int, seed: int) -> list[Task]:
    """`count` of them, the same whatever the order of the rows."""

    def lot(task: Task) -> str:
        return hashlib.sha256(f"{seed} {task.id}".encode()).hexdigest()

    chosen = {task.id for task in sorted(tasks, key=lot)[:count]}
    return [task for task in tasks if task.id in chosen]


def content_digest(path: Path) -> str:
    """sha256 of a file; of a folder, over the names and contents of all files in it. Raises `ConfigError`."""
    try:
        if path.is_file():
            return _of_file(path)
        if not path.is_dir():
            raise FileNotFoundError(f"there is no {path}")
        made = hashlib.sha256()
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            made.update(f"{file.relative_to(path).as_posix()}\0".encode())
            made.update(bytes.fromhex(_of_file(file)))
        return made.hexdigest()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_paths(value: Any, where: str, paths: dict[str, str]) -> Any:
    """`value` with the absolute paths of what exists taken out into `paths`."""
    if isinstance(value, Mapping):
        return {str(k): _without_paths(v, f"{where}.{k}", paths) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(v, f"{where}.{i}", paths) for i, v in enumerate(value)]
    if isinstance(value, str) and value.startswith("/") and Path(value).exists():
        paths[where] = value
        return f"<{where}>"
    return value


def _placed(value: Any, where: str, paths: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _placed(v, f"{where}.{k}", paths) for k, v in value.items()}
    if isinstance(value, list):
        return [_placed(v, f"{where}.{i}", paths) for i, v in enumerate(value)]
    return paths.get(where, value)


def _baseline(heldout: Path) -> dict[str, Any]:
    """Of the family that wrote the data (`rl/heldout.parquet` beside `family.json`), {} where there is none."""
    for folder in (heldout.parent, heldout.parent.parent):
        try:
            found = json.loads((folder / "family.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and "constant_share" in found:
            names = {"answer": "constant_answer", "share": "constant_share", "kind": "constant_kind"}
            return {name: found[key] for name, key in names.items() if key in found}
    return {}


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else dict(value)
