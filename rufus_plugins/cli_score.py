"""`rufus score --reward NAME --input FILE [--output FILE] [field=value ...]`: scores a JSONL file offline."""

from __future__ import annotations

import argparse
import asyncio
import codecs
import json
import os
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
    check_output(args.output, args.input)
    outcomes = asyncio.run(score_records(reward, records, concurrency=args.concurrency, deadline_s=args.deadline))
    if args.output:
        write_outcomes(args.output, outcomes)
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


def write_outcomes(output: Path, outcomes: Sequence[Any]) -> None:
    """All of them or, whatever ends the process meanwhile, none: until then an output of before stays."""
    if not output.is_file() and output.exists():  # /dev/stdout, a pipe
        _write(output, outcomes)
        return
    unfinished = output.resolve().with_name(f".{output.name}.{os.getpid()}.unfinished")
    try:
        _write(unfinished, outcomes)
        if output.exists():
            unfinished.chmod(output.stat().st_mode & 0o777)
        os.replace(unfinished, output.resolve())
    except OSError as error:
        raise ConfigError(f"--output {output} cannot be written: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _write(path: Path, outcomes: Sequence[Any]) -> None:
    # half a surrogate pair, which JSON may hold and UTF-8 may not, is written as its JSON escape
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(o.as_json(), ensure_ascii=False, default=str) + "\n" for o in outcomes)


def check_output(output: Path | None, source: Path) -> None:
    """Raises what would go wrong with --output before anything is scored. An output of before is replaced."""
    if output is None:
        return
    if not output.resolve().parent.is_dir():
        raise ConfigError(f"the folder of --output {output} does not exist")
    if output.exists():
        if output.is_dir():
            raise ConfigError(f"--output {output} is a folder; name a file")
        if output.samefile(source):
            raise ConfigError(f"--output {output} is the --input file, which would be lost; name another file")
    folder = output.resolve().parent
    if (output.exists() and not os.access(output, os.W_OK)) or (
        not os.access(folder, os.W_OK) and (output.is_file() or not output.exists())
    ):
        raise ConfigError(f"--output {output} may not be written")


def read_records(path: Path) -> list[Any]:
    """The records of a JSONL file. A line that is no JSON or no UTF-8 becomes its text, which no reward accepts."""
    if not path.exists() or path.is_dir():
        raise ConfigError(f"--input {path} is no file")
    try:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ConfigError(f"--input {path} cannot be read: {error}") from error
    # only \n ends a line: JSON may hold U+2028 and its like as they are
    records = [_record(line) for line in raw.split(b"\n") if line.strip()]
    if not records:
        raise ConfigError(f"--input {path} is empty; a line is {{id, response | messages, ground_truth, extra}}")
    return records


def _record(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8", "strict"))
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return line.decode("utf-8", "backslashreplace")


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
        table.add_row(*(Text(_printable(t)) for t in (outcome.id, value, " ".join(why.split())[:300])))
    Console().print(table)


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
