"""`rufus check [OVERRIDE ...]`: what is installed, which plugins loaded or failed and why, whether there is a sandbox,
and, given Hydra overrides, whether verl would start with that config. Exit code 0 if nothing is wrong, else 1."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import ConfigError, RufusError
from .plugins import registry

NEEDED = ("rufus-plugins", "verl", "torch", "ray", "transformers", "TransferQueue", "hydra-core", "pluggy")
OPTIONAL = {
    # distribution -> what brings it
    "vllm": "extra vllm",
    "sglang": "extra sglang",
    "megatron-core": "Megatron training",
    "mbridge": "extra megatron",
    "math-verify": "extra math",
    "reasoning-gym": "extra puzzles",
    "mcp": "extra gym",
    "tantivy": "extra gym",
    "trafilatura": "extra gym",
    "e2b": "extra e2b",
    "datasets": "extra data",
}
PROGRAMS = {"bwrap": ["bwrap", "--version"]}
SANDBOX = "rufus_plugins.rollouts.sandboxes.zygote"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check",
        help="what is installed, which plugins load, is there a sandbox, would verl start with this config",
        description="Without overrides only the installation is checked. Example: "
        "rufus check algorithm=gspo reward=coding_tests data.train_batch_size=64",
    )
    parser.add_argument("--config-name", default="rufus", help="primary config, as for verl (default: rufus)")
    parser.add_argument("--config-dir", type=Path, help="a directory of your own configs, as for verl")
    parser.add_argument(
        "--gpu-memory-gb", type=float, help="memory of a GPU, for the estimate of what fits (default 141, an H200)"
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="Hydra overrides, as for verl")


def run(args: argparse.Namespace) -> int:
    problems: list[str] = []
    _say("installed", _installed, problems)
    _say("plugins", _plugins, problems)
    _say("verl host", _host, problems)
    _say("sandbox", _sandbox, problems)
    if args.overrides or args.config_name != "rufus" or args.config_dir:
        _say("config", lambda bad: _config(args, bad), problems)
    print(f"\n{len(problems)} problem{'s' * (len(problems) != 1)}: {'; '.join(problems)}" if problems else "\nall good")
    return 1 if problems else 0


def _say(title: str, section: Callable[[list[str]], None], problems: list[str]) -> None:
    print(title)
    try:
        section(problems)
    except RufusError as error:
        _bad(problems, title, str(error))


def _good(text: str) -> None:
    print(f"  ok      {text}", flush=True)


def _note(text: str) -> None:
    print(f"  -       {text}", flush=True)


def _bad(problems: list[str], short: str, text: str) -> None:
    problems.append(short)
    print("  FAILED  " + text.replace("\n", "\n          "), flush=True)


def _installed(problems: list[str]) -> None:
    _good(f"Python {platform.python_version()}")
    for name in NEEDED:
        version = _version(name)
        if version is None:
            _bad(problems, f"{name} is missing", f"{name} is not installed: pip install {name}")
        elif name == "verl" and version != "0.9.1":
            _bad(
                problems, f"verl {version}", f"verl {version}: rufus-plugins knows 0.9.1 only: pip install verl==0.9.1"
            )
        else:
            _good(f"{name} {version}")
    for name, source in OPTIONAL.items():
        version = _version(name)
        (_good if version else _note)(f"{name} {version or f'not installed ({source})'}")
    for name, command in PROGRAMS.items():
        (_good if shutil.which(name) else _note)(f"{name} {_output(command)}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(command: list[str]) -> str:
    if not shutil.which(command[0]):
        return "not installed"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return (done.stdout.strip() or done.stderr.strip()).removeprefix(command[0]).strip()


def _plugins(problems: list[str]) -> None:
    found = registry()
    found.silence()
    for name, where in found.plugins.items():
        count = sum(part.plugin == name for kind in found.parts.values() for part in kind.values())
        _good(f"{name}: {count} part{'s' * (count != 1)}, {where}")
    for failure in found.failures:
        _bad(problems, f"plugin {failure.plugin!r}", str(failure))


def _host(problems: list[str]) -> None:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "rufus" not in policy.split(","):
        _bad(
            problems,
            "verl loads no plugins",
            f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading this package: unset it",
        )
        return
    if importlib.util.find_spec("verl") is None:
        return  # said above
    try:
        importlib.import_module("rufus_plugins.hosts.verl")
    except Exception:
        _bad(problems, "verl host", f"rufus-plugins does not load into verl:\n{traceback.format_exc().rstrip()}")
        return
    _good("verl loads rufus-plugins (entry point verl.plugins)")


def _sandbox(problems: list[str]) -> None:
    if importlib.util.find_spec(SANDBOX) is None:
        _note("no sandbox in this version")
        return
    backend, why = importlib.import_module(SANDBOX).available()
    if backend:
        _good(f"programs of the model run isolated by {backend}: {why}")
    else:
        _bad(problems, "no sandbox", f"nothing isolates here, so rewards that run programs refuse to start: {why}")


def _config(args: argparse.Namespace, problems: list[str]) -> None:
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from . import selection

    try:
        config = composed(args.config_name, args.overrides, args.config_dir)
    except (HydraException, OmegaConfBaseException) as error:
        _bad(problems, "config", "\n".join(filter(None, (str(error), str(error.__cause__ or "")))))
        return
    if "actor_rollout_ref" not in config:
        _good("the config composes")
        _note(f"{args.config_name} is no config of verl's RL trainer: parts and memory are not checked")
        return
    chosen = selection.check(config)
    for kind in selection.PARTS:
        if kind in chosen:
            part = registry().get(kind, chosen[kind])
            _good(f"{kind} {part.name} of plugin {part.plugin}")
    if "reward" not in chosen:
        _note(f"reward: verl's own ({config.reward.reward_manager.name})")
    if "verl host" in problems:
        _note("not shown to verl, because the host does not load")
        return
    from .hosts.verl.validation import validate

    validate(config)
    actor = config.actor_rollout_ref.actor
    _good(
        f"algorithm: adv_estimator {config.algorithm.adv_estimator}, loss {actor.policy_loss.loss_mode}, clip "
        f"{actor.clip_ratio_low}/{actor.clip_ratio_high}, {actor.loss_agg_mode}, "
        f"groups of {config.actor_rollout_ref.rollout.n}"
    )
    _good("verl accepts this config")
    for key in sorted(OmegaConf.missing_keys(config)):
        if key.partition(".")[0] != "critic" and ".ref." not in key and ".reward_model." not in key:
            _note(f"{key} is still to be set")
    for key in ("data.train_files", "data.val_files", "actor_rollout_ref.model.path"):
        _paths(key, OmegaConf.select(config, key))
    _memory(config, args.gpu_memory_gb, problems)


def _memory(config: Any, gpu_gb: float | None, problems: list[str]) -> None:
    """Per GPU, before anything starts; nothing for CPU runs and for models of unknown shape."""
    from .hosts.verl.memory import H200_GB, estimate

    if config.trainer.get("device") == "cpu":
        return
    found = estimate(config, gpu_gb or H200_GB)
    if found is None:
        _note(f"memory: not estimated, the shape of {config.actor_rollout_ref.model.path} is not known here")
        return
    billions = found.shape.parameters / 1e9
    _good(f"model: {billions:.1f} billion parameters, {found.gpus} GPUs of {found.gpu_gb:.0f} GB")
    for phase, parts in (("training", found.training), ("rollout", found.rollout)):
        shown = ", ".join(f"{name} {value:.1f}" for name, value in parts.items())
        _note(f"{phase}: about {sum(parts.values()):.0f} GB per GPU ({shown})")
    for note in found.notes:
        _note(note)
    for problem in found.problems:
        _bad(problems, "memory", problem)


def _paths(key: str, value: Any) -> None:
    """Notes what is not on this machine; a run may well start on another one."""
    for path in [value] if isinstance(value, str) else list(value or ()):
        if path.startswith(("/", "~", ".")) and not Path(path).expanduser().exists():
            _note(f"{key}: {path} is not on this machine")


def composed(config_name: str, overrides: list[str], config_dir: Path | None = None) -> Any:
    """The config that `python -m verl.trainer.main_ppo` would compose. Raises Hydra's exceptions."""
    from hydra import compose, initialize_config_dir

    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ConfigError("verl is not installed: pip install verl==0.9.1")
    if config_dir is not None:
        if not config_dir.is_dir():
            raise ConfigError(f"there is no directory {config_dir}")
        directory = str(config_dir.resolve())  # verl's own directory comes after it, see hydra_plugins/
    else:
        directory = os.path.join(verl.submodule_search_locations[0], "trainer", "config")
    with initialize_config_dir(directory, version_base=None):
        return compose(config_name, overrides=overrides)
