"""How many records have which solve rate, as a picture (SVG) before and after a filter."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from rufus_plugins.recipes.data import writing
from rufus_plugins.recipes.data.run import Job

BINS = ("0", *(f"\u2264{i / 10:g}" for i in range(1, 10)), "<1", "1")
"""Never, up to each tenth, less than always, always."""
_COLOURS = ("#9aa5b1", "#2f6f9f")


def bin_of(mean: float) -> int:
    return 0 if mean <= 0 else len(BINS) - 1 if mean >= 1 else min(math.ceil(mean * 10 - 1e-9), 10)


def note(kind: str, mean: float) -> str:
    """The name under which a tool counts a record of this mean."""
    return f"{kind} {BINS[bin_of(mean)]}"


def counted(job: Job, kinds: Sequence[str]) -> dict[str, list[int]]:
    """Kind -> records per bin, from the counts of all chunks."""
    notes: Counter[str] = Counter()
    for shard in job.shards():
        notes.update(json.loads(writing.marker_of(shard).read_text())["notes"])
    return {kind: [notes[f"{kind} {name}"] for name in BINS] for kind in kinds}


def svg(title: str, series: Mapping[str, Sequence[int]]) -> str:
    """Bars side by side; the counts stand above them."""
    width, height, left, top = 760, 300, 20, 50
    most = max((max(counts, default=0) for counts in series.values()), default=0) or 1
    step = (width - 2 * left) / len(BINS)
    bar = step * 0.8 / max(len(series), 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 60}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for number, (name, counts) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<rect x="{left + number * 200}" y="30" width="10" height="10" fill="{colour}"/>')
        said = f"{escape(name)}: {sum(counts)}"
        parts.append(f'<text x="{left + 14 + number * 200}" y="40" font-size="12">{said}</text>')
        for i, count in enumerate(counts):
            tall = (height - top) * count / most
            x = left + i * step + number * bar
            place = f'x="{x:.1f}" y="{height - tall:.1f}" width="{bar * 0.95:.1f}" height="{tall:.1f}"'
            parts.append(f'<rect {place} fill="{colour}"/>')
            if count:
                place = f'x="{x + bar / 2:.1f}" y="{height - tall - 3:.1f}"'
                parts.append(f'<text {place} font-size="9" text-anchor="middle">{count}</text>')
    for i, name in enumerate(BINS):
        x = left + (i + 0.4) * step
        parts.append(f'<text x="{x:.1f}" y="{height + 16}" font-size="11" text-anchor="middle">{escape(name)}</text>')
    parts.append(f'<text x="{width / 2}" y="{height + 40}" font-size="12" text-anchor="middle">mean score</text></svg>')
    return "\n".join(parts) + "\n"
