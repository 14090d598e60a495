"""Leaves samples that our own infrastructure spoiled out of training, of group means and of metrics.

The reward manager writes how each rollout ended into `reward_extra_info["termination"]`; an ending whose fault is
infrastructure is never scored 0 and never trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.types import Fault, Termination

MAX_SHARE = 0.5
"""A step in which more than this share of the samples was spoiled ends the run. Ours."""


def termination_of(extra_fields: Any) -> Termination | None:
    """How the rollout with these `extra_fields` ended; None if nobody said."""
    info = extra_fields.get("reward_extra_info") if isinstance(extra_fields, Mapping) else None
    name = (info or {}).get("termination") or (extra_fields or {}).get("termination")
    return Termination(name) if name else None


def is_fault(termination: Termination | None) -> bool:
    return termination is not None and termination.fault is Fault.INFRASTRUCTURE


def terminations(batch: Any) -> list[Termination | None]:
    """One per key of a `KVBatchMeta`, in order."""
    import transfer_queue as tq

    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    return [termination_of(getattr(extra, "data", extra)) for extra in list(data["extra_fields"])]


def exclude(batch: Any, metrics: dict[str, Any]) -> Any:
    """Takes the faulted samples of a training batch out of the loss, the group means and the metrics.

    They stay in the batch as rows that verl treats as padding: mask 0, a group of their own, tag `is_padding`
    (trainer/ppo/padding_utils.py). Counts of rollouts go to `rufus/faults/<termination>`. Raises
    `InfrastructureError` when more than `MAX_SHARE` of the rollouts are spoiled.
    """
    found = terminations(batch)
    spoiled = [row for row, termination in enumerate(found) if is_fault(termination)]
    # a rollout has a row per segment
    endings = {key.rsplit("_", 1)[0]: found[row] for row, key in enumerate(batch.keys)}
    counts = Counter(ending.value for ending in endings.values() if is_fault(ending))
    metrics["rufus/faults"] = counts.total()
    metrics.update({f"rufus/faults/{name}": count for name, count in counts.items()})
    if counts.total() > MAX_SHARE * len(endings):
        raise InfrastructureError(
            f"{counts.total()} of {len(endings)} samples of this step were spoiled by faults of our side "
            f"({', '.join(f'{name} {count}' for name, count in counts.items())}); the workers' logs above say "
            "why. The run ends: what is left would be a different training set."
        )
    if spoiled:
        _blank(batch, spoiled)
    return batch


def drop(batch: Any) -> tuple[Any, list[str]]:
    """A validation batch without its faulted samples, and the uid of each rollout that was dropped."""
    import transfer_queue as tq

    spoiled = [row for row, termination in enumerate(terminations(batch)) if is_fault(termination)]
    if not spoiled:
        return batch, []
    keys = [batch.keys[row] for row in spoiled]
    if len(keys) == len(batch.keys):
        raise InfrastructureError("every validation sample was spoiled by faults of our side; see the logs above")
    tq.kv_clear(keys=keys, partition_id=batch.partition_id)
    kept = sorted(set(range(len(batch.keys))) - set(spoiled))
    rest = type(batch)(
        partition_id=batch.partition_id,
        keys=[batch.keys[row] for row in kept],
        tags=[batch.tags[row] for row in kept],
        extra_info=batch.extra_info,
    )
    return rest, [rollout.rsplit("_", 1)[0] for rollout in {key.rsplit("_", 1)[0]: None for key in keys}]


def _blank(batch: Any, rows: list[int]) -> None:
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    keys = [batch.keys[row] for row in rows]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    fields = []
    for key, mask in zip(keys, data["response_mask"].unbind(), strict=True):
        zeros = torch.zeros_like(mask)
        fields.append(
            {
                "response_mask": zeros,
                "loss_mask": zeros,
                "rm_scores": torch.zeros(mask.shape, dtype=torch.float32),
                "uid": f"fault-{key}",
            }
        )
    for row in rows:
        batch.tags[row]["is_padding"] = True
    tq.kv_batch_put(
        keys=keys,
        partition_id=batch.partition_id,
        fields=list_of_dict_to_tensordict(fields),
        tags=[batch.tags[row] for row in rows],
    )
