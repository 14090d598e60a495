"""`rufus report RUN`: a chain's run as one HTML page, and a summary here."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("report", help="a run as one HTML page, with a summary", description=__doc__)
    parser.add_argument("run", help="run folder of `rufus run`: runs/<chain>-<scale>-seed<N>")
    parser.add_argument("--output", metavar="FILE", help="the page (default: report.html in the run folder)")
    parser.add_argument("--live", action="store_true", help="write it again every 15 s while the run goes on")
    parser.add_argument("--open", action="store_true", help="show it in the browser")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from rufus_plugins.recipes.report import live, page, terminal
    from rufus_plugins.recipes.report.run_folder import load

    folder, output = Path(args.run), Path(args.output) if args.output else None
    console = Console()
    path = page.write(folder, output)
    if args.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    if args.live:
        path = live.follow(folder, output, said=lambda line: console.print(line, soft_wrap=True, markup=False))
    for part in terminal.summary(load(folder)):
        console.print(part)
    console.print(f"page: {path}", soft_wrap=True, markup=False)
    return 0
