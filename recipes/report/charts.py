"""Charts as SVG in the page's text: lines and stacked shares.

Colours are those of Okabe and Ito (told apart with every colour vision), and never alone: lines differ by dashes and
end marks, areas by hatching. Numbers for the readout under the pointer stand in the chart's own `data-` attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rufus_plugins.recipes.report.curves import Curve, Shares
from rufus_plugins.recipes.report.text import esc, figure

WIDTH, HEIGHT = 300, 158
LEFT, RIGHT, TOP, BOTTOM = 48, 9, 8, 24
KINDS = 8
"""Lines and areas that the style tells apart."""

Mark = tuple[int, str]
"""A step and what happened there."""


def line_chart(title: str, curves: Sequence[tuple[str, Curve]], marks: Sequence[Mark] = (), note: str = "") -> str:
    """A figure with a line per (label, curve). Empty where no curve has a number."""
    curves = [(label, c) for label, c in curves if c.last is not None][:KINDS]
    if not curves:
        return ""
    steps = sorted({step for _, c in curves for step in c.steps})
    first, last = steps[0], steps[-1]
    bounds = [v for i, (_, c) in enumerate(curves) for v in _bounds(c, banded=i == 0)]
    ticks = nice_ticks(min(bounds), max(bounds))
    low, high = ticks[0], ticks[-1]

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = [_axes(ticks, y, [(step, x(step)) for step in _step_ticks(first, last)])]
    for step, what in marks:
        if first <= step <= last:
            at = x(step)
            parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            anchor = "end" if at > WIDTH / 2 else "start"
            parts.append(
                f'<text class="mark-name" x="{at + (-4 if anchor == "end" else 4):.1f}" y="{TOP + 9}" '
                f'text-anchor="{anchor}">{esc(what)}</text>'
            )
    if curves[0][1].bucket > 1:
        parts.append(_band(curves[0][1], x, y))
    for kind, (label, c) in enumerate(curves, start=1):
        values = ",".join("" if v is None else figure(v).replace(",", "") for v in c.means)
        shared = "" if c.steps == curves[0][1].steps else f' data-x="{_listed(c.steps)}"'
        parts.append(
            f'<path class="line k{kind}" d="{_line(c, x, y)}" data-name="{esc(label)}" data-y="{values}"{shared}/>'
        )
        at = max(i for i, v in enumerate(c.means) if v is not None)
        parts.append(_end_mark(kind, x(c.steps[at]), y(c.means[at])))
    said = f"{title} by step, {first} to {last}: " + "; ".join(
        f"{label} from {figure(_first(c))} to {figure(c.last)}" for label, c in curves
    )
    legend = [(f'<path class="line k{k}" d="M1 6H21"/>{_end_mark(k, 11, 6)}', n) for k, (n, _) in enumerate(curves, 1)]
    notes = [note] if note else []
    if (size := max(c.bucket for _, c in curves)) > 1:
        notes.append(f"Each point is the mean of {size} steps; the band is their least and most.")
    if bad := sum(c.dropped for _, c in curves):
        notes.append(f"{bad} values were no finite number and are gaps.")
    shown = " \u00b7 ".join([f"step {last}", *(f"{label} {figure(c.last)}" for label, c in curves)])
    return _figure(title, said, legend if len(curves) > 1 else [], parts, curves[0][1].steps, notes, shown, "line")


def stack_chart(title: str, made: Shares, kinds: Sequence[int] | None = None, note: str = "") -> str:
    """A figure of stacked shares. `kinds`: which colour and hatching each name has. Empty where nothing was counted."""
    if not made.names:
        return ""
    chosen = list(kinds or range(1, len(made.names) + 1))
    wide, bottom, top = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM, TOP
    count = len(made.steps)

    def y(value: float) -> float:
        return bottom - (bottom - top) * value

    first, last = made.steps[0], made.steps[-1]
    places = {made.steps[i]: LEFT + wide * (i + 0.5) / count for i in sorted({0, count // 2, count - 1})}
    parts = [_axes([0.0, 0.25, 0.5, 0.75, 1.0], y, list(places.items()), percent=True)]
    below = [0.0] * count
    for i, (name, kind) in enumerate(zip(made.names, chosen, strict=False)):
        above = [b + row[i] for b, row in zip(below, made.shares, strict=True)]
        edge = [
            f"{LEFT + wide * n / count:.1f} {y(v):.1f}H{LEFT + wide * (n + 1) / count:.1f}" for n, v in enumerate(above)
        ]
        back = [
            f"{LEFT + wide * (n + 1) / count:.1f} {y(below[n]):.1f}H{LEFT + wide * n / count:.1f}"
            for n in reversed(range(count))
        ]
        values = ",".join(f"{row[i]:.3g}" for row in made.shares)
        parts.append(
            f'<path class="area a{1 + (kind - 1) % KINDS}" d="M{"L".join(edge)}L{"L".join(back)}Z" '
            f'data-name="{esc(name)}" data-y="{values}"/>'
        )
        below = above
    whole = math.fsum(made.totals.values())
    said = f"{title} by step, {first} to {last}. In all: " + ", ".join(
        f"{name} {total / whole:.1%}" for name, total in made.totals.items()
    )
    legend = [
        (
            f'<rect class="area a{1 + (kind - 1) % KINDS}" x="1" y="1" width="20" height="10"/>',
            f"{name} {made.totals[name] / whole:.0%}",
        )
        for name, kind in zip(made.names, chosen, strict=False)
    ]
    shown = "in all: " + " \u00b7 ".join(f"{name} {figure(total)}" for name, total in made.totals.items())
    return _figure(title, said, legend, parts, made.steps, [note] if note else [], shown, "share")


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that reach from below `low` to above `high`."""
    if low == high:
        room = abs(low) * 0.1
        low, high = (low - room, high + room) if room else (0.0, 1.0)
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = size * next(m for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999999)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(start, end + 1)]


def _tick(value: float, step: float) -> str:
    """As many digits as it takes to tell neighbours apart."""
    if value == 0:
        return "0"
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    places += round(step * 10**places, 6) % 1 != 0  # 0.25 apart
    said = f"{value:,.{places}f}"
    if len(said) <= 7:
        return said
    digits = max(math.floor(math.log10(abs(value))) + places, 0)
    mantissa, _, exponent = f"{value:.{min(digits, 6)}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def _step_ticks(first: int, last: int) -> list[int]:
    return sorted({first, (first + last) // 2, last})


def _bounds(c: Curve, banded: bool) -> list[float]:
    columns = (c.lows, c.highs) if banded else (c.means,)
    return [v for column in columns for v in column if v is not None]


def _first(c: Curve) -> float | None:
    return next((v for v in c.means if v is not None), None)


def _listed(steps: Sequence[int]) -> str:
    return ",".join(map(str, steps))


def _line(c: Curve, x: object, y: object) -> str:
    """A path with gaps where there is no number; a lone point becomes a dot."""
    parts, pen = [], False
    for i, (step, value) in enumerate(zip(c.steps, c.means, strict=True)):
        if value is None:
            pen = False
            continue
        lone = not pen and (i + 1 == len(c.means) or c.means[i + 1] is None)
        parts.append(f"{'L' if pen else 'M'}{x(step):.1f} {y(value):.1f}{'h.1' if lone else ''}")
        pen = True
    return "".join(parts)


def _band(c: Curve, x: object, y: object) -> str:
    there = [i for i, v in enumerate(c.means) if v is not None]
    up = [f"{x(c.steps[i]):.1f} {y(c.highs[i]):.1f}" for i in there]
    down = [f"{x(c.steps[i]):.1f} {y(c.lows[i]):.1f}" for i in reversed(there)]
    return f'<path class="band" d="M{"L".join([*up, *down])}Z"/>'


def _end_mark(kind: int, x: float, y: float) -> str:
    """A shape of its own per line."""
    shapes = (
        f"M{x - 3:.1f} {y:.1f}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
        f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        f"M{x:.1f} {y - 4:.1f}l4 7h-8z",
        f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z",
    )
    return f'<path class="end k{kind}" d="{shapes[(kind - 1) % len(shapes)]}"/>'


def _axes(ticks: Sequence[float], y: object, steps: Sequence[tuple[int, float]], percent: bool = False) -> str:
    parts = []
    for tick in ticks:
        at = y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        said = f"{tick:.0%}" if percent else _tick(tick, ticks[1] - ticks[0])
        parts.append(f'<text x="{LEFT - 5}" y="{at + 3.5:.1f}" text-anchor="end">{said}</text>')
    for step, at in steps:
        anchor = "end" if at > WIDTH - RIGHT - 12 else "start" if at < LEFT + 6 else "middle"
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{step}</text>')
    return "".join(parts)


def _figure(
    title: str,
    said: str,
    legend: Sequence[tuple[str, str]],
    parts: Sequence[str],
    steps: Sequence[int],
    notes: Sequence[str],
    shown: str,
    kind: str,
) -> str:
    keys = "".join(
        f'<li><svg class="key" viewBox="0 0 22 12" aria-hidden="true">{picture}</svg>{esc(name)}</li>'
        for picture, name in legend
    )
    return (
        f'<figure class="chart" data-kind="{kind}" data-left="{LEFT}" data-right="{RIGHT}">'
        f"<figcaption>{esc(title)}</figcaption>"
        + (f'<ul class="legend">{keys}</ul>' if keys else "")
        + f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{esc(said)}" '
        f'data-x="{_listed(steps)}"><title>{esc(title)}</title>{"".join(parts)}'
        f'<path class="cursor" d="M0 {TOP}V{HEIGHT - BOTTOM}" visibility="hidden"/></svg>'
        f'<output class="readout" data-rest="{esc(shown)}">{esc(shown)}</output>'
        + "".join(f'<p class="note">{esc(note)}</p>' for note in notes)
        + "</figure>"
    )
