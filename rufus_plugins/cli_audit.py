"""`rufus audit --reward NAME --input FILE [field=value ...]`: which cheap cheats does a reward pay for?"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .cli_score import add_reward_arguments, build_reward, read_records
from .errors import ConfigError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "audit",
        help="try cheap cheats on a reward",
        description="Puts answers that deserve nothing (empty, gold echoed, all choices, injected verdicts ...) in the "
        "place of the responses of a JSONL file and shows which of them score.",
    )
    add_reward_arguments(parser)
    parser.add_argument(
        "--input", required=True, type=Path, metavar="FILE", help="JSONL of records, as for rufus score"
    )
    parser.add_argument("--records", type=int, default=20, help="records to try (default 20)")
    parser.add_argument("--threshold", type=float, default=0.0, help="a cheat pays if it scores above this (default 0)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if any cheat pays")


def run(args: argparse.Namespace) -> int:
    from .rewards.cheats import CHEATS
    from .rewards.offline import score_records

    records = [r for r in read_records(args.input) if isinstance(r, Mapping)][: max(1, args.records)]
    if not records:
        raise ConfigError(f"--input {args.input} holds no records")
    reward = build_reward(args)
    tries: list[tuple[str, dict[str, Any]]] = []
    for name, cheat in CHEATS.items():
        for number, record in enumerate(records, 1):
            response = cheat(record)
            if response is not None:
                tries.append((name, _with_response(record, response, number)))
    honest = [dict(r) for r in records if "response" in r or "messages" in r]
    everything = [record for _, record in tries] + honest
    outcomes = asyncio.run(score_records(reward, everything, concurrency=args.concurrency, deadline_s=args.deadline))
    paying = _report(args, [name for name, _ in tries], outcomes[: len(tries)], outcomes[len(tries) :])
    return 1 if args.strict and paying else 0


def _with_response(record: Mapping[str, Any], response: str, number: int) -> dict[str, Any]:
    """The record with another final answer, whose author changed no database; earlier turns of a conversation stay."""
    artifacts = record.get("artifacts")
    if isinstance(artifacts, Mapping) and {"db_before", "db_after"} <= artifacts.keys():
        record = {**record, "artifacts": {**artifacts, "db_after": artifacts["db_before"]}}
    changed = {k: v for k, v in record.items() if k not in ("response", "messages")} | {"id": record.get("id", number)}
    messages = record.get("messages")
    if isinstance(messages, list):
        spoken = [i for i, m in enumerate(messages) if isinstance(m, Mapping) and m.get("role") == "assistant"]
        last = spoken[-1] if spoken else len(messages)
        return changed | {"messages": [*messages[:last], {"role": "assistant", "content": response}]}
    return changed | {"response": response}


def _report(args: argparse.Namespace, names: list[str], outcomes: list[Any], honest: list[Any]) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("cheat", "tried", "pays", "most", "not scorable", "example")
    paying = []
    for name in dict.fromkeys(names):
        of_cheat = [o for n, o in zip(names, outcomes, strict=True) if n == name]
        values = [o.score.value for o in of_cheat if o.score is not None]
        paid = [o for o in of_cheat if o.score is not None and o.score.value > args.threshold]
        if paid:
            paying.append(name)
        example = f"{paid[0].id}: {paid[0].score.explanation}" if paid else ""
        table.add_row(
            Text(name, style="bold red" if paid else ""),
            str(len(of_cheat)),
            str(len(paid)),
            f"{max(values):g}" if values else "-",
            str(len(of_cheat) - len(values)),
            Text(" ".join(example.split())[:120]),
        )
    Console().print(table)
    values = [o.score.value for o in honest if o.score is not None]
    if values:
        print(f"for comparison, the file's own responses: mean {sum(values) / len(values):.4g} over {len(values)}")
    for reason, first in {o.reason: o for o in reversed(outcomes) if o.score is None}.items():
        print(f"not scorable ({reason}), for example {first.id}: {first.message}")
    if all(o.score is None for o in outcomes):
        raise ConfigError(f"{args.reward} could score none of these records, so nothing was tried")
    verdict = f"{len(paying)} of {len(set(names))} cheats pay: {', '.join(paying)}" if paying else "no cheat pays"
    print(f"{args.reward}: {verdict}")
    return paying
