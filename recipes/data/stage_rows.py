"""The loop that the stage builders share: a record becomes a row, or is set aside with its reason.

Statements that differ in case, white space or Unicode form only are kept once; a share of them, chosen by the
statement itself, goes to the held-out file, so that one problem is held out wherever it comes from.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.recipes.data.records import Raw, Refused, Unreadable
from rufus_plugins.recipes.data.rl_parquet import RLParquet


@dataclass(frozen=True)
class Row:
    prompt: Sequence[Mapping[str, str]]
    ground_truth: Any
    """Text is kept; anything else is written as JSON."""
    data_source: str
    key: str
    """What the row asks: equal keys are duplicates."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Of `extra_info`; the same names in every row of a stage."""
    split: str | None = None
    """train or heldout, where the record itself says it."""


def write_rows(
    stage: str,
    ability: str,
    items: Iterable[tuple[Any, Raw | Unreadable]],
    convert: Callable[[Any, Raw], Row],
    output_dir: Path,
    *,
    heldout_share: float = 0.0,
    manifest: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes train.parquet, perhaps heldout.parquet, set_aside.jsonl and manifest.json; returns the manifest.

    `items` are (source, record); `convert` makes a row or raises `DataError` (`Refused` names the reason).
    """
    if not 0.0 <= heldout_share < 1.0:
        raise ConfigError(f"--heldout-share is {heldout_share}; it is a share, at least 0 and below 1.")
    seen: set[bytes] = set()
    counts: Counter[str] = Counter()
    with RLParquet(output_dir) as output:
        for source, item in items:
            if not isinstance(item, Raw):
                output.set_aside(item.where, item.reason, item.detail)
                continue
            try:
                row = convert(source, item)
                digest = statement_digest(row.key)
                if digest in seen:
                    raise Refused("duplicate", "the same was asked before")
                truth = row.ground_truth if isinstance(row.ground_truth, str) else _json(row.ground_truth)
                _writable(row, truth)
            except DataError as error:
                output.set_aside(item.where, getattr(error, "reason", "bad_record"), str(error), item.record)
                continue
            except UnicodeEncodeError as error:
                output.set_aside(item.where, "bad_text", f"half a surrogate pair: {error.reason}", item.record)
                continue
            except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
                # a record in a shape that nobody thought of must not end a run over millions
                output.set_aside(item.where, "tool_error", f"{type(error).__name__}: {error}", item.record)
                continue
            seen.add(digest)
            counts[row.data_source] += 1
            held_out = int.from_bytes(digest[:8], "big") < heldout_share * 2**64
            output.add(
                row.split or ("heldout" if held_out else "train"),
                row.prompt,
                truth,
                row.data_source,
                ability,
                {"id": row.extra.get("id") or digest.hex(), **{k: v for k, v in row.extra.items() if k != "id"}},
            )
        return output.commit(
            {
                "stage": stage,
                **(manifest or {}),
                "data_sources": dict(sorted(counts.items())),
                "heldout_share": heldout_share,
            }
        )


def statement_digest(statement: str) -> bytes:
    """16 bytes, equal for statements that differ in case, white space or Unicode form only."""
    plain = " ".join(unicodedata.normalize("NFKC", statement).casefold().split())
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()[:16]


def text_of(value: Any, name: str) -> str:
    """A text that is not blank. Raises `Refused` as `no_<name>`."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
        raise Refused(f"no_{name}", f"the {name} is {value!r:.100}, not a text")
    return str(value).strip()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused("bad_ground_truth", f"cannot be written as JSON: {error}") from error


def _writable(row: Row, truth: str) -> None:
    try:
        for text in (truth, *(m["content"] for m in row.prompt), *row.extra.values()):
            text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused("bad_text", f"the record holds half a surrogate pair: {error.reason}") from error
