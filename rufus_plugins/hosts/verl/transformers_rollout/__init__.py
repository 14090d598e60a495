"""`rollout.name=transformers`: a rollout server of plain transformers, for machines without vLLM or SGLang.

`generator` batches, `rows` holds the KV cache, `sampling` draws, `routes` records experts, `weights` loads the
trainer's parameters; `server` is the Ray actor, `replica` and `adapter` are verl's two sides of it.
"""

from types import ModuleType

NAME = "transformers"


def register_replica(replica_module: ModuleType) -> None:
    def load():
        from .replica import TransformersReplica

        return TransformersReplica

    replica_module.RolloutReplicaRegistry.register(NAME, load)


def register_adapter(base_module: ModuleType) -> None:
    base_module._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.adapter.ServerAdapter"
