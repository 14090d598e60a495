"""Each prompt's pass-rate history, one JSON line per judged group, in the run folder.

No prompt is ever excluded for good: it comes back with the next epoch and is judged anew. The history shows which
prompts moved into the band since. `rufus curriculum RUN` prints it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rufus_plugins.errors import ConfigError

FILE = "curriculum.jsonl"
SIDES = ("below", "inside", "above")


@dataclass(frozen=True)
class Judged:
    """One group's entry."""

    step: int
    prompt: str
    """The record's own id, else a digest of its messages."""
    rollouts: int
    """Rollouts that were part of the group."""
    mean: float | None
    side: str
    """below, inside, above the band, or unknown (no healthy rollout)."""
    verdict: str


class Curriculum:
    """Appends to `<run>/curriculum.jsonl`."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def resume(self, step: int) -> None:
        """Forgets what was judged at `step` or later: a resumed run does those steps again."""
        if not self.path.exists():
            return
        kept = [entry for entry in read(self.path) if entry.step < step]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(_line(entry) for entry in kept), encoding="utf-8")
        os.replace(partial, self.path)

    def append(self, entries: Iterable[Judged]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(_line(entry) for entry in entries))


def _line(entry: Judged) -> str:
    return json.dumps(asdict(entry), ensure_ascii=False) + "\n"


def read(path: str | os.PathLike[str]) -> list[Judged]:
    """The entries of a history file; a last line that a killed run left half-written is dropped."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(Judged(**json.loads(line)))
        except (ValueError, TypeError) as error:
            if number == len(lines):
                break
            raise ConfigError(f"{path}:{number} is no entry of a curriculum history: {error}") from error
    return entries


@dataclass(frozen=True)
class Window:
    """What was judged between two steps, and where every prompt seen so far stood afterwards."""

    first_step: int
    last_step: int
    groups: int
    pass_rate: float | None
    """Mean of the group means."""
    prompts: dict[str, int]
    """side -> prompts seen so far whose latest group was there."""
    moved_in: int
    """Prompts whose group was inside now and below or above the last time."""
    moved_out: int


def windows(entries: Sequence[Judged], count: int = 10) -> list[Window]:
    """The history in at most `count` windows of equally many steps."""
    if not entries:
        return []
    steps = sorted({entry.step for entry in entries})
    size = -(-len(steps) // count)
    latest: dict[str, str] = {}
    out = []
    by_step: dict[int, list[Judged]] = {}
    for entry in entries:
        by_step.setdefault(entry.step, []).append(entry)
    for start in range(0, len(steps), size):
        chunk = steps[start : start + size]
        moved_in = moved_out = 0
        judged = [entry for step in chunk for entry in by_step[step]]
        for entry in judged:
            before = latest.get(entry.prompt)
            if entry.side in SIDES:
                latest[entry.prompt] = entry.side
                moved_in += before in ("below", "above") and entry.side == "inside"
                moved_out += before == "inside" and entry.side != "inside"
        means = [entry.mean for entry in judged if entry.mean is not None]
        out.append(
            Window(
                chunk[0],
                chunk[-1],
                len(judged),
                sum(means) / len(means) if means else None,
                {side: sum(now == side for now in latest.values()) for side in SIDES},
                moved_in,
                moved_out,
            )
        )
    return out
