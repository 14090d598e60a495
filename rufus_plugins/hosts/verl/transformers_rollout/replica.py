"""verl's view of one rollout server: launches the actor beside the trainer's worker."""

from __future__ import annotations

import ray
from verl.workers.rollout.replica import RolloutReplica

from rufus_plugins.errors import ConfigError

from . import NAME
from .server import TransformersServer


def actor_name(replica_rank: int, suffix: str = "") -> str:
    return f"{NAME}_server_{replica_rank}_0{suffix}"


class TransformersReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ConfigError(
                f"rollout.name=transformers puts a whole model into each replica, but {self.world_size} workers were "
                "asked for: set actor_rollout_ref.rollout.tensor_model_parallel_size=1 (and data_parallel_size=1)"
            )
        if self.is_reward_model or self.is_teacher_model:
            raise ConfigError("rollout.name=transformers serves the policy only, no reward or teacher model")
        node_id = await self.workers[0].__ray_call__.remote(lambda worker: ray.get_runtime_context().get_node_id())
        name = actor_name(self.replica_rank, self.name_suffix)
        server = (
            ray.remote(TransformersServer)
            .options(
                name=name,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        await server.resume_generation.remote()  # raises what the constructor raised
        self.servers = [server]
        self._server_handle, self._server_address = server, f"ray://{name}"
