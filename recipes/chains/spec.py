"""Chain files: which stages, in which order, from which checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.types import Stage

HERE = Path(__file__).resolve().parent
GENERATED = "generated"
"""As a base: the tiny model, built from the seed."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Entry:
    """One stage of a chain."""

    name: str
    stage: Stage
    reads: str | None
    """Name of the entry whose checkpoint it starts from; None: the base model."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides at every scale."""
    scales: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """scale -> further overrides."""
    families: tuple[str, ...] | None = None
    """SFT at scale=tiny: the stages whose demonstrations it is trained on; None: all later ones."""

    @property
    def supervised(self) -> bool:
        """Trained by verl's SFT trainer."""
        return self.stage.metric == "loss"


@dataclass(frozen=True)
class Chain:
    name: str
    base: Mapping[str, str]
    """scale -> model."""
    entries: tuple[Entry, ...]

    def entry(self, name: str) -> Entry:
        found = {entry.name: entry for entry in self.entries}
        if name not in found:
            raise ConfigError(f"chain {self.name} has no stage {name!r}. It has {', '.join(found)}.")
        return found[name]

    def index(self, name: str) -> int:
        return self.entries.index(self.entry(name))


def chain_of(asked: str) -> Chain:
    """A chain by its name, the path of a chain file, or one registered stage as a chain of its own. Raises
    `ConfigError`, `PluginError`."""
    if asked.endswith((".yaml", ".yml")) or "/" in asked:
        return read(Path(asked))
    shipped = {file.stem: file for file in sorted(HERE.glob("*.yaml"))}
    if asked in shipped:
        return read(shipped[asked])
    from rufus_plugins.plugins import registry

    stages = registry().parts["stage"]
    if asked in stages or any(f.kind == "stage" and f.name == asked for f in registry().failures):
        stage = _stage(asked, f"stage {asked}")
        return Chain(stage.name, {}, (Entry(stage.name, stage, None),))
    trained = sorted(name for name, part in stages.items() if _trains(part))
    raise ConfigError(
        f"there is no chain and no stage {asked!r}. Chains: {', '.join(shipped)}, or the path of a chain file "
        f"(.yaml). Stages: {', '.join(trained)}."
    )


def _trains(part: Any) -> bool:
    try:
        return bool((part.factory if isinstance(part.factory, Stage) else part.factory()).config)
    except Exception:  # said by `rufus check`
        return False


def read(path: Path) -> Chain:
    """Raises `ConfigError` for what is no chain."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chain file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"the chain file {path} is no YAML: {error}") from None
    where = f"chain file {path}"
    _keys(found, {"name", "base", "stages"}, where)
    listed = found.get("stages")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{where}: `stages` is a list of at least one stage, such as `- {{stage: sft}}`")
    base = found.get("base") or {}
    if isinstance(base, str):
        raise ConfigError(f"{where}: `base` names a model per scale, such as {{tiny: generated}}")
    _keys(base, set(map(str, base)), f"{where}, base")
    entries: list[Entry] = []
    for number, one in enumerate(listed):
        entries.append(_entry(one, f"{where}, stage {number + 1}", entries))
    name = found.get("name", path.stem)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: `name` is {name!r}; letters, digits, _ and - are allowed")
    return Chain(name, {str(k): str(v) for k, v in base.items()}, tuple(entries))


def _entry(found: Any, where: str, before: Sequence[Entry]) -> Entry:
    if isinstance(found, str):
        found = {"stage": found}
    _keys(found, {"stage", "name", "reads", "overrides", "scales", "families"}, where)
    if not isinstance(found.get("stage"), str):
        raise ConfigError(f"{where} does not name its `stage`")
    stage = _stage(found["stage"], where)
    name = found.get("name", stage.name)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: `name` is {name!r}; letters, digits, _ and - are allowed")
    known = [entry.name for entry in before]
    if name in known:
        raise ConfigError(f"{where}: there is a stage {name!r} already; give one of them another `name`")
    reads = found.get("reads", known[-1] if known else None)
    if reads is not None and reads not in known:
        raise ConfigError(
            f"{where}: {name} reads {reads!r}, which is no stage before it. Before it: {', '.join(known) or 'none'}."
        )
    families = found.get("families")
    return Entry(
        name=name,
        stage=stage,
        reads=reads,
        overrides=_texts(found.get("overrides"), f"{where}, overrides"),
        scales={s: _texts(v, f"{where}, scales.{s}") for s, v in (found.get("scales") or {}).items()},
        families=None if families is None else _texts(families, f"{where}, families"),
    )


def _stage(name: str, where: str) -> Stage:
    from rufus_plugins.plugins import registry

    try:
        factory = registry().get("stage", name).factory
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    stage = factory if isinstance(factory, Stage) else factory()
    if not stage.config:
        raise ConfigError(f"{where}: stage {name} prepares data only (`rufus prepare {name}`); there is nothing to run")
    return replace(stage, name=name)


def _keys(found: Any, known: set[str], where: str) -> None:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where} is no mapping but {type(found).__name__}")
    if unknown := [str(key) for key in found if key not in known]:
        raise ConfigError(f"{where} has a key {unknown[0]!r}. Known: {', '.join(sorted(known))}.")


def _texts(found: Any, where: str) -> tuple[str, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{where} is a list of texts")
    return tuple(found)
