"""`rollout.checkpoint_engine.backend=gloo`: weights from trainer to standalone rollouts where there is no GPU.

verl's `separate_async` refuses its in-process way (`naive`), and every other engine that it ships needs a device
library. This one broadcasts over gloo from trainer rank 0, in buckets; a group is made for each update, so a rollout
that was replaced in between is simply in the next one.
"""

from __future__ import annotations

import datetime
import pickle
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from rufus_plugins.errors import InfrastructureError

NAME = "gloo"

TIMEOUT_S = 600.0
"""For each bucket and for the group to come together. Ours."""

ALIGNMENT = 16
"""In bytes: a piece is read as its own dtype where it lies."""


def register(base: ModuleType) -> None:
    """verl 0.9.1 checkpoint_engine/base.py: `CheckpointEngineRegistry.register` overwrites silently."""
    if NAME in base.CheckpointEngineRegistry._registry:
        raise RuntimeError(f"verl has a checkpoint engine {NAME!r} of its own now: remove {__name__}")

    @base.CheckpointEngineRegistry.register(NAME)
    class GlooCheckpointEngine(Transport, base.CheckpointEngine):
        @torch.no_grad()
        async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float]:
            if self.rank < 0:  # producing a weight is collective over the trainer's ranks
                for _ in weights:
                    pass
                return {}
            bucket: list[Any] = []
            buffer, used = torch.empty(self.bucket_size, dtype=torch.uint8), 0
            async for meta, chunk in base.split_weight_chunks(_on_cpu(weights), self.bucket_size):
                used = -(-used // ALIGNMENT) * ALIGNMENT
                if used + meta.chunk_size > self.bucket_size:
                    self.send(bucket, buffer[:used], last=False)
                    bucket, used = [], 0
                buffer[used : used + meta.chunk_size] = chunk
                meta.offset = used
                used += meta.chunk_size
                bucket.append(meta)
            self.send(bucket, buffer[:used], last=True)
            return {}

        async def receive_weights(self, global_steps: int | None = None) -> Any:
            async for pair in base.merge_weight_chunks(self.chunks(), self.bucket_size):
                yield pair

    GlooCheckpointEngine.__qualname__ = "GlooCheckpointEngine"


class Transport:
    """One gloo group per update: trainer rank 0 sends as rank 0, the rollouts' workers receive."""

    def __init__(self, bucket_size: int, is_master: bool = False, timeout_s: float = TIMEOUT_S):
        self.bucket_size, self.is_master = bucket_size, is_master
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self.rank = -1
        self._store = self._group = None

    def prepare(self) -> tuple[str, int] | None:
        """Address of the group's store; of the master alone."""
        if not self.is_master:
            return None
        import ray

        host = ray.util.get_node_ip_address().strip("[]")
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self.timeout)
        return host, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Trainer rank 0 and all rollout workers; the trainer's other ranks only take part in gathering."""
        size, (host, port) = 1 + rollout_world_size, metadata[0]
        trainer = {"rank": [0] + [-1] * (actor_wg_world_size - 1)}
        rollout = {"rank": list(range(1, size))}
        for kwargs, length in ((trainer, actor_wg_world_size), (rollout, rollout_world_size)):
            kwargs |= {"size": [size] * length, "host": [host] * length, "port": [port] * length}
        return trainer, rollout

    def init_process_group(self, rank: int, size: int, host: str, port: int) -> None:
        self.rank = rank
        if rank < 0:
            return
        try:
            if self._store is None:
                self._store = dist.TCPStore(host, port, is_master=False, timeout=self.timeout)
            self._group = dist.ProcessGroupGloo(self._store, rank, size, self.timeout)
        except RuntimeError as error:
            raise InfrastructureError(
                f"trainer and rollouts did not come together for a weight update (gloo, rank {rank} of {size}, "
                f"{host}:{port}): {error}"
            ) from error

    def finalize(self) -> None:
        self._group = self._store = None
        self.rank = -1

    def send(self, bucket: list[Any], data: torch.Tensor, last: bool) -> None:
        head = torch.frombuffer(bytearray(pickle.dumps((bucket, data.numel(), last))), dtype=torch.uint8)
        self._broadcast(torch.tensor([head.numel()]))
        self._broadcast(head)
        if data.numel():
            self._broadcast(data)

    async def chunks(self) -> Any:
        """`(meta, bytes)` of each piece, in the order sent. A new buffer per bucket: what was yielded may be kept."""
        last = False
        while not last:
            length = self._broadcast(torch.zeros(1, dtype=torch.int64))
            head = self._broadcast(torch.empty(int(length), dtype=torch.uint8))
            bucket, size, last = pickle.loads(head.numpy().tobytes())
            data = self._broadcast(torch.empty(size, dtype=torch.uint8)) if size else torch.empty(0, dtype=torch.uint8)
            for meta in bucket:
                yield meta, data[meta.offset : meta.offset + meta.chunk_size]

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            self._group.broadcast([tensor]).wait()
        except RuntimeError as error:
            raise InfrastructureError(
                f"the weights did not go from the trainer to the rollouts (gloo, rank {self.rank}): {error}"
            ) from error
        return tensor


def _on_cpu(weights: Any) -> Any:
    for name, tensor in weights:
        yield name, tensor.detach().cpu().contiguous()
