"""Measures one checkpoint under one protocol and writes the evidence file.

Attempts are kept in `<output>.attempts.sqlite` until the evidence is written, so a killed measurement goes on where it
was; with the engine of scale=tiny its figures are those of one that was never killed. What fails on our side is tried
again, counted, and never a score.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.metadata
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rufus_plugins
from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.recipes.data.attempt_store import AttemptStore
from rufus_plugins.recipes.evidence.protocol import Protocol, content_digest, digest_of_conditions
from rufus_plugins.types import Fault, Task, Termination

FORMAT = 1
MOST_UNSCORED = 0.02
"""Share of attempts without a score above which there is no evidence. Ours."""
RETRIES = 3
"""Of an attempt that failed on our side. Ours."""
SAID_EVERY = 20
"""Progress lines per measurement. Ours."""


def said(done: int, total: int) -> None:
    print(f"measured {done}/{total}", flush=True)


def measure(
    protocol: Protocol,
    checkpoint: Path,
    output: Path,
    progress: Callable[[int, int], None] = said,
    *,
    name: str | None = None,
    digest: str | None = None,
) -> dict[str, Any]:
    """The evidence of the model in the folder `checkpoint`, also written to `output`. What is there stays.

    `digest` is the checkpoint's (recipes/chains/lineage.py, `digest_of`) where the caller has it at hand.

    Raises `ConfigError`; `InfrastructureError` if more than `MOST_UNSCORED` of the attempts got no score (what was made
    is kept, and the next call makes only the rest); `RufusError` if nothing but faults comes back.
    """
    from rufus_plugins.recipes.evidence.sampler import attempts_of

    checkpoint, output = Path(checkpoint), Path(output)
    digest = digest or content_digest(checkpoint)
    if output.exists():
        there = load(output)
        if (there["protocol_digest"], there["checkpoint"]["digest"]) == (protocol.digest, digest):
            return there
        raise ConfigError(
            f"{output} is evidence of checkpoint {there['checkpoint']['digest'][:12]} under protocol "
            f"{there['protocol_digest'][:12]}, not of {digest[:12]} under {protocol.digest[:12]}: choose another file"
        )
    tasks = protocol.tasks()
    total = len(tasks) * protocol.attempts
    began = time.monotonic()
    told = 0

    def changed(attempts: Any) -> None:
        nonlocal told
        done = attempts.made + attempts.kept
        if done - told >= max(total // SAID_EVERY, 1) or (done == total and told != total):
            told = done
            progress(done, total)

    kept = output.with_name(output.name + ".attempts.sqlite")
    store = AttemptStore(kept)
    try:
        attempts = attempts_of(protocol, checkpoint, digest, store, retries=RETRIES, on_change=changed)
        asyncio.run(attempts.run(tasks))
        found = {task.id: _item(task, attempts, protocol) for task in tasks}
    finally:
        store.close()
    unscored = sum(score is None for item in found.values() for score in _scores(item, protocol))
    faults = Counter(attempts.faults)
    if attempts.unscorable:
        faults["data"] += attempts.unscorable
    if unscored > MOST_UNSCORED * total:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
        raise InfrastructureError(
            f"{unscored} of {total} attempts of protocol {protocol.name} got no score ({kinds}); "
            f"at most {MOST_UNSCORED:.0%} may. Mend the cause and measure again: what was made is kept in {kept}.",
            _commonest(faults),
        )
    evidence = {
        "format": FORMAT,
        "protocol": protocol.as_json(),
        "protocol_digest": protocol.digest,
        "checkpoint": {"digest": digest, "name": name or checkpoint.name},
        "code": code(),
        "items": found,
        "faults": dict(sorted(faults.items())),
        "unscored": unscored,
        "seconds": round(time.monotonic() - began, 2),
    }
    _write(evidence, output)
    for file in kept.parent.glob(kept.name + "*"):
        file.unlink()
    return evidence


def _item(task: Task, attempts: Any, protocol: Protocol) -> dict[str, Any]:
    """Scores, tokens and endings of an item's samples, and the greedy score; None for what has no score."""
    scores = [None if s is None else s.get("value") for s in attempts.scores(task)]
    answers = [attempts.store.get("answers", attempts.plan.keys(task, n)[0]) for n in range(protocol.attempts)]
    tokens = [None if a is None else a["tokens"] for a in answers]
    endings = [None if a is None else a["termination"] for a in answers]
    n = protocol.samples
    item = {"scores": scores[:n], "greedy": None, "tokens": tokens[:n], "terminations": endings[:n]}
    if protocol.greedy:
        item |= {"greedy": scores[n], "greedy_tokens": tokens[n], "greedy_termination": endings[n]}
    return item


def _scores(item: Mapping[str, Any], protocol: Protocol) -> list[float | None]:
    return [*item["scores"], *([item["greedy"]] if protocol.greedy else [])]


def _commonest(faults: Mapping[str, int]) -> Termination:
    kinds = {t.value: t for t in Termination if t.fault is Fault.INFRASTRUCTURE}
    known = [kind for kind in sorted(faults, key=lambda kind: -faults[kind]) if kind in kinds]
    return kinds[known[0]] if known else Termination.REWARD_FAILED


def load(path: Path) -> dict[str, Any]:
    """An evidence file. Raises `ConfigError` for what is none, or was changed by hand."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the evidence {path} cannot be read: {error}") from None
    return checked(found, str(path))


def checked(found: Any, where: str) -> dict[str, Any]:
    needed = {"format", "protocol", "protocol_digest", "checkpoint", "items"}
    if not isinstance(found, dict) or needed - set(found):
        raise ConfigError(f"{where} is no evidence file: it has no {', '.join(sorted(needed - set(found or ())))}")
    if found["format"] != FORMAT:
        raise ConfigError(f"{where} has format {found['format']}; this version reads {FORMAT}: measure again")
    own = Protocol.of(found["protocol"], where)
    if digest_of_conditions(own.conditions()) != found["protocol_digest"]:
        raise ConfigError(f"{where}: its protocol was changed after it was measured (the digest does not fit)")
    return found


def _write(evidence: Mapping[str, Any], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(evidence, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(output)


@functools.cache
def code() -> dict[str, str]:
    """Version of this package and a digest of its Python files."""
    root = Path(rufus_plugins.__file__).parent
    files = [
        Path(at, name) for at, _, names in os.walk(root, followlinks=True) for name in names if name.endswith(".py")
    ]
    made = hashlib.sha256()
    for file in sorted(files):
        made.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    try:
        version = importlib.metadata.version("rufus-plugins")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return {"version": version, "digest": made.hexdigest()}
