"""`rufus data mixture`: what a mixture is made of, by samples and by what the loss sees.

Rufus-Air: General Agent data were 39.6 % of the samples and 14.2 % of the supervised tokens, Math and Coding Agent
18.8 % of the samples and 49.1 % of the tokens. Both views stand side by side, and weights lead from one mixture to
another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import find
from rufus_plugins.recipes.data.writing import write_atomically

MEASURES = ("samples", "tokens", "turns", "supervised_turns", "supervised_tokens")
NAMES = ("samples", "raw tokens", "turns", "supervised turns", "supervised tokens")


@dataclass
class Mixture:
    """Prints a table and writes OUTPUT.json and OUTPUT.svg; from conversations also OUTPUT.arrow, their tokens."""

    input: tuple[str, ...]
    """What `rufus data tokenise` wrote, or conversations (then --tokenizer)."""
    output: str
    """Name of the report without suffix."""
    tokenizer: str | None = None
    """Folder or hub name of a tokenizer with a chat template, to tokenise conversations with."""
    mask: Literal["rufus_air", "every_turn", "axion"] = "rufus_air"
    """As in `rufus data tokenise`."""
    target: dict[str, float] = field(default_factory=dict)
    """Wanted shares by category, such as '{"math": 0.5, "chat": 0.5}'; gives sampling weights."""
    target_of: Literal["samples", "tokens", "supervised_tokens"] = "supervised_tokens"
    """What the wanted shares are shares of."""
    workers: int | None = None
    """Processes that tokenise."""

    def __call__(self) -> int:
        from rich.console import Console

        report = self.report()
        console = Console()
        console.print(table(report))
        if "weights" in report:
            shown = json.dumps(report["weights"], ensure_ascii=False)
            console.print(f"sampling weights: {shown}", soft_wrap=True, markup=False, highlight=False)
            if written := override(report["weights"]):
                console.print(f"in an SFT run: '{written}'", soft_wrap=True, markup=False, highlight=False)
        write_atomically(Path(f"{self.output}.json"), json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        write_atomically(Path(f"{self.output}.svg"), picture(report))
        console.print(f"written: {self.output}.json, {self.output}.svg", soft_wrap=True)
        return 0

    def report(self) -> dict[str, Any]:
        """`categories` -> measure -> number, `shares` likewise, `total`, and `weights` if there is a target."""
        categories = counted(self._rows())
        total = {m: sum(c[m] for c in categories.values()) for m in MEASURES}
        shares = {name: {m: c[m] / total[m] if total[m] else 0.0 for m in MEASURES} for name, c in categories.items()}
        report: dict[str, Any] = {"categories": categories, "total": total, "shares": shares}
        if self.target:
            report["target"] = {"of": self.target_of, "shares": _normal(self.target)}
            report["weights"] = weights({n: c[self.target_of] for n, c in categories.items()}, self.target)
        return report

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        files = find(self.input)
        if files and all(_has_counts(f) for f in files):
            for path in files:
                yield from _counts(path)
            return
        if not self.tokenizer:
            raise ConfigError("These are conversations: give --tokenizer, or what `rufus data tokenise` wrote.")
        from rufus_plugins.recipes.data.run import execute, summary
        from rufus_plugins.recipes.data.tokenise import Tokenise

        tokens = Path(f"{self.output}.arrow")
        tool = Tokenise(self.tokenizer, mask=self.mask)
        summary(execute(tool, self.input, tokens, workers=self.workers, overwrite=True, progress=True), tokens)
        yield from _counts(tokens)


def counted(rows: Iterator[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Category -> measure -> number; the category with the most samples first."""
    categories: dict[str, dict[str, int]] = {}
    for row in rows:
        sums = categories.setdefault(row["category"] or "(none)", dict.fromkeys(MEASURES, 0))
        sums["samples"] += 1
        for measure in MEASURES[1:]:
            sums[measure] += row[measure]
    return dict(sorted(categories.items(), key=lambda item: (-item[1]["samples"], item[0])))


def weights(amounts: Mapping[str, float], target: Mapping[str, float]) -> dict[str, float]:
    """How often a conversation of each category is to be seen, so that the shares of `amounts` become the target's and
    their sum stays what it is. Raises `ConfigError` where that cannot be."""
    wanted = _normal(target)
    missing, unknown = sorted(set(amounts) - set(wanted)), sorted(set(wanted) - set(amounts))
    if missing or unknown:
        raise ConfigError(
            f"The target must name every category of the data and no other (0 leaves one out). "
            f"Missing: {', '.join(missing) or 'none'}; not in the data: {', '.join(unknown) or 'none'}."
        )
    total = sum(amounts.values())
    for name, share in wanted.items():
        if share and not amounts[name]:
            raise ConfigError(f"Category {name!r} has nothing of what the target is a share of.")
    return {n: wanted[n] * total / a if a else 0.0 for n, a in amounts.items()}


def _normal(target: Mapping[str, float]) -> dict[str, float]:
    for name, share in target.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < float("inf"):
            raise ConfigError(f"The target of {name!r} is {share!r}; a number of at least 0 is needed.")
    total = sum(target.values())
    if not total:
        raise ConfigError("The shares of the target are all 0.")
    return {n: s / total for n, s in target.items()}


def override(found: Mapping[str, float]) -> str | None:
    """The weights as a Hydra override; None if a name holds what its grammar cannot write."""
    if not all(re.fullmatch(r"[\w/\-\\+.$%*@?|()\[\]{}:=, ]+", n, re.ASCII) for n in found):
        return None
    pairs = []
    for name, weight in found.items():
        escaped = re.sub(r"([\\()\[\]{}:=, ])", r"\\\1", name)
        pairs.append(f"{escaped}:{weight:.6g}")
    return "data.rufus.category_weights={" + ",".join(pairs) + "}"


def _columns_of(path: Path) -> Any:
    """The file as an iterator of record batches with only the counted columns, or None if it has them not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["category", *MEASURES[1:]]
    try:
        if path.suffix == ".arrow":
            stream = pa.ipc.open_stream(pa.memory_map(str(path)))
            return (b.select(names) for b in stream) if set(names) <= set(stream.schema.names) else None
        with path.open("rb") as head:
            if head.read(4) != b"PAR1":
                return None
        file = pq.ParquetFile(path)
        return file.iter_batches(65_536, columns=names) if set(names) <= set(file.schema_arrow.names) else None
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


def _has_counts(path: Path) -> bool:
    return _columns_of(path) is not None


def _counts(path: Path) -> Iterator[Mapping[str, Any]]:
    for batch in _columns_of(path):
        yield from batch.to_pylist()


# ---- the two views


def table(report: Mapping[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    made = Table(title="mixture")
    made.add_column("category")
    for name in NAMES:
        made.add_column(name, justify="right")
    for name, sums in report["categories"].items():
        shares = report["shares"][name]
        made.add_row(Text(name), *(f"{shares[m]:.1%} ({_short(sums[m])})" for m in MEASURES))
    made.add_section()
    made.add_row("all", *(_short(report["total"][m]) for m in MEASURES))
    return made


def _short(number: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "K")):
        if number >= size:
            return f"{number / (1e3 if letter == 'K' else size):.3g}{letter}"
    return f"{number:g}"


SAMPLES, TOKENS = "#0072B2", "#E69F00"
"""Blue and orange of Okabe and Ito's palette: told apart with every colour vision, and of different lightness."""


def picture(report: Mapping[str, Any]) -> str:
    """Two bars per category, share of samples and share of supervised tokens, as SVG. The second is hatched too."""
    left, width, bar, gap = 190, 420, 16, 14
    rows = []
    y = 64
    most = max((s[m] for s in report["shares"].values() for m in ("samples", "supervised_tokens")), default=1) or 1
    for name, shares in report["shares"].items():
        label = name if len(name) <= 26 else name[:25] + "…"
        rows.append(
            f'<text x="{left - 8}" y="{y + bar + 4}" text-anchor="end"><title>{escape(name)}</title>'
            f"{escape(label)}</text>"
        )
        for i, (measure, fill) in enumerate((("samples", SAMPLES), ("supervised_tokens", "url(#hatch)"))):
            length = width * shares[measure] / most
            top = y + i * bar
            rows.append(f'<rect x="{left}" y="{top}" width="{length:.1f}" height="{bar - 2}" fill="{fill}"/>')
            rows.append(f'<text x="{left + length + 6:.1f}" y="{top + bar - 4}">{shares[measure]:.1%}</text>')
        y += 2 * bar + gap
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 70} {y + 6}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="Share of samples and of supervised tokens by category">'
        f'<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" '
        f'fill="{TOKENS}"/><path d="M-1 1 1 -1M0 6 6 0M5 7 7 5" stroke="#7a5200"/></pattern></defs>'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{left}" y="22" font-size="15">Mixture by samples and by what the loss sees</text>'
        f'<rect x="{left}" y="34" width="14" height="14" fill="{SAMPLES}"/>'
        f'<text x="{left + 20}" y="46">samples</text>'
        f'<rect x="{left + 100}" y="34" width="14" height="14" fill="url(#hatch)"/>'
        f'<text x="{left + 120}" y="46">supervised tokens</text>' + "".join(rows) + "</svg>\n"
    )
