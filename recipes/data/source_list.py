"""The public sets that a stage's builder knows: hub names and columns, in the stage's `sources.yaml`.

`--input` of a builder is one of

- `sources`: every set of the list, from the hub (`--source a,b` takes some of them);
- `sample`: what the stage generates or ships, of the same shape, without network;
- a file, a directory or a hub name: its records are read by the columns of the set that `--source` names, else by the
  first set of the list whose columns they have. Where two sets have the same columns and mean different things by them,
  a name is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Raw, Unreadable, read


@dataclass(frozen=True)
class Source:
    """One entry of `sources.yaml`."""

    name: str
    kind: str
    """What the builder does with it; each builder documents its kinds."""
    hub: str
    columns: Mapping[str, str]
    """The builder's name of a value -> the column that holds it; dots lead into mappings and lists."""
    split: str = "train"
    subset: str | None = None
    licence: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Only records with these values are used: column -> value or list of values."""
    reading: str = ""
    """How the answer column is read; each builder documents its readings."""

    def has(self, record: Mapping[str, Any]) -> bool:
        return all(column.split(".")[0] in record for column in self.columns.values())


def load(file: Path) -> dict[str, Source]:
    """The sets of a `sources.yaml`. Raises `ConfigError` for one that does not read."""
    import yaml

    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        found = {name: Source(name, **entry) for name, entry in raw["sources"].items()}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file} is no list of sources ({type(error).__name__}: {error}).") from error
    if not found:
        raise ConfigError(f"{file} lists no source.")
    return found


def of_input(
    given: str,
    own: Mapping[str, Callable[[], Iterator[tuple[Source, Raw | Unreadable]]]],
    file: Path,
    names: str = "",
    split: str | None = None,
    subset: str | None = None,
) -> Iterator[tuple[Source, Raw | Unreadable]]:
    """What a builder's `--input` names: records of its `own` making (`sample` ...), or those that the list in `file`
    reads. Raises `ConfigError` for a list that does not read."""
    listed = load(file)
    return own[given]() if given in own else records(listed, given, names, split, subset)


def records(
    listed: Mapping[str, Source], given: str, names: str = "", split: str | None = None, subset: str | None = None
) -> Iterator[tuple[Source, Raw | Unreadable]]:
    """The records of `--input`, each with the set whose columns read it. `sample` is the builder's own affair."""
    chosen = _chosen(listed, names)
    if given == "sources":
        for source in (s for s in chosen.values() if s.hub):
            for item in read(source.hub, split or source.split, subset or source.subset):
                yield source, item
        return
    fixed = next(iter(chosen.values())) if names and len(chosen) == 1 else None
    by_hub = next((s for s in chosen.values() if s.hub == given), None)
    default = fixed or by_hub
    split = split or (default.split if default else "train")
    subset = subset or (by_hub.subset if by_hub else None)
    misfits: list[Unreadable] = []
    fitted = False
    for item in read(given, split, subset):
        if not isinstance(item, Raw):
            yield default or next(iter(chosen.values())), item
            continue
        source = default or _fitting(chosen, item, given)
        if source is None:
            columns = ", ".join(map(str, item.record))[:500] or "no columns"
            misfits.append(Unreadable(item.where, "unknown_columns", f"it has {columns}"))
            if not fitted and len(misfits) >= _MISFITS:
                break
            if not fitted:
                continue
        fitted = fitted or source is not None
        while misfits:
            yield next(iter(chosen.values())), misfits.pop(0)
        if source is not None:
            yield source, item
    if misfits:
        known = "; ".join(f"{s.name}: {', '.join(s.columns.values())}" for s in chosen.values())
        raise ConfigError(
            f"{misfits[0].where}: {misfits[0].detail}, which no source of the list has. Known: {known}. Rename the "
            "columns, or add the set to the list (--sources FILE)."
        )


def _chosen(listed: Mapping[str, Source], names: str) -> dict[str, Source]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in listed]
    if unknown:
        raise ConfigError(f"--source names {unknown[0]!r}; the list has {', '.join(listed)}.")
    return {name: listed[name] for name in wanted} or dict(listed)


_MISFITS = 1_000
"""Records of unknown columns at the beginning after which it is the wrong file. Ours."""


def _fitting(listed: Mapping[str, Source], item: Raw, given: str) -> Source | None:
    fits = [source for source in listed.values() if source.has(item.record)]
    if not fits:
        return None
    first = fits[0]
    twins = [s for s in fits if s.columns == first.columns and (s.kind, s.reading) != (first.kind, first.reading)]
    if twins:
        names = ", ".join(s.name for s in (first, *twins))
        raise ConfigError(f"The records of {given} could be of {names}: say which with --source NAME.")
    return replace(first, name=name_of(given))


def name_of(given: str) -> str:
    """The name of an origin: the file's, or the hub's."""
    path = Path(given)
    return path.name.split(".")[0] if path.exists() else given


def column(record: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, None if there is none. A number indexes a list."""
    value: Any = record
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, (list, tuple)) and part.lstrip("-").isdigit() and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def wanted(source: Source, record: Mapping[str, Any]) -> bool:
    """Whether the record has the values that the source's `where` asks for."""
    for path, value in source.where.items():
        if column(record, path) not in (value if isinstance(value, list) else [value]):
            return False
    return True
