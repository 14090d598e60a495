"""The sampler's wait for validation: every prompt, or an end with a message.

verl 0.9.1 waits for ever for a lost one (trainer/ppo/v1/replay_buffer.py:409). Going on without it would give the
metric of another set.
"""

from __future__ import annotations

import time
from typing import Any

from rufus_plugins.errors import InfrastructureError


def validation_groups(sampler: Any, count: int) -> Any:
    """The `KVBatchMeta` of all `count` groups. Raises `InfrastructureError` when some are lost: with their rollout
    worker, or because nothing ended for `lost_after_s`."""
    started = progressed = debugged = time.monotonic()
    seen: Any = None
    while True:
        sampler._sync_metadata_from_transfer_queue()
        ended = sampler.finished_keys["val"] | sampler.failure_keys["val"]
        if len(ended) >= count:
            break
        flying = sampler.pending_keys["val"] | sampler.running_keys["val"]
        gone = sampler.watch.lost() & flying if sampler.watch is not None else set()
        now = time.monotonic()
        mark = (len(ended), len(flying), len(sampler.partitions["val"]))
        if mark != seen:
            seen, progressed = mark, now
        if gone or now - progressed > sampler.filter.lost_after_s:
            why = "with their rollout worker" if gone else f"(nothing has ended for {now - progressed:.0f} s)"
            raise InfrastructureError(
                f"validation: {len(gone or flying)} of {count} prompts are lost {why}, {len(ended)} ended within "
                f"{now - started:.0f} s; the logs of the rollout workers say why"
            )
        debugged = sampler._wait_for_next_poll("val", debugged)
    chosen = sorted(ended)[:count]
    batch = sampler._materialize_batch("val", chosen, dict(sampler.partitions["val"]))
    if sampler.watch is not None:
        sampler.watch.settled(set(chosen))
    return batch
