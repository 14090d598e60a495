"""`rufus list [KIND] [--json]`: every part of every kind, its plugin, one line about it, its config fields."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .fields import REQUIRED, type_name
from .hookspecs import KINDS
from .plugins import Part, registry


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("list", help="every part of every kind: name, plugin, what it is, config fields")
    parser.add_argument("kind", nargs="?", choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    found = registry()
    found.warn_once()
    kinds = [args.kind] if args.kind else list(KINDS)
    parts = [found.parts[kind][name] for kind in kinds for name in sorted(found.parts[kind])]
    if args.json:
        failures = [
            {"plugin": f.plugin, "kind": f.kind, "name": f.name, "where": f.where, "problem": f.problem, "mend": f.mend}
            for f in found.failures
        ]
        json.dump({"parts": [_as_json(p) for p in parts], "failures": failures}, sys.stdout, indent=2)
        print()
        return 0
    for kind in kinds:
        of_kind = [p for p in parts if p.kind == kind]
        print(f"{kind} ({len(of_kind)})")
        for part in of_kind:
            print(f"  {part.name}  [{part.plugin}]  {part.doc}")
            for field, default in part.config_fields.items():
                print(f"      {_field(part, field, default)}")
    return 0


def _field(part: Part, field: str, default: Any) -> str:
    kind = type_name(part.factory, field)
    return f"{field}{f': {kind}' if kind else ''}{'  (required)' if default is REQUIRED else f' = {default!r}'}"


def _as_json(part: Part) -> dict[str, Any]:
    fields = {
        name: {
            "type": type_name(part.factory, name),
            "required": default is REQUIRED,
            "default": None if default is REQUIRED else _plain(default),
        }
        for name, default in part.config_fields.items()
    }
    names = {"kind": part.kind, "name": part.name, "plugin": part.plugin, "doc": part.doc, "file": part.file}
    return {**names, "fields": fields}


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
        return value
    except (TypeError, ValueError):
        return repr(value)
