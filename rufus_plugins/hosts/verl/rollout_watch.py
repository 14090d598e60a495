"""Knows which rollout worker has which prompts, so that a dead worker's prompts are lost at once, not waited for.

verl 0.9.1 hands prompts to its agent-loop workers and forgets who got them
(trainer/ppo/v1/agent_loop_tq.py:240 `AgentLoopManagerTQ.generate_sequences`); when a worker dies, its prompts stay
`running` for ever.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.types import Termination

PING_EVERY_S = 2.0
"""Ours."""


class RolloutWatch:
    """Takes the place of the manager's `generate_sequences`."""

    def __init__(self, manager: Any):
        self.manager = manager
        self._assigned: dict[int, set[str]] = {}
        """Worker (by identity) -> prompts it was given."""
        self._lost: set[str] = set()
        self.prompt_ids: dict[str, str] = {}
        """Prompts in the queue -> id of their record."""
        self._pings: dict[int, tuple[Any, Any]] = {}
        self._pinged = 0.0
        manager.generate_sequences = self.generate_sequences

    def generate_sequences(self, prompts: Any) -> None:
        """As verl's, but survives workers that died. Raises `InfrastructureError` when none is left."""
        import ray

        workers = list(self.manager.agent_loop_workers)
        self.prompt_ids.update(record_ids(prompts))
        calls = []
        for worker, chunk in zip(workers, prompts.chunk(len(workers)), strict=False):
            self._assigned.setdefault(id(worker), set()).update(map(str, chunk["uid"]))
            calls.append((worker, worker.generate_sequences.remote(chunk)))
        for worker, call in calls:
            try:
                ray.get(call)
            except ray.exceptions.RayActorError as error:
                self._bury(worker, error)

    def lost(self) -> set[str]:
        """Prompts whose worker died since they were dispatched. Does not block."""
        import ray

        for worker, ping in list(self._pings.values()):
            ready, _ = ray.wait([ping], timeout=0)
            if ready:
                del self._pings[id(worker)]
                try:
                    ray.get(ping)
                except ray.exceptions.RayActorError as error:
                    self._bury(worker, error)
        if time.monotonic() - self._pinged >= PING_EVERY_S:
            self._pinged = time.monotonic()
            for worker in self.manager.agent_loop_workers:
                if id(worker) not in self._pings:
                    self._pings[id(worker)] = (worker, worker.__ray_ready__.remote())
        return self._lost

    def settled(self, prompts: set[str]) -> None:
        """Forgets prompts that ended."""
        for given in self._assigned.values():
            given -= prompts
        self._lost -= prompts
        for prompt in prompts:
            self.prompt_ids.pop(prompt, None)

    def _bury(self, worker: Any, error: Exception) -> None:
        workers = self.manager.agent_loop_workers
        if worker not in workers:
            return
        workers.remove(worker)
        given = self._assigned.pop(id(worker), set())
        self._lost |= given
        print(
            f"rufus: a rollout worker died with up to {len(given)} prompts in flight; {len(workers)} workers go on "
            f"({str(error).strip().splitlines()[0]})",
            file=sys.stderr,
            flush=True,
        )
        if not workers:
            raise InfrastructureError(
                "all rollout workers died; the last one said: " + str(error), Termination.ENGINE_FAILED
            )


def record_ids(prompts: Any) -> dict[str, str]:
    """uid of each prompt of a rollout batch -> `data_source:id`, which is the same in every epoch and run.

    The id is `extra_info.id`, else `extra_info.index`, else a digest of the messages.
    """
    uids = [str(uid) for uid in prompts["uid"]]

    def column(name: str) -> list[Any]:
        return list(prompts[name]) if name in prompts.keys() else [None] * len(uids)

    found = {}
    for uid, source, extra, messages in zip(
        uids, column("data_source"), column("extra_info"), column("raw_prompt"), strict=True
    ):
        extra = extra if isinstance(extra, Mapping) else {}
        own = extra.get("id", extra.get("index"))
        if own is None:
            text = json.dumps(messages, sort_keys=True, default=str)
            own = hashlib.sha256(text.encode()).hexdigest()[:16]
        found[uid] = f"{source}:{own}"
    return found
