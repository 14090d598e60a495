"""Finds plugins, looks parts up by name, builds them from config, and says what exists when a name is wrong.

A broken plugin never breaks the others: it becomes a `Failure`, is reported on stderr, and only a run
that selects one of its parts (or a name that nobody provides) ends with it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.metadata
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pluggy

from . import hookspecs
from .errors import ConfigError, PluginError
from .fields import REQUIRED, Unfit, config_fields, fitted, takes_any
from .hookspecs import KINDS
from .shapes import built_problem, shape_problem

GROUP = "rufus"


@dataclass(frozen=True)
class Part:
    """One registered part."""

    kind: str
    name: str
    plugin: str
    factory: Callable[..., Any]

    @property
    def doc(self) -> str:
        """First line of the factory's docstring, else of its module's (one part, one file)."""
        text = inspect.getdoc(self.factory) if not isinstance(self.factory, functools.partial) else None
        if dataclasses.is_dataclass(self.factory) and (text or "").startswith(f"{self.factory.__name__}("):
            text = None  # dataclass writes its signature where no docstring is
        if not text:
            text = getattr(sys.modules.get(getattr(self.factory, "__module__", "")), "__doc__", None)
        return (text or "").strip().split("\n")[0]

    @property
    def file(self) -> str:
        return _file_of(self.factory)

    @property
    def config_fields(self) -> dict[str, Any]:
        """Field name -> default (`REQUIRED` if it has none). Empty for parts that take no config."""
        if self.kind in ("advantage_estimator", "policy_loss"):
            return {}
        return config_fields(self.factory)


@dataclass(frozen=True)
class Failure:
    """A plugin, or one part of it, that cannot be used."""

    plugin: str
    where: str
    """`module (file)` as far as it is known."""
    problem: str
    mend: str
    kind: str | None = None
    name: str | None = None
    """Both None when the whole plugin failed."""
    trace: str = ""

    def __str__(self) -> str:
        part = f" {self.kind} {self.name!r}:" if self.name else ""
        text = f"plugin {self.plugin!r}:{part} {self.problem}\n  where: {self.where}\n  mend:  {self.mend}"
        return text + ("\n" + _indent(self.trace) if self.trace else "")


@dataclass
class Registry:
    """All parts of all plugins, by kind and name."""

    parts: dict[str, dict[str, Part]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    failures: list[Failure] = field(default_factory=list)
    plugins: dict[str, str] = field(default_factory=dict)
    """Plugin name -> where it comes from."""
    _warned: bool = False

    def get(self, kind: str, name: str) -> Part:
        """The part, or a `ConfigError` / `PluginError` that says what exists and which plugins failed."""
        for failure in self.failures:
            if failure.kind == kind and failure.name == name:
                raise PluginError(str(failure))
        try:
            return self.parts[kind][name]
        except KeyError:
            pass
        known = sorted(self.parts[kind])
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        message = f"There is no {kind} named {name!r}.{hint} Known: {', '.join(known) or 'none'}."
        broken = [f for f in self.failures if f.name is None and f.kind in (None, kind)]
        if broken:
            lines = "\n".join(_indent(str(f)) for f in broken)
            raise PluginError(f"{message}\nThese plugins did not load; one of them may provide it:\n{lines}")
        raise ConfigError(f"{message} `rufus list {kind}` shows them; docs/plugins.md says how to write one.")

    def build(
        self, kind: str, name: str, config: Mapping[str, Any] | None = None, beside: Mapping[str, Sequence[str]] = {}
    ) -> Any:
        """An instance of the part with `config` as its fields.

        `beside` names other keys that may stand in the same section (what they are -> their names): an unknown key may
        be meant for one of them. Raises `ConfigError` for unknown or missing fields and for values that the part
        refuses.
        """
        part = self.get(kind, name)
        config = dict(config or {})
        fields = part.config_fields
        unknown = [key for key in config if key not in fields]
        if unknown and not takes_any(part.factory):
            close = difflib.get_close_matches(unknown[0], [*fields, *itertools.chain(*beside.values())], n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            others = "".join(f" {what}: {', '.join(names)}." for what, names in beside.items())
            raise ConfigError(
                f"{kind} {name!r} has no field {unknown[0]!r}.{hint} "
                f"Its fields: {', '.join(fields) or 'none'} (plugin {part.plugin!r}, {part.file}).{others}"
            )
        missing = [key for key, default in fields.items() if default is REQUIRED and key not in config]
        if missing:
            raise ConfigError(f"{kind} {name!r} needs {', '.join(missing)}: set rufus.{kind}.{missing[0]}=...")
        try:
            built = part.factory(**fitted(part.factory, config))
        except Unfit as error:
            raise ConfigError(f"{kind} {name!r}: rufus.{kind}.{error} ({part.file})") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{kind} {name!r} refuses its config {config}: {error} ({part.file})") from error
        if not inspect.isclass(part.factory) and (problem := built_problem(kind, built)):
            raise PluginError(f"plugin {part.plugin!r}: {kind} {name!r}: its factory returned {problem} ({part.file})")
        return built

    def warn(self, stream: Any = None) -> None:
        """Prints the failures, if there are any."""
        for failure in self.failures:
            print(f"rufus: {failure}", file=stream or sys.stderr, flush=True)

    def warn_once(self) -> None:
        """Prints the failures on stderr, the first time in this process."""
        if not self._warned:
            self._warned = True
            self.warn()

    def silence(self) -> None:
        """For a caller that shows the failures itself: `warn_once` then prints nothing."""
        self._warned = True


@functools.cache
def registry() -> Registry:
    """The registry of this process, loaded once."""
    return load()


def load(entry_points: list[importlib.metadata.EntryPoint] | None = None) -> Registry:
    """Loads every plugin of the entry-point group `rufus`. Never raises for a broken plugin."""
    if entry_points is None:
        entry_points = list(importlib.metadata.entry_points(group=GROUP))
    found = Registry()
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    given: dict[tuple[str, str], list[Part]] = {}
    seen: dict[str, str] = {}
    for entry in sorted(entry_points, key=lambda e: (not e.value.startswith("rufus_plugins."), e.name, e.value)):
        if seen.get(entry.name) == entry.value:
            continue  # the same distribution is visible twice, for example editable and installed
        if entry.name in seen:
            found.failures.append(
                Failure(
                    entry.name,
                    entry.value,
                    f"the plugin name is taken by {seen[entry.name]}",
                    f"rename the entry point of {entry.value} in its pyproject.toml",
                )
            )
            continue
        seen[entry.name] = entry.value
        for part in _parts_of(entry, manager, found):
            given.setdefault((part.kind, part.name), []).append(part)
    for (kind, name), parts in given.items():
        if len(parts) == 1:
            found.parts[kind][name] = parts[0]
            continue
        providers = " and ".join(f"{p.plugin!r} ({p.file})" for p in parts)
        found.failures.append(
            Failure(
                parts[-1].plugin,
                parts[-1].file,
                f"the name is given by {len(parts)} plugins: {providers}",
                "rename one of them, or uninstall one of the plugins",
                kind,
                name,
            )
        )
    return found


def _parts_of(entry: importlib.metadata.EntryPoint, manager: pluggy.PluginManager, found: Registry) -> list[Part]:
    where = entry.value
    try:
        plugin = entry.load()
        where = f"{entry.value} ({_file_of(plugin)})"
        manager.register(plugin, name=entry.name)
        manager.check_pending()
    except BaseException as error:  # a plugin's import may even call sys.exit
        if isinstance(error, KeyboardInterrupt):
            raise
        if manager.has_plugin(entry.name):
            manager.unregister(name=entry.name)
        if isinstance(error, pluggy.PluginValidationError):
            problem = f"wrong hook: {str(error).strip()}"
            mend = f"the hooks are {', '.join(KINDS.values())}, without arguments"
        else:
            problem, mend = f"does not load: {type(error).__name__}: {error}", "mend the import, or uninstall it"
        found.failures.append(Failure(entry.name, where, problem, mend, trace=_trace(error)))
        return []
    found.plugins[entry.name] = where
    parts: list[Part] = []
    hooks = 0
    for kind, hook_name in KINDS.items():
        for impl in getattr(manager.hook, hook_name).get_hookimpls():
            if impl.plugin_name != entry.name:
                continue
            hooks += 1
            try:
                given = impl.function()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                problem = f"{hook_name}() raised {type(error).__name__}: {error}"
                found.failures.append(
                    Failure(entry.name, _file_of(impl.function), problem, "mend the hook", kind, trace=_trace(error))
                )
                continue
            parts += _checked(entry.name, kind, impl.function, given, found)
    if not hooks:
        found.failures.append(
            Failure(
                entry.name,
                where,
                "registers nothing",
                f"decorate a function named {', '.join(KINDS.values())} with @hookimpl (from rufus_plugins)",
            )
        )
    return parts


def _checked(plugin: str, kind: str, function: Any, given: Any, found: Registry) -> list[Part]:
    """The parts of one hook's answer that have the right shape; the others become failures."""
    where = _file_of(function)
    hook_name = KINDS[kind]
    if not isinstance(given, Mapping):
        found.failures.append(
            Failure(
                plugin,
                where,
                f"{hook_name}() returned {type(given).__name__}, not a mapping of names to factories",
                f'return {{"my_{kind}": My{kind.title().replace("_", "")}}}',
                kind,
            )
        )
        return []
    parts = []
    for name, factory in given.items():
        problem = shape_problem(kind, name, factory)
        if problem:
            found.failures.append(Failure(plugin, where, *problem, kind, str(name)))
        else:
            parts.append(Part(kind, name, plugin, factory))
    return parts


def _file_of(thing: Any) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(thing)) or inspect.getfile(thing)
    except (TypeError, OSError):
        return getattr(thing, "__module__", None) or repr(thing)
    try:
        return f"{path}:{inspect.getsourcelines(thing)[1]}" if not inspect.ismodule(thing) else path
    except (OSError, TypeError):
        return path


def _trace(error: BaseException) -> str:
    """The traceback from the plugin's own first line on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    lines = traceback.format_list(own or frames) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())
