"""What the evidence of a run says: each stage against its own start, and what became of the abilities before.

Only equal protocols are compared (recipes/evidence/compare.py); where they differ, the place of the figure says how.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.evidence.compare import Change, compare, different
from rufus_plugins.recipes.evidence.protocol import Protocol
from rufus_plugins.recipes.report.run_folder import Run, StageRun

_known: dict[tuple[str, str, str, int], Change | str] = {}
"""Comparisons of this process: a live report makes the same ones again."""


@dataclass(frozen=True)
class Finding:
    """A stage against its start under one protocol, or why there is no such figure."""

    stage: StageRun
    protocol: str
    change: Change | None = None
    why: str = ""
    refused: bool = False
    """Both were measured, but not under one protocol."""


@dataclass(frozen=True)
class Cell:
    """What a checkpoint scores under a protocol."""

    value: float
    own: bool = False
    """Whether the stage that trained for this protocol ends here."""
    since: Change | None = None
    """Against the end of that stage."""
    note: str = ""

    @property
    def verdict(self) -> str:
        return "" if self.since is None else self.since.mean.verdict


@dataclass
class Guard:
    """A protocol over all checkpoints."""

    name: str
    digest: str
    cells: dict[str, Cell] = field(default_factory=dict)
    """By checkpoint digest."""
    unlike: str = ""
    """How it differs from the row above of the same name, with which nothing here is compared."""


def mean_reward(evidence: Mapping[str, Any]) -> float:
    """Over items of the mean over an item's scored samples; NaN where nothing was scored."""
    means = []
    for item in evidence["items"].values():
        scores = [score for score in item["scores"] if score is not None]
        if scores:
            means.append(math.fsum(scores) / len(scores))
    return math.fsum(means) / len(means) if means else math.nan


def findings(run: Run) -> list[Finding]:
    """In the order of the stages; a finished stage without its own evidence says so."""
    found: list[Finding] = []
    for stage in run.stages:
        own = [e for e in run.evidence if _about(e, stage)]
        if not own:
            continue  # a stage without a protocol of its own (SFT); what others say of it is in the guards
        start, end = stage.parent.get("digest"), stage.digest
        after = [e for e in own if end and e["checkpoint"]["digest"] == end]
        before = [e for e in own if e["checkpoint"]["digest"] == start]
        if not after:
            state = "not finished" if stage.state != "done" else "its end was not measured"
            found.append(Finding(stage, own[0]["protocol"]["name"], why=f"{state}{_so_far(before)}"))
        for e in after:
            same = [b for b in before if b["protocol_digest"] == e["protocol_digest"]]
            if not before:
                found.append(Finding(stage, e["protocol"]["name"], why=f"its start was not measured{_so_far([e])}"))
                continue
            result = compared((same or before)[0], e)
            if isinstance(result, str):
                found.append(Finding(stage, e["protocol"]["name"], why=result, refused=True))
            else:
                found.append(Finding(stage, e["protocol"]["name"], result))
    return found


def _so_far(evidence: list[Mapping[str, Any]]) -> str:
    return f"; mean reward {mean_reward(evidence[0]):.3f}" if evidence else ""


def _about(evidence: Mapping[str, Any], stage: StageRun) -> bool:
    protocol = evidence["protocol"]
    return protocol["name"] in (stage.name, stage.label) or protocol["stage"] == stage.stage


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change | str:
    """The change, or why there is none."""
    key = (before["protocol_digest"] + after["protocol_digest"], before["checkpoint"]["digest"])
    key = (*key, after["checkpoint"]["digest"], hash((mean_reward(before), mean_reward(after))))
    if key not in _known:
        try:
            _known[key] = compare(before, after)
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            _known[key] = str(error)
    return _known[key]


def checkpoints(run: Run) -> list[tuple[str, str]]:
    """(digest, name) of all checkpoints, the base model first."""
    found: dict[str, str] = {}
    for stage in run.stages:
        digest = stage.parent.get("digest")
        if stage.parent.get("stage") is None and isinstance(digest, str):
            found.setdefault(digest, "base")
    for stage in run.stages:
        if stage.digest:
            found.setdefault(stage.digest, stage.label)
    for evidence in run.evidence:  # of a checkpoint that no stage names
        found.setdefault(evidence["checkpoint"]["digest"], str(evidence["checkpoint"].get("name") or "?"))
    return list(found.items())


def guards(run: Run) -> list[Guard]:
    """A row per protocol, in the order of the stages they belong to."""
    place = {stage.stage: n for n, stage in reversed(list(enumerate(run.stages)))}
    named = {stage.name: n for n, stage in reversed(list(enumerate(run.stages)))}
    by_protocol: dict[str, dict[str, Mapping[str, Any]]] = {}
    for evidence in run.evidence:
        by_protocol.setdefault(evidence["protocol_digest"], {})[evidence["checkpoint"]["digest"]] = evidence

    def order(item: tuple[str, dict[str, Mapping[str, Any]]]) -> tuple[int, str, str]:
        protocol = next(iter(item[1].values()))["protocol"]
        return named.get(protocol["name"], place.get(protocol["stage"], 999)), protocol["name"], item[0]

    rows: list[Guard] = []
    above: dict[str, Protocol] = {}
    columns = [digest for digest, _ in checkpoints(run)]
    for digest, measured in sorted(by_protocol.items(), key=order):
        told = next(iter(measured.values()))["protocol"]
        row = Guard(told["name"], digest)
        protocol = Protocol.of(told, "evidence")
        if other := above.get(told["name"]):
            row.unlike = "; ".join(different(other, protocol)) or "in nothing that is named"
        above[told["name"]] = protocol
        own = _own_end(run, measured)
        for at, column in enumerate(columns):
            if column not in measured:
                continue
            since, note = None, ""
            if own and column != own and at > columns.index(own):
                result = compared(measured[own], measured[column])
                since, note = (None, result) if isinstance(result, str) else (result, "")
            row.cells[column] = Cell(mean_reward(measured[column]), column == own, since, note)
        rows.append(row)
    return rows


def _own_end(run: Run, measured: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The checkpoint, on the trunk if it is there, of the stage that this protocol belongs to."""
    found = [s for s in run.stages if s.digest in measured and _about(measured[s.digest], s)]
    by_name = [s for s in found if measured[s.digest]["protocol"]["name"] in (s.name, s.label)] or found
    trunk = [s for s in by_name if s.branch is None] or by_name
    return trunk[0].digest if trunk else None
