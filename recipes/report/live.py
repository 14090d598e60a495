"""Writes the page again and again while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rufus_plugins.recipes.report import page
from rufus_plugins.recipes.report.run_folder import load


def follow(
    run_folder: Path,
    output: Path | None = None,
    every_s: float = page.REFRESH_S,
    said: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Ends when the run does, or gives no sign of life. The last page is that of the ended run."""
    path = page.write(run_folder, output)
    said(f"{path}: written every {every_s:g} s while the run goes on; Ctrl-C ends this, not the run")
    while load(run_folder).alive():
        sleep(every_s)
        path = page.write(run_folder, output)
    said("The run is not going on (any more).")
    return page.write(run_folder, output)
