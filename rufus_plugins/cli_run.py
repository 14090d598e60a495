"""`rufus run CHAIN`: the stages of a chain, one after the other, each from the checkpoint of the one before."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from .errors import ConfigError, RufusError

SCALES = ("tiny", "single_node", "air")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a chain of stages, or one stage, with verl's trainers; goes on where it was stopped",
        description="Example: rufus run rufus_air --scale tiny --seed 0. docs/chains.md describes the run folder.",
    )
    parser.add_argument("chain", metavar="CHAIN", help="rufus_air, axion, the path of a chain file, or one stage")
    parser.add_argument("--scale", default="tiny", choices=SCALES, help="tiny: this machine's CPU (default)")
    parser.add_argument("--seed", type=int, default=0, help="everything of a tiny run follows from it (default 0)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders are made (default runs)")
    parser.add_argument("--base", help="model to start from: a folder, a hub name, `generated` (tiny)")
    parser.add_argument("--from-run", type=Path, help="a single stage: start from the checkpoint of this run folder")
    parser.add_argument("--data", type=Path, help="your data: DIR/<stage>/train.parquet and heldout.parquet")
    parser.add_argument(
        "--dry-run", action="store_true", help="compose and check all, print the commands, start nothing"
    )
    parser.add_argument("--fresh", action="store_true", help="remove the run's folder first")
    parser.add_argument("--from", dest="since", metavar="STAGE", help="with --branch: the first stage to run anew")
    parser.add_argument("--branch", metavar="NAME", help="run --from STAGE and what follows beside the finished stages")
    parser.add_argument("--until", metavar="STAGE", help="the last stage to run")
    parser.add_argument("--samples", type=int, default=4, help="samples per held-out item (default 4)")
    parser.add_argument("--items", type=int, default=96, help="held-out items per stage at most (default 96; 0: all)")
    parser.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="Hydra's key=value for all RL stages, STAGE:key=value for one"
    )
    parser.parse_known_args = functools.partial(_overrides_anywhere, parser.parse_known_args)


def _overrides_anywhere(parse: Any, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
    """argparse takes the overrides right behind the chain only; here they may follow options too."""
    namespace, more = parse(args, namespace)
    namespace.overrides += [word for word in more if not word.startswith("-")]
    return namespace, [word for word in more if word.startswith("-")]


def run(args: argparse.Namespace) -> int:
    from rufus_plugins.recipes.chains import processes
    from rufus_plugins.recipes.chains.runner import Runner

    options = _options(args)
    if args.dry_run:
        return _rehearse(options)
    processes.become_reaper()
    try:
        with Runner(options, fresh=args.fresh) as runner:
            changes = runner.run()
            _table(runner, changes)
        return 0
    except KeyboardInterrupt:
        processes.end_descendants()
        print("\nStopped; no process is left. The same command goes on from here; --fresh starts over.")
        return 130
    except ConfigError as error:
        print(f"rufus run: {error}")
        return 2
    except RufusError as error:
        print(f"rufus run: {error}\n\nWhat is finished stays. Mend it and give the same command again.")
        return 1


def _options(args: argparse.Namespace) -> Any:
    from rufus_plugins.recipes.chains.plan import Options, sorted_overrides
    from rufus_plugins.recipes.chains.spec import chain_of

    chain = chain_of(args.chain)
    every, own = sorted_overrides(chain, args.overrides)
    for name in (args.since, args.until):
        if name is not None:
            chain.entry(name)
    if args.branch is not None and not args.branch.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"--branch {args.branch!r}: letters, digits, _ and - are allowed")
    if args.samples < 1 or args.items < 0:
        raise ConfigError("--samples is at least 1, --items at least 0")
    if args.data is not None and not args.data.is_dir():
        raise ConfigError(f"--data: there is no folder {args.data}")
    base = args.base
    if args.from_run is not None:
        if base is not None:
            raise ConfigError("--base and --from-run both name a model to start from: give one")
        base = _of_run(args.from_run, chain.entries[0].stage)
    return Options(
        chain=chain,
        scale=args.scale,
        seed=args.seed,
        runs=args.runs,
        base=base,
        data=args.data,
        overrides=every,
        own=own,
        since=args.since,
        branch=args.branch,
        until=args.until,
        samples=args.samples,
        items=args.items or None,
    )


def _of_run(folder: Path, stage: Any) -> str:
    """The checkpoint in another run that `stage` starts from: that of the stage it reads, or the last one."""
    from rufus_plugins.recipes.chains.lineage import read_json

    found = {}
    for path in sorted(folder.glob("stages/*/stage.json")):
        told = read_json(path) or {}
        if told.get("state") == "done" and not told.get("branch"):
            found[told["stage"]] = str((folder / told["checkpoint"]["path"]).resolve())
    if stage.reads in found:
        return found[stage.reads]
    raise ConfigError(
        f"--from-run {folder}: stage {stage.name} starts from {stage.reads}, which is not finished there "
        f"(finished: {', '.join(found) or 'none'}). Name a model with --base."
    )


def _rehearse(options: Any) -> int:
    from rufus_plugins.recipes.chains import commands
    from rufus_plugins.recipes.chains.runner import rehearsal

    with rehearsal(options) as runner:
        problem = ""
        try:
            runner.plan()
        except ConfigError as error:
            problem = f"rufus run: {error}".replace(str(runner.folder), str(options.folder))
        for step in runner.steps.values():
            text = commands.shown(step.command).replace(str(runner.folder), str(options.folder))
            print(f"# {step.index + 1}. {step.label}, starts from {step.entry.reads or 'the base model'}\n{text}\n")
        count = len(runner.steps)
    print(problem or f"{count} stages compose and would start.", "Nothing was written.", sep="\n")
    return 2 if problem else 0


def _table(runner: Any, changes: Any) -> None:
    from rich.table import Table

    table = Table(title=f"{runner.folder.name}: held-out figures of each stage, before and after it, 95 % intervals")
    for name in ("stage", "mean reward", "gain", "pass@1", "pass@k", "best constant"):
        table.add_column(name)
    for label, change in changes.items():
        share = change.protocol.baseline.get("share")
        table.add_row(
            label,
            f"{change.mean.before:.3f} -> {change.mean.after:.3f}",
            change.words,
            f"{change.pass_at_1.before:.3f} -> {change.pass_at_1.after:.3f}",
            f"{change.pass_at_k.before:.3f} -> {change.pass_at_k.after:.3f}",
            "" if share is None else f"{share:.3f}",
        )
    console = runner.display.console
    if changes:
        console.print(table)
    console.print(f"report: {runner.folder / 'report.html'}", soft_wrap=True)
