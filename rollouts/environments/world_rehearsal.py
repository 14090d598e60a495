"""Runs in the jail: a loaded world answers a call of each of its operations before episodes fork from it.

What its libraries make at first use (compiled statements, mapped classes, specialised bytecode) is then made once and
shared, not once per episode: an episode of a few calls spends most of its time on that otherwise.

Nothing of a rehearsal may reach an episode. The calls run on a copy of the database that is thrown away, first in a
confined fork (`tried`), which finds those that answer in time and leave the world's memory as it was (world_rest.py);
only these run in the loaded world itself, whose memory is compared again. A world with a memory that cannot be told is
not rehearsed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.rollouts.environments import world_app
from rufus_plugins.rollouts.environments.world_tools import endpoints

_CALL_S, _TRIAL_S = 1.0, 5.0
"""Of one call, and of the whole trial. Ours."""
_KEEP = 1000
_DEPTH = 6
_LOOK_S = 0.1


def requests(document: bytes) -> list[dict[str, Any]]:
    """Of each operation, those that read first: once with what it requires, once with all it takes."""
    try:
        found = endpoints(json.loads(document))
    except (DataError, ValueError, RecursionError):
        return []
    made: list[dict[str, Any]] = []
    for endpoint in sorted(found, key=lambda one: one.method.lower() != "get"):
        schema = endpoint.schema["function"]["parameters"]
        for names in (schema["required"], schema["properties"]):
            request = endpoint.request({name: _sample(schema["properties"][name]) for name in names})
            if isinstance(request, dict) and request not in made:
                made.append(request)
    return made


def _sample(schema: Any, depth: int = 0) -> Any:
    """A value that may fit; one that does not is answered with 422, and that is rehearsed as well."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return "a"
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    for key in ("enum", "examples", "anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return _sample(schema[key][0], depth + 1) if key.endswith("Of") else schema[key][0]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        above = schema.get("exclusiveMinimum")
        return above + 1 if isinstance(above, int | float) else max(1, schema.get("minimum", 1))
    if kind == "boolean":
        return True
    if kind == "array":
        return [_sample(schema.get("items"), depth + 1)]
    if kind == "object":
        inner = schema.get("properties") or {}
        return {name: _sample(inner.get(name), depth + 1) for name in schema.get("required") or inner}
    dates = {"date": "2026-01-01", "date-time": "2026-01-01T00:00:00", "time": "00:00:00"}
    text = dates.get(str(schema.get("format")), "a")
    return text.ljust(min(int(schema.get("minLength") or 0), 1000), "a")


def rehearse(application: world_app.Application, calls: Sequence[Mapping[str, Any]], path: str) -> Iterator[bool]:
    """After each call whether the world is as it was; ends after the first that is not. `path`: a database to spoil."""
    world_app.database.path = path
    application.open()
    try:
        for call in calls:
            status = application.call(call, _CALL_S, _KEEP)["status"]
            same = status != 0 and world_app.nothing_runs(application.loop) and application.memory.unchanged()
            yield same
            if not same:
                return
    finally:
        application.loop.close()
        application.loop = None


def tried(start: Callable[[int], int], look: Callable[[], None]) -> int:
    """How many calls of the front went well in a fork. `start` forks it, with a pipe that it writes a byte to for each;
    `look` watches its disk."""
    reads, writes = os.pipe()
    try:
        pid = start(writes)
    except OSError:
        os.close(reads)
        return 0
    finally:
        os.close(writes)
    count, until = 0, time.monotonic() + _TRIAL_S
    poller = select.poll()
    poller.register(reads, select.POLLIN)
    try:
        while (left := until - time.monotonic()) > 0:
            if poller.poll(1000 * min(left, _LOOK_S)):
                told = os.read(reads, 4096)
                if not told:
                    break
                count += len(told)
            look()
    finally:
        os.close(reads)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(pid, 0)
    return count
