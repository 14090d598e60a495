"""What a run is going to do: per stage its folder, data, parent, command and the config that verl composes."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, RufusError
from rufus_plugins.recipes.chains import commands, services
from rufus_plugins.recipes.chains.lineage import digest_of_json
from rufus_plugins.recipes.chains.spec import Chain, Entry

SCALES = ("tiny", "single_node", "air")
VOLATILE = (
    "hydra", "trainer.default_local_dir", "trainer.experiment_name", "trainer.project_name", "trainer.logger",
    "model.path", "actor_rollout_ref.model.path", "data.train_files", "data.val_files", "rufus.samples",
)  # fmt: skip
"""Keys that say where, not what; model and data are told apart by their digests."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    chain: Chain
    scale: str = "tiny"
    seed: int = 0
    runs: Path = Path("runs")
    base: str | None = None
    data: Path | None = None
    overrides: tuple[str, ...] = ()
    """For every RL stage."""
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """stage -> overrides."""
    since: str | None = None
    branch: str | None = None
    until: str | None = None
    samples: int = 4
    """Of the evaluation, per held-out item. Ours."""
    items: int | None = 96
    """Held-out items at most. Ours."""

    @property
    def folder(self) -> Path:
        return self.runs.resolve() / f"{self.chain.name}-{self.scale}-seed{self.seed}"


def sorted_overrides(chain: Chain, given: Iterable[str]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """`key=value` for all RL stages, and `STAGE:key=value` by stage. Raises `ConfigError`."""
    every: list[str] = []
    own: dict[str, tuple[str, ...]] = {}
    for one in given:
        head = one.partition("=")[0]
        if "=" not in one and not one.startswith("~"):
            raise ConfigError(f"{one!r} is no override: key=value for all RL stages, or STAGE:key=value for one")
        if ":" in head:
            name, _, rest = one.partition(":")
            chain.entry(name)
            own[name] = (*own.get(name, ()), rest)
        else:
            every.append(one)
    return tuple(every), own


@dataclass(frozen=True)
class Step:
    """A stage of a run, before it starts."""

    entry: Entry
    index: int
    branch: str | None
    folder: Path
    data: Path
    """Holds train.parquet and heldout.parquet."""
    command: tuple[str, ...]
    config: Any
    """As verl's trainer would compose it."""
    run: Path

    @property
    def label(self) -> str:
        return f"{self.entry.name}@{self.branch}" if self.branch else self.entry.name

    @property
    def total(self) -> int | None:
        """Optimizer steps (RL: steps of rollouts), where the config says."""
        return self.config.trainer.get("total_training_steps")

    @property
    def settled(self) -> dict[str, Any]:
        """The config without what says where, as plain data; paths of the run folder are `<run>`."""
        from omegaconf import OmegaConf

        plain = OmegaConf.to_container(self.config, resolve=False)
        return reduced(plain, self.run)

    @property
    def config_digest(self) -> str:
        return digest_of_json(self.settled)


def reduced(config: Mapping[str, Any], run: Path) -> dict[str, Any]:
    def without(node: Any, where: str) -> Any:
        if isinstance(node, Mapping):
            kept = {str(k): without(v, f"{where}{k}.") for k, v in node.items() if f"{where}{k}" not in VOLATILE}
            return kept
        if isinstance(node, list):
            return [without(one, where) for one in node]
        return node.replace(str(run), "<run>") if isinstance(node, str) else node

    return without(config, "")


def folder_of(options: Options, entry: Entry, branch: str | None) -> Path:
    number = options.chain.entries.index(entry)
    return options.folder / "stages" / f"{number:02d}-{entry.name}{f'@{branch}' if branch else ''}"


def branch_of(options: Options, entry: Entry) -> str | None:
    """The branch that the entry belongs to in this run; None for the trunk."""
    if options.branch is None:
        return None
    return options.branch if options.chain.entries.index(entry) >= options.chain.index(options.since or "") else None


def data_of(options: Options, entry: Entry, generated: Path | None = None) -> Path:
    """The folder with the stage's train.parquet and heldout.parquet: the user's, or the generated one."""
    if options.data is not None:
        for name in (entry.name, entry.stage.name):
            if (options.data / name / "train.parquet").is_file():
                return (options.data / name).resolve()
    if options.scale != "tiny":
        return (options.data or Path("DIR")) / entry.stage.name
    return generated_data(generated or options.folder / "data" / entry.name)


def data_problems(step: Step) -> list[str]:
    if missing := [name for name in ("train.parquet", "heldout.parquet") if not (step.data / name).is_file()]:
        name = step.entry.stage.name
        return [
            f"stage {step.entry.name} has no data ({', '.join(missing)}): give --data DIR that holds "
            f"{name}/train.parquet and {name}/heldout.parquet, as `rufus prepare {name}` writes them"
        ]
    return []


def generated_data(folder: Path) -> Path:
    return folder / "rl" if (folder / "rl").is_dir() else folder


def family_overrides(folder: Path) -> list[str]:
    """What the stage's generated data tell verl's command (`family.json`)."""
    try:
        return list(json.loads((folder / "family.json").read_text(encoding="utf-8")).get("overrides", ()))
    except FileNotFoundError:
        return []


def step_of(options: Options, entry: Entry, model: str, family: Path | None) -> Step:
    """`family`: the folder of generated data. Raises `ConfigError` with Hydra's words for a config that does not
    compose."""
    branch = branch_of(options, entry)
    folder = folder_of(options, entry, branch)
    data = data_of(options, entry, family)
    told = family_overrides(family) if family is not None else []
    more = [*told, *entry.overrides, *entry.scales.get(options.scale, ())]
    if not entry.supervised:
        more += options.overrides
    more += options.own.get(entry.name, ())
    if entry.supervised:
        first = commands.sft(entry, options.scale, options.seed, model, data, folder, more, (1, 1))
        config = composed("sft_trainer_engine", first, entry.name)
        machines = (int(config.trainer.nnodes), int(config.trainer.n_gpus_per_node))
        command = commands.sft(entry, options.scale, options.seed, model, data, folder, more, machines)
    else:
        command = commands.rl(entry, options.scale, options.seed, model, data, folder, more)
        config = composed("rufus", command, entry.name)
    index = options.chain.entries.index(entry)
    return Step(entry, index, branch, folder, data, tuple(command), config, options.folder)


def composed(config_name: str, command: Sequence[str], stage: str) -> Any:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from rufus_plugins import cli_check

    try:
        return cli_check.composed(config_name, commands.overrides(command))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"stage {stage}: {error}" + (f"\n{error.__cause__}" if error.__cause__ else "")) from None


def problems_of(step: Step) -> list[str]:
    """Why the stage would not run: data, services, parts, verl's own validation, memory of a GPU. Empty: it would."""
    absent = services.missing(step.config)
    problems = data_problems(step)
    if absent:
        problems.append(f"stage {step.entry.name}: the environment does not name {', '.join(absent)}")
    with services.stood_for(absent):
        return problems + [f"stage {step.entry.name}: {problem}" for problem in _unfit(step)]


def _unfit(step: Step) -> list[str]:
    from omegaconf.errors import OmegaConfBaseException

    if step.entry.supervised:
        return []
    from rufus_plugins import selection
    from rufus_plugins.hosts.verl.memory import H200_GB, estimate
    from rufus_plugins.hosts.verl.validation import validate

    config = copy.deepcopy(step.config)  # the checks write into it, as a start of verl does
    try:
        chosen = selection.check(config)
        for kind in ("reward", "environment"):
            hosted = kind == "environment" and config.rufus.environment_pool is not None
            if kind in chosen and not hosted:  # hosts may be other machines, which check it there
                part = selection.build(config, kind)
                if hasattr(part, "preflight"):
                    part.preflight()
        validate(config)
        if config.trainer.get("device") != "cpu" and (found := estimate(config, H200_GB)) is not None:
            return list(found.problems)
    except (RufusError, OmegaConfBaseException) as error:
        return [str(error)]
    return []


def selected(options: Options) -> list[Entry]:
    """The entries that this run takes, in order. Raises `ConfigError`."""
    entries = list(options.chain.entries)
    if options.until is not None:
        entries = entries[: options.chain.index(options.until) + 1]
    if options.since is not None:
        if options.branch is None:
            raise ConfigError("--from needs --branch NAME: the trunk's stages stay as they are")
        entries = [entry for entry in entries if entry in options.chain.entries[options.chain.index(options.since) :]]
    elif options.branch is not None:
        raise ConfigError("--branch needs --from STAGE: the first stage that the branch runs anew")
    if not entries:
        raise ConfigError(f"--until {options.until} lies before --from {options.since}")
    return entries


def families_of(options: Options, entry: Entry) -> list[Entry]:
    """The entries whose demonstrations an SFT entry is trained on at scale=tiny."""
    later = options.chain.entries[options.chain.entries.index(entry) + 1 :]
    wanted = entry.families
    if wanted is None:
        return [one for one in later if one.stage.tiny is not None and not one.supervised]
    known = {one.stage.name: one for one in options.chain.entries} | {one.name: one for one in options.chain.entries}
    return [known[name] if name in known else _alone(name) for name in wanted]


def _alone(name: str) -> Entry:
    from rufus_plugins.recipes.chains.spec import chain_of

    return dataclasses.replace(chain_of(name).entries[0], name=name)
