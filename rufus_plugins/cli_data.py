"""`rufus data TOOL ...`: the data tools of recipes/data; a tool's fields are its options (recipes/data/tool.py)."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import enum
import importlib
import json
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .fields import REQUIRED, Unfit, config_fields, fitted
from .recipes.data import TOOLS


def add_parser(subparsers: Any) -> None:
    width = max(map(len, TOOLS), default=0)
    listing = "\n".join(f"  {name:{width}}  {line}" for name, (_, line) in TOOLS.items())
    parser = subparsers.add_parser(
        "data",
        help="data tools, from public corpora to what the stages train on",
        description=f"Data tools. `rufus data TOOL --help` shows a tool's options.\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tool", metavar="TOOL", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the tool's options")


def run(args: argparse.Namespace) -> int:
    if args.tool is None:
        width = max(map(len, TOOLS)) + 2
        print("\n".join(f"{name:{width}}{line}" for name, (_, line) in TOOLS.items()))
        return 0
    if args.tool not in TOOLS:
        near = difflib.get_close_matches(args.tool, TOOLS, 1)
        raise ConfigError(
            f"There is no data tool {args.tool!r}. There are: {', '.join(TOOLS)}."
            + (f" Did you mean {near[0]}?" if near else "")
        )
    path, line = TOOLS[args.tool]
    module, _, name = path.partition(":")
    cls = getattr(importlib.import_module(module), name)
    from .recipes.data.tool import RecordTool, field_docs

    parser = argparse.ArgumentParser(prog=f"rufus data {args.tool}", description=f"{line}\n\n{_doc(cls)}".strip())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    docs = field_docs(cls)
    hints = typing.get_type_hints(cls)
    fields = {n: d for n, d in config_fields(cls).items() if n != "notes"}
    of_records = issubclass(cls, RecordTool)
    if of_records:
        _add_frame_arguments(parser)
    for field, default in fields.items():
        _add_field(parser, field, hints.get(field, str), default, docs.get(field, ""))
    given = vars(parser.parse_args(args.arguments))
    config = {n: given[n] for n in fields if given[n] is not None}
    try:
        tool = cls(**fitted(cls, config))
    except Unfit as error:
        raise ConfigError(f"data tool {args.tool}: {error}") from error
    if not of_records:
        return tool() or 0
    from .recipes.data.run import execute, summary

    manifest = execute(
        tool,
        given["input"],
        given["output"],
        split=given["split"],
        subset=given["subset"],
        workers=given["workers"],
        ray=given["ray"],
        overwrite=given["overwrite"],
        progress=True,
    )
    summary(manifest, given["output"])
    return 0


def _doc(cls: type) -> str:
    return "\n".join(line.strip() for line in (cls.__doc__ or "").strip().splitlines())


def _add_frame_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="SOURCE", help="JSONL, JSON or Parquet files, directories of "
        "them, or the name of a hub dataset"
    )  # fmt: skip
    parser.add_argument("--output", required=True, type=Path, help=".jsonl, .jsonl.gz, .parquet or .arrow file")
    parser.add_argument("--split", default="train", help="split of a hub dataset (default train)")
    parser.add_argument("--subset", help="subset (configuration) of a hub dataset")
    parser.add_argument("--workers", type=int, help="processes (default: 1 for small inputs, else one per CPU)")
    parser.add_argument("--ray", action="store_true", help="run on Ray Data (the cluster of RAY_ADDRESS, else local)")
    parser.add_argument("--overwrite", action="store_true", help="replace an output made with other input or options")


def _add_field(parser: argparse.ArgumentParser, name: str, hint: Any, default: Any, doc: str) -> None:
    """A dataclass field as an option. Values are checked against the field's type afterwards."""
    flag = f"--{name.replace('_', '-')}"
    needed = default is REQUIRED
    shown = "required" if needed else "" if default in (None, "", (), [], {}) else f"default {_show(default)}"
    text = " ".join(filter(None, (doc, f"({shown})" if shown else ""))).replace("%", "%%")
    kinds = _kinds(hint)
    options: dict[str, Any] = {"dest": name, "help": text, "default": None, "required": needed}
    choices = _choices(kinds)
    if bool in kinds:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        return
    many = next((k for k in kinds if (typing.get_origin(k) or k) in _MANY), None)
    if many is not None:
        inner = typing.get_args(many)
        options |= {"nargs": "+", "type": _scalar(_kinds(inner[0]) if inner else (str,)), "metavar": name.upper()}
    elif choices:
        options |= {"choices": choices}
    elif any((typing.get_origin(k) or k) in (dict, Mapping) for k in kinds):
        options |= {"type": _json_object, "metavar": "JSON"}
    else:
        options |= {"type": _scalar(kinds), "metavar": name.upper()}
    parser.add_argument(flag, **options)


_MANY = (tuple, list, set, frozenset, Sequence, Collection)


def _kinds(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(k for k in typing.get_args(hint) if k is not type(None))
    return (hint,)


def _choices(kinds: tuple[Any, ...]) -> list[str]:
    found: list[str] = []
    for kind in kinds:
        if typing.get_origin(kind) is typing.Literal:
            found += map(str, typing.get_args(kind))
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            found += [str(member.value) for member in kind]
    return found


def _scalar(kinds: tuple[Any, ...]) -> Any:
    for kind in (int, float, Path):
        if kind in kinds:
            return kind if not (kind is int and float in kinds) else float
    return str


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is needed, such as '{\"key\": 1}'")
    return value


def _show(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
