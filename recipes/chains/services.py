"""Which addresses and keys of services a config takes from the environment, and which of them are not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_TAKEN = re.compile(r"\$\{oc\.env:\s*([A-Za-z_]\w*)\s*\}")
"""Without a default."""


def missing(config: Any) -> list[str]:
    """Names that `${oc.env:NAME}` and `*key_env: NAME` take and that the environment has not, sorted."""
    from omegaconf import OmegaConf

    return sorted({name for name in _names(OmegaConf.to_container(config, resolve=False)) if not os.environ.get(name)})


def _names(node: Any, key: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _names(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _names(value)
    elif isinstance(node, str):
        yield from _TAKEN.findall(node)
        if key.endswith("key_env") and node:
            yield node


@contextmanager
def stood_for(names: list[str]) -> Iterator[None]:
    """The names with a value that leads nowhere, so that everything else of the config can be checked, too."""
    os.environ.update({name: "http://127.0.0.1:9" for name in names})
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
