"""The trainer's side of the rollout: sends it the weights, puts it to sleep and wakes it."""

from __future__ import annotations

import os

import ray
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from rufus_plugins.errors import ConfigError

from .replica import actor_name


class ServerAdapter(BaseRollout):
    def __init__(self, config, model_config, device_mesh, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._handle: ray.actor.ActorHandle | None = None

    @property
    def server(self) -> ray.actor.ActorHandle:
        if self._handle is None:  # launched after this worker
            self._handle = ray.get_actor(actor_name(self.replica_rank))
        return self._handle

    async def resume(self, tags: list[str]) -> None:
        if self.config.free_cache_engine:
            await self.server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        if self.config.free_cache_engine:
            await self.server.sleep.remote()

    async def update_weights(self, weights, global_steps: int | None = None, wire_format="named_tensors", **kwargs):
        """Streams `(name, tensor)` pairs in buckets; every rank must come here, gathering is collective."""
        if wire_format != "named_tensors" or kwargs.get("peft_config") is not None:
            raise ConfigError(
                "rollout.name=transformers takes whole weights only: with LoRA set actor_rollout_ref.model.lora.merge="
                "True, and rollout.checkpoint_engine.backend to naive or gloo"
            )
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        await self.server.start_weight_update.remote()
        bucket, size = [], 0
        async for name, tensor in ensure_async_iterator(weights):  # a generator, or another process's stream
            tensor = tensor.detach().cpu()
            if bucket and size + tensor.nbytes > limit:
                await self.server.load_weights.remote(bucket)
                bucket, size = [], 0
            bucket.append((name, tensor))
            size += tensor.nbytes
        await self.server.load_weights.remote(bucket)
        await self.server.finish_weight_update.remote(global_steps)
