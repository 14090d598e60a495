"""`rufus new KIND NAME`: a complete plugin project with one part that works and a test that passes."""

from __future__ import annotations

import argparse
import keyword
import sys
from pathlib import Path
from typing import Any

from . import new_project
from .errors import ConfigError
from .plugins import registry
from .shapes import shape_problem


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("new", help="write a small plugin project with a test that passes")
    parser.add_argument("kind", choices=list(new_project.PARTS), metavar="KIND", help=", ".join(new_project.PARTS))
    parser.add_argument("name", metavar="NAME", help="config name of the part: lower case letters, digits, underscores")
    parser.add_argument("--directory", type=Path, help="where to write it; must not exist (default: ./rufus-NAME)")


def run(args: argparse.Namespace) -> int:
    directory = args.directory or Path(f"rufus-{args.name.replace('_', '-')}")
    write(args.kind, args.name, directory)
    print(f"Wrote {directory}/. Next:\n  cd {directory}\n  pip install -e .\n  pytest\n  rufus list {args.kind}")
    return 0


def write(kind: str, name: str, directory: Path) -> list[Path]:
    """Writes the project and returns its files. Raises `ConfigError` before anything is written."""
    problem = shape_problem(kind, name, lambda: None)
    if problem:
        raise ConfigError(f"{problem[0]}; {problem[1]}.")
    if name != name.lower() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(f"{name!r} cannot be a file name and a config name; take lower case, for example my_{kind}.")
    package = f"rufus_{name}"
    if package in sys.stdlib_module_names or package == "rufus_plugins":
        raise ConfigError(f"the package would be called {package}, which is taken; take another name.")
    taken = registry().parts[kind].get(name)
    if taken:
        raise ConfigError(
            f"{kind} {name!r} exists already, from plugin {taken.plugin!r} ({taken.file}); take another name."
        )
    if directory.exists():
        raise ConfigError(f"{directory} exists; name another place with --directory, or remove it.")
    files = {directory / path: text for path, text in new_project.files(kind, name, package).items()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files)
