"""`rufus score --reward NAME --input FILE [--output FILE] [field=value ...]`: scores a JSONL file offline."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import ConfigError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "score",
        help="score a JSONL file with a reward",
        description="One JSON object a line: {id, response | messages, ground_truth, extra}. `rufus list reward` shows "
        "the rewards and their fields. A record that cannot be scored gets the value null and a typed reason.",
    )
    add_reward_arguments(parser)
    parser.add_argument("--input", required=True, type=Path, metavar="FILE", help="JSONL of records")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSONL of {id, value, metrics, explanation}")
    parser.add_argument("--rows", type=int, default=50, help="rows of the table (default 50; 0: summary only)")


def add_reward_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose and run a reward; `rufus audit` has them too."""
    parser.add_argument("--reward", required=True, metavar="NAME")
    parser.add_argument("fields", nargs="*", metavar="field=value", help="the reward's config; values in YAML")
    parser.add_argument("--concurrency", type=int, default=32, help="records scored at a time (default 32)")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="S", help="seconds per record (default 120)")


def run(args: argparse.Namespace) -> int:
    from .rewards.offline import score_records

    records = read_records(args.input)
    reward = build_reward(args)
    if args.output and not args.output.resolve().parent.is_dir():
        raise ConfigError(f"the folder of --output {args.output} does not exist")
    outcomes = asyncio.run(score_records(reward, records, concurrency=args.concurrency, deadline_s=args.deadline))
    if args.output:
        with args.output.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(o.as_json(), ensure_ascii=False, default=str) + "\n" for o in outcomes)
    _table(outcomes[: max(0, args.rows)], len(outcomes))
    for trace in dict.fromkeys(o.trace for o in outcomes if o.trace):
        print(trace, file=sys.stderr)
    scored = [o.score.value for o in outcomes if o.score is not None]
    reasons = Counter(o.reason for o in outcomes if o.score is None)
    mean = (
        f"mean {sum(scored) / len(scored):.4g}, least {min(scored):g}, most {max(scored):g}" if scored else "no score"
    )
    left = "".join(f", {count} not scorable ({reason})" for reason, count in sorted(reasons.items()))
    print(f"{args.reward}: {len(scored)} of {len(outcomes)} scored: {mean}{left}")
    return 0 if scored else 1


def read_records(path: Path) -> list[Any]:
    """The records of a JSONL file. A line that is no JSON becomes its own text, which no reward accepts."""
    try:
        lines = path.read_text("utf-8").splitlines() if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--input {path} cannot be read: {error}") from error
    if lines is None:
        raise ConfigError(f"--input {path} is no file")
    records: list[Any] = []
    for line in lines:
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError:
                records.append(line)
    if not records:
        raise ConfigError(f"--input {path} is empty; a line is {{id, response | messages, ground_truth, extra}}")
    return records


def build_reward(args: argparse.Namespace) -> Any:
    from .plugins import registry

    return registry().build("reward", args.reward, config_of(args.fields))


def config_of(fields: Sequence[str]) -> dict[str, Any]:
    """`["threshold=0.9", "judge.model=x"]` -> a nested mapping."""
    import yaml

    config: dict[str, Any] = {}
    for field in fields:
        name, sign, text = field.partition("=")
        keys = name.removeprefix("rufus.reward.").split(".")
        if not sign or not all(keys):
            raise ConfigError(f"{field!r} is no field=value")
        try:
            value = yaml.safe_load(text) if text else ""
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {field!r} is no YAML: {error}") from error
        inner = config
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{field!r} goes into {key!r}, which has a plain value already")
        inner[keys[-1]] = value
    return config


def _table(outcomes: Sequence[Any], total: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not outcomes:
        return
    table = Table(
        "id", "value", "explanation", caption=f"{len(outcomes)} of {total}" if total > len(outcomes) else None
    )
    for outcome in outcomes:
        value = "null" if outcome.score is None else f"{outcome.score.value:g}"
        why = f"[{outcome.reason}] {outcome.message}" if outcome.score is None else outcome.score.explanation
        table.add_row(Text(outcome.id), Text(value), Text(" ".join(why.split())[:300]))
    Console().print(table)
