"""verl's FSDP2 engines on CPU (actor, reference, critic). verl 0.9.1 registers them for cuda and npu only
(workers/engine/fsdp/transformer_impl.py:1143, :1594)."""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType

from rufus_plugins.errors import ConfigError

from .router_replay import replaying


def register(transformer_impl: ModuleType) -> None:
    from verl.workers.engine.base import EngineRegistry

    for model_type, stock in (
        ("language_model", replaying(transformer_impl.FSDPEngineWithLMHead)),
        ("value_model", transformer_impl.FSDPEngineWithValueHead),
    ):
        engine = on_cpu_engine(stock, transformer_impl)
        EngineRegistry.register(model_type=model_type, backend=["fsdp", "fsdp2"], device="cpu")(engine)


def on_cpu_engine(stock: type, transformer_impl: ModuleType) -> type:
    """`stock`, an FSDP engine class of verl or a subclass of it, made to run on CPU."""

    class CpuEngine(stock):
        def __init__(self, model_config, engine_config, *args, **kwargs):
            if engine_config.strategy != "fsdp2":
                raise ConfigError(
                    f"strategy={engine_config.strategy!r} does not run on CPU (FSDP1 refuses CPU parameters): "
                    "set actor_rollout_ref.actor.strategy=fsdp2 (SFT: engine.strategy=fsdp2)"
                )
            super().__init__(model_config, engine_config, *args, **kwargs)

        def _build_fsdp_module(self, module):
            with _no_offload_policy(transformer_impl):
                return super()._build_fsdp_module(module)

        def save_checkpoint(self, *args, **kwargs):
            """Without the name of the attention it trained with: other processes may not know it."""
            config = self.module.config
            name = vars(config).pop("attn_implementation", None)
            try:
                return super().save_checkpoint(*args, **kwargs)
            finally:
                if name is not None:
                    config.attn_implementation = name

    CpuEngine.__name__ = CpuEngine.__qualname__ = f"Cpu{stock.__name__}"
    return CpuEngine


@contextmanager
def _no_offload_policy(transformer_impl: ModuleType):
    """transformer_impl.py:462 forces `CPUOffloadPolicy(pin_memory=True)` on the reference: pinning needs CUDA."""
    stock = transformer_impl.CPUOffloadPolicy
    transformer_impl.CPUOffloadPolicy = lambda pin_memory=True: None
    try:
        yield
    finally:
        transformer_impl.CPUOffloadPolicy = stock
