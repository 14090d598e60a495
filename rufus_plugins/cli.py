"""`rufus <command>`: one file per command beside this one (`cli_<command>.py` with `add_parser` and `run`).

Only the file of the command that was asked for is imported, so `rufus list` stays quick.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from .errors import RufusError

COMMANDS = ("list", "check", "new", "prepare", "data", "score", "audit", "run", "report", "curriculum")
"""In the order of `rufus --help`; one whose file is not part of this version is not offered."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 1 for an error that it explains, 2 for a wrong command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    offered = [name for name in COMMANDS if importlib.util.find_spec(f"{__package__}.cli_{name}")]
    asked = argv[0] if argv and argv[0] in offered else None
    parser = argparse.ArgumentParser(prog="rufus", description="Post-training plugins for verl.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {name: importlib.import_module(f"{__package__}.cli_{name}") for name in ([asked] if asked else offered)}
    for module in modules.values():
        module.add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        return modules[args.command].run(args) or 0
    except RufusError as error:
        print(f"rufus {args.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `rufus list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        again = "make room and give the same command again" if error.errno != errno.EROFS else "write elsewhere"
        print(f"rufus {args.command}: {error.strerror}{where}: {again}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"rufus {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
