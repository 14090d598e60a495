"""Hydra options. The yaml files here set whole algorithms and scales; `publish` makes an option of every
registered reward, environment and stage, so that a plugin ships no yaml and built-ins take the same way.

`reward=<name>` puts `name` and the fields of the reward's dataclass under `rufus.reward` and makes verl use our
reward manager; `environment=<name>` does the same under `rufus.environment` and makes verl use our agent loop. Which
fields exist and which values fit is checked when the part is built, not here.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.fields import REQUIRED
from rufus_plugins.plugins import Part, Registry, registry
from rufus_plugins.types import Stage

GROUPS = ("reward", "environment", "stage")
"""Kinds of part that are option groups."""

REWARD_MANAGER = {
    "source": "importlib",
    "name": "RufusRewardManager",
    "module": {"path": "pkg://rufus_plugins.hosts.verl.reward_manager"},
}

AGENT_LOOP = "rufus"
"""Name under which hosts/verl/agent_loop.py registers our agent loop with verl."""


@functools.cache
def defaults() -> dict[str, Any]:
    """`rufus.<key>` -> default, for the keys that no part owns."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("keys.yaml")))["rufus"]


def publish(found: Registry | None = None) -> None:
    """Stores the options in Hydra's ConfigStore and prints which plugins are broken. Raises nothing for them."""
    from hydra.core.config_store import ConfigStore

    found = found or registry()
    found.warn_once()
    store = ConfigStore.instance()
    store.store(name="keys", group="rufus", package="_global_", node=_open({"rufus": defaults()}))
    names = {kind: dict(found.parts[kind]) for kind in GROUPS}
    for failure in found.failures:
        # A part that cannot be used is still an option: selecting it ends the run with the part's own
        # message instead of Hydra's "could not find".
        if failure.kind in names and failure.name and failure.name.isidentifier() and failure.name != "reward":
            names[failure.kind].setdefault(failure.name, None)
    for name, part in names["reward"].items():
        store.store(name=name, group="rufus/reward", package="_global_", node=_selection("reward", name, part))
        store.store(name=name, group="reward", node=_reward_option(name))
    for name, part in names["environment"].items():
        node = _selection("environment", name, part)
        node.actor_rollout_ref = {"rollout": {"agent": {"default_agent_loop": AGENT_LOOP}}}
        store.store(name=name, group="environment", package="_global_", node=node)
    for name, part in names["stage"].items():
        if part is not None and (config := _stage_config(part)):
            store.store(name=name, group="stage", package="_global_", node={"defaults": [f"/{config}@_global_"]})
            for scale, own in stage_scales(config).items():
                node = {"defaults": [f"/{own}@_global_"]}
                store.store(name=f"{name}_{scale}", group="stage_scale", package="_global_", node=node)


def stage_scales(config: str) -> dict[str, str]:
    """scale -> Hydra config name, of the files beside the stage's config `<folder>/train` that are named as a scale."""
    folder = Path(__file__).resolve().parent.parent / config.rpartition("/")[0]
    scales = sorted(file.stem for file in (Path(__file__).parent / "scale").glob("*.yaml"))
    return {s: f"{config.rpartition('/')[0]}/{s}" for s in scales if (folder / f"{s}.yaml").is_file()}


def _reward_option(name: str) -> dict[str, Any]:
    return {
        # `reward` is verl's own option of this group: its defaults stay, only the manager changes
        "defaults": ["reward", "/rufus/keys@_global_", f"/rufus/reward/{name}@_global_", "_self_"],
        "reward_manager": REWARD_MANAGER,
    }


def _selection(kind: str, name: str, part: Part | None) -> Any:
    fields = {} if part is None else part.config_fields
    plain = {key: _plain(value) for key, value in fields.items()}
    return _open({"rufus": {kind: {"name": name, **{k: v for k, v in plain.items() if v is not _UNFIT}}}})


def _open(node: dict[str, Any]) -> Any:
    """The node without Hydra's struct check below `rufus`: our own check knows what exists and says so."""
    from omegaconf import OmegaConf

    config = OmegaConf.create(node)
    OmegaConf.set_struct(config.rufus, False)
    return config


_UNFIT = object()


def _plain(value: Any) -> Any:
    """The default as YAML knows it; `_UNFIT` for an object, which then stays the factory's own affair."""
    if value is REQUIRED:
        return "???"
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_plain(v) for v in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
        return _UNFIT if _UNFIT in items else items
    if isinstance(value, Mapping):
        items = {str(k): _plain(v) for k, v in value.items()}
        return _UNFIT if _UNFIT in items.values() else items
    return _UNFIT


def _stage_config(part: Part) -> str | None:
    """Hydra config name of the stage; None, with a warning, when the plugin's function does not return one."""
    try:
        stage = part.factory if isinstance(part.factory, Stage) else part.factory()
        return stage.config
    except Exception as error:
        print(
            f"rufus: plugin {part.plugin!r}: stage {part.name!r} gives no Stage: {type(error).__name__}: {error}\n"
            f"  where: {part.file}\n  mend:  return a rufus_plugins.Stage",
            file=sys.stderr,
        )
        return None
