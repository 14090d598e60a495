"""General Agent: does the terminal database state satisfy the task? Binary, no step shaping, no judge (Rufus-Air).

`artifacts["db_before"]` and `artifacts["db_after"]` are paths of SQLite files. `ground_truth`, a mapping or its JSON:

- `{"verifier": SOURCE}`: AgentWorldModel's pure-code form; the first `def verify_*(initial_db_path, final_db_path,
  final_answer=None)` returns `{"result": "complete" | "others"}`. `{"code": SOURCE}`, and the data card's
  `{"verification": {"code": SOURCE}}`, are the same.
- `{"sql": [CONDITION, ...]}`, a condition being `{"query": SQL, "equals": VALUE}`, `{"query": SQL, "rows": [[...]],
  "ordered": false}` or `{"query": SQL}` (gives something true): all must hold on the final database, in which the
  initial one is attached as `before`. A query that only the final state breaks does not hold; one that no database
  could answer (no SQL, two statements, a write) makes the record unusable.

Both run in the sandbox on copies. The explanation shows what changed between the two states, row by row. A verifier
that raises on the final state, but not on the untouched one, was broken by what the agent did: 0. One that raises on
both, or does not load, makes the record unusable.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.ending import cut_off
from rufus_plugins.rewards.final_answer import without_thinking
from rufus_plugins.types import Fault, Score, Termination, Trajectory

_MODULE = "rufus_plugins.rewards.post_state_jail"
_CONDITION_KEYS = {"query", "equals", "rows", "ordered", "name", "description"}
_DRIVER = f"from {_MODULE} import main\nmain()\n"


@dataclass
class PostState:
    """1 if the terminal database state satisfies the task's verifier or SQL conditions, else 0; jailed."""

    timeout_s: float = 30.0
    """Ours."""
    memory_mb: int = 1024
    """Ours."""
    workers: int | None = None
    require_clean_ending: bool = False
    """Score 0 where a budget ended the episode, whatever the state. Ours."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.memory_mb < 64:
            raise ConfigError("post_state: timeout_s must be above 0 and memory_mb at least 64")

    async def __call__(self, trajectory: Trajectory) -> Score:
        if trajectory.termination.fault is Fault.INFRASTRUCTURE:
            raise InfrastructureError(
                f"the rollout ended with {trajectory.termination.value}: nothing to score", trajectory.termination
            )
        if self.require_clean_ending and (unclean := cut_off(trajectory)):
            return unclean
        wanted = _conditions(trajectory.task.ground_truth)
        before, after = (_database(trajectory, name) for name in ("db_before", "db_after"))
        answer = without_thinking(trajectory.response) or ""
        said = await self._run(wanted | {"answer": answer}, before, after)
        if "broken" in said:
            raise DataError(f"post_state: the verifier {said['broken']}")
        if "unreadable" in said and "passed" not in said:
            raise InfrastructureError(
                f"the final database cannot be read: {said['unreadable']}", Termination.ENVIRONMENT_LOST
            )
        lines = [said["failed"]] if "failed" in said else []
        passed = said.get("passed", False)
        if "conditions" in said:
            passed = all(c.get("passed", False) for c in said["conditions"])
            lines += [
                f"{'holds' if c.get('passed') else 'fails'}: {c['query']} -> {c.get('error') or c.get('found')}"
                for c in said["conditions"]
            ]
        changes = said.get("diff", [])
        lines += ["changes:", *changes] if changes else ["nothing changed"]
        metrics = {"changes": len(changes), "verifier_failed": "failed" in said}
        return Score(float(passed), metrics, "\n".join(lines))

    async def _run(self, given: dict[str, Any], before: bytes, after: bytes) -> dict[str, Any]:
        from rufus_plugins.rollouts.sandboxes.zygote import Limits, shared

        size_mb = (max(len(before), len(after)) >> 20) + 2
        if size_mb > 28:
            raise InfrastructureError(
                f"a database of {size_mb} MiB is more than the sandbox takes (28 MiB)", Termination.REWARD_FAILED
            )
        mark = secrets.token_hex(16)
        sizes = [len(before), len(after)]
        head = json.dumps(given | {"mark": mark, "sizes": sizes, "timeout_s": self.timeout_s}).encode() + b"\n"
        limits = Limits(wall_s=self.timeout_s, memory_mb=self.memory_mb)
        pool = shared([_MODULE, "sqlite3"], workers=self.workers)
        outcome = await pool.run(_DRIVER, head + before + after, limits)
        _, found, verdict = outcome.stdout.decode("utf-8", "replace").rpartition("\n" + mark)
        if found:
            return json.loads(verdict)
        why = f"{self.timeout_s:g} s passed" if outcome.timed_out else outcome.status
        raise InfrastructureError(
            f"the verifier ended without a verdict ({why}): {outcome.stderr.decode(errors='replace')[-500:]}",
            Termination.REWARD_FAILED,
        )


def _conditions(truth: Any) -> dict[str, Any]:
    if isinstance(truth, str):
        try:
            truth = json.loads(truth)
        except ValueError as error:
            raise DataError(f"post_state: ground_truth is a string that is no JSON: {error}") from None
    if isinstance(truth, Mapping):
        inner = truth.get("verification")
        source = (
            truth.get("verifier") or truth.get("code") or (inner.get("code") if isinstance(inner, Mapping) else None)
        )
        if isinstance(source, str) and source.strip():
            return {"verifier": source}
        sql = truth.get("sql")
        if (
            isinstance(sql, list)
            and sql
            and all(isinstance(c, Mapping) and isinstance(c.get("query"), str) for c in sql)
        ):
            return {"sql": [_condition(c) for c in sql]}
    raise DataError(
        f"post_state: ground_truth must be {{verifier: SOURCE}} or {{sql: [{{query, ...}}]}}, not {truth!r:.300}"
    )


def _condition(given: Mapping[str, Any]) -> dict[str, Any]:
    """One SQL condition, checked. `rows` and `ordered` that are null are absent, as Parquet fills them in."""
    condition = {k: v for k, v in given.items() if v is not None or k == "equals"}
    unknown = sorted(condition.keys() - _CONDITION_KEYS)
    if unknown:
        raise DataError(f"post_state: a condition has the unknown keys {unknown}; known: {sorted(_CONDITION_KEYS)}")
    rows = condition.get("rows", [])
    plain = (str, int, float, type(None))
    if not isinstance(rows, list) or not all(
        isinstance(r, list) and all(isinstance(v, plain) for v in r) for r in rows
    ):
        raise DataError(f"post_state: rows is a list of lists of plain values, not {rows!r:.200}")
    if not isinstance(condition.get("equals"), plain) or not isinstance(condition.get("ordered", False), bool):
        raise DataError(f"post_state: equals is a plain value and ordered true or false: {given!r:.200}")
    return condition


def _database(trajectory: Trajectory, name: str) -> bytes:
    path = trajectory.artifacts.get(name)
    if not isinstance(path, str | Path):
        raise InfrastructureError(
            f"artifacts[{name!r}] is {path!r:.100} and no path; there are {sorted(trajectory.artifacts)}. The "
            "environment has to keep both states: environment=mcp does so for worlds, not for servers of yours",
            Termination.ENVIRONMENT_LOST,
        )
    try:
        data = Path(path).read_bytes()
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size:  # committed pages that are not yet in the file itself
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                data = connection.serialize()
    except (OSError, sqlite3.Error) as error:
        raise InfrastructureError(
            f"artifacts[{name!r}] cannot be read: {error}", Termination.ENVIRONMENT_LOST
        ) from error
    # a copy has no write-ahead log beside it: the header must not ask for one (sqlite.org/fileformat.html, 1.3.3)
    return data[:18] + b"\x01\x01" + data[20:] if data[18:20] == b"\x02\x02" else data
