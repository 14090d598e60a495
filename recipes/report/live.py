"""Writes the page again and again while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rufus_plugins.recipes.report import page
from rufus_plugins.recipes.report.run_folder import load

BETWEEN_S = 180.0
"""After its last known stage a run that wrote something so lately may have another one to come. Ours."""


def follow(
    run_folder: Path,
    output: Path | None = None,
    every_s: float = page.REFRESH_S,
    said: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Ends when the run does, or gives no sign of life. The last page is that of the ended run."""
    path = page.write(run_folder, output, BETWEEN_S)
    said(f"{path}: written every {every_s:g} s while the run goes on; Ctrl-C ends this, not the run")
    while load(run_folder).alive(between_s=BETWEEN_S):
        sleep(every_s)
        page.write(run_folder, output, BETWEEN_S)
    said("The run is not going on (any more).")
    return page.write(run_folder, output)
