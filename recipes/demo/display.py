"""The demo's screen: one line per stage with a bar, the last numbers and a curve; plain lines where no terminal is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], low: float = 0.0, high: float = 1.0, width: int = 40) -> str:
    """One character per value, or per mean of neighbours when there are more than `width`; clipped to [low, high]."""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round(top * min(1.0, max(0.0, (v - low) / (high - low))))] for v in values)


class Display:
    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: int) -> Any:
        """Yields `update(done, text)`."""
        if not self.console.is_terminal:
            yield self._lines(name, total)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(f"{name:<28}", total=total, text="")
            yield lambda done, text="": progress.update(task, completed=done, text=text)

    def _lines(self, name: str, total: int) -> Any:
        every = max(1, total // 8)
        shown = -1

        def update(done: int, text: str = "") -> None:
            nonlocal shown
            mark = total if done == total else done // every
            if mark != shown:
                shown = mark
                self.console.print(f"{name}: {done}/{total} {text}".rstrip(), soft_wrap=True)

        return update
