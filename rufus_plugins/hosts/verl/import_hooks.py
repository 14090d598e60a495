"""Runs a function of ours right after verl has imported one of its own modules.

Nothing of ours is imported before verl imports the module it concerns, so `import verl` stays cheap, and a
name that verl binds with `from x import y` is already the mended one.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType

_waiting: dict[str, list[str]] = {}


def when_imported(module: str, target: str) -> None:
    """Calls `target` ("package.module:function") with `module` once it is imported; at once if it is.

    An exception in `target` fails the import of `module`: a run never goes on half-mended.
    """
    loaded = sys.modules.get(module)
    if loaded is not None and not getattr(getattr(loaded, "__spec__", None), "_initializing", False):
        _call(target, loaded)
        return
    _waiting.setdefault(module, []).append(target)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _call(target: str, module: ModuleType) -> None:
    path, _, name = target.partition(":")
    function: Callable[[ModuleType], None] = getattr(importlib.import_module(path), name)
    function(module)


class _Finder:
    """Lets the other finders find the module and wraps the loader's `exec_module`."""

    def find_spec(self, fullname: str, path=None, target=None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._wrap(spec)
                return spec
        return None

    @staticmethod
    def _wrap(spec: importlib.machinery.ModuleSpec) -> None:
        original = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            for target in _waiting.pop(spec.name, ()):
                _call(target, module)

        spec.loader.exec_module = exec_module
