"""Routing replay on verl's FSDP engines, which verl 0.9.1 has on Megatron and VeOmni only.

The stock engine class gets a subclass that does nothing while `router_replay.mode` is disabled. R3 (`rollout`)
replays the rollout's experts in `compute_log_prob` and in the update; R2 (`record`) records them in
`compute_log_prob` and replays them in the update.

verl carries routes as int16 `[tokens, num_hidden_layers, top_k]` per sequence, indexed by absolute decoder layer,
dense layers zero, the last token's row zero (agent_loop.py:129-141).
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from rufus_plugins.errors import ConfigError

LOW_MATCH = 0.5
"""Routes that agree with fewer of the model's own choices than this are probably shifted or foreign. Ours."""


def register(transformer_impl: ModuleType) -> None:
    """Puts the engine before the stock one: `EngineRegistry` looks up (device, vendor) first (engine/base.py:412)."""
    from verl.workers.engine.base import EngineRegistry

    refuse_where_ignored(transformer_impl.FSDPEngine)
    engine = replaying(transformer_impl.FSDPEngineWithLMHead)
    place = EngineRegistry.register(
        model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor=["nvidia", "amd"]
    )
    place(engine)


def refuse_where_ignored(stock: type) -> None:
    """Mends verl 0.9.1, workers/engine/fsdp/transformer_impl.py:115 `FSDPEngine.__init__`, which ignores
    `router_replay.mode`: an engine that is not ours (another accelerator, a critic) refuses it."""
    init = stock.__init__

    @functools.wraps(init)
    def __init__(self: Any, model_config: Any, engine_config: Any, *args: Any, **kwargs: Any) -> None:
        if not hasattr(self, "_replay_mode") and mode_of(engine_config) != "disabled":
            raise ConfigError(
                "routing replay on FSDP runs on NVIDIA and AMD GPUs and on CPU; the engine here is verl's "
                f"own {type(self).__name__}, which would ignore it: set rufus.routing_replay=off"
            )
        init(self, model_config, engine_config, *args, **kwargs)

    stock.__init__ = __init__


def mode_of(engine_config: Any) -> str:
    """disabled, R2 or R3. fsdp.yaml has no `router_replay`, so it may come as a plain dict."""
    replay = engine_config.router_replay
    mode = replay.get("mode", "disabled") if hasattr(replay, "get") else replay.mode
    if mode not in ("disabled", "R2", "R3"):
        raise ConfigError(f"router_replay.mode={mode!r}: there are disabled, R2 and R3")
    return mode


def replaying(stock: type) -> type:
    """`stock`, an FSDP engine class of verl with a language-model head, with routing replay."""

    class ReplayingEngine(stock):
        def __init__(self, model_config: Any, engine_config: Any, *args: Any, **kwargs: Any):
            self._replay_mode = mode_of(engine_config)
            self._reference_pass = False
            self._routers: Any = None
            self._open: ExitStack | None = None
            self._recorder: Any = None
            self._counts: Any = None
            self._fresh: Any = None
            self._updated = False
            self._bytes = 0
            super().__init__(model_config, engine_config, *args, **kwargs)

        def _build_module(self) -> Any:
            module = super()._build_module()
            if self._replay_mode != "disabled":
                from rufus_plugins.algos.routing_replay.routers import install

                if self.model_config.enable_activation_offload and self.model_config.enable_gradient_checkpointing:
                    raise ConfigError(
                        "routing replay does not know the checkpoint of model.enable_activation_offload "
                        "(utils/activation_offload.py): set it to False, or model.enable_gradient_checkpointing=False"
                    )
                self._routers = install(module)
                text = module.config.get_text_config()
                self._depth = max(text.num_hidden_layers, self._routers.layers[-1] + 1)
            return module

        @contextmanager
        def disable_adapter(self) -> Any:
            """The LoRA actor as its own reference: never replayed, never recorded."""
            self._reference_pass = True
            try:
                with super().disable_adapter():
                    yield
            finally:
                self._reference_pass = False

        def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            if self._replay_mode == "disabled" or self._reference_pass:
                return super().forward_step(micro_batch, loss_function, forward_only)
            self._records, self._trains = self._replay_mode == "R2" and forward_only, not forward_only
            with ExitStack() as self._open:
                try:
                    return super().forward_step(micro_batch, loss_function, forward_only)
                finally:
                    self._open = self._recorder = None

        def prepare_model_inputs(self, micro_batch: Any) -> Any:
            model_inputs, output_args = super().prepare_model_inputs(micro_batch)
            if self._open is not None:
                from rufus_plugins.algos.routing_replay.record import record
                from rufus_plugins.algos.routing_replay.replay import replay

                if self._records:
                    self._recorder = self._open.enter_context(record(self.module))
                else:
                    routes, present = self._rows_of(micro_batch, output_args, model_inputs["input_ids"].shape)
                    if self._trains:
                        self._bytes += micro_batch["routed_experts"].values().nbytes
                    self._replayed = self._open.enter_context(replay(self.module, routes, present))
            return model_inputs, output_args

        def prepare_model_outputs(
            self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
        ) -> Any:
            if self._open is None:
                return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
            self._open.close()  # the forward is over; raises if a router did not run
            outputs = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
            if self._recorder is not None:
                outputs["routed_experts"] = self._recorded(micro_batch, output_args)
            else:
                counts = self._replayed.counts()
                self._counts = counts if self._counts is None else self._counts + counts
                if not self._updated:
                    self._fresh = self._counts
            return outputs

        def _rows_of(self, micro_batch: Any, output_args: Any, shape: Any) -> tuple[Any, Any]:
            """The micro-batch's routes in the model's token order `[rows, moe_layers, top_k]`, and which rows hold
            a choice at all."""
            from rufus_plugins.algos.routing_replay.routers import RoutesError

            routed = micro_batch.get("routed_experts", None)
            if routed is None or not routed.is_nested:
                raise RoutesError(
                    "routing replay is on, but the batch has no routed_experts "
                    + (
                        "(R3: the rollout must answer them, rollout.enable_rollout_routing_replay=True)"
                        if self._replay_mode == "R3"
                        else "(R2: compute_log_prob records them, algorithm.rollout_correction.bypass_mode=False)"
                    )
                )
            input_ids = micro_batch["input_ids"]
            offsets = input_ids.offsets()
            rows = routed.values()
            if rows.shape[0] != int(offsets[-1]) or not _equal(routed.offsets(), offsets):
                raise RoutesError(
                    f"routed_experts has {rows.shape[0]} rows in {routed.size(0)} sequences, input_ids "
                    f"{int(offsets[-1])} tokens in {input_ids.size(0)}, or other lengths"
                )
            if rows.shape[1] != self._depth or rows.shape[2] != self._routers.top_k:
                raise RoutesError(
                    f"routed_experts is [tokens, {rows.shape[1]}, {rows.shape[2]}], this model needs [tokens, "
                    f"{self._depth} decoder layers, top {self._routers.top_k}]"
                )
            rows = rows[:, self._routers.layers]
            if self._routers.top_k == 1:
                # verl fills up with zeros, which no rule tells from a choice of expert 0; of all layers, it is none
                rows = rows.masked_fill((rows == 0).all(1, keepdim=True), -1)
            present = rows.new_ones(rows.shape[0], dtype=bool)
            present[offsets[1:] - 1] = False  # the last token was sampled, never routed
            present &= self._of_rollouts(rows, present, micro_batch, offsets)
            if "pad_size" in output_args:
                return self._packed(rows, present, output_args["pad_size"])
            return _padded(rows, offsets, shape), _padded(present, offsets, shape)

        def _packed(self, rows: Any, present: Any, pad_size: int) -> tuple[Any, Any]:
            """Appends the padding of the packed sequence and takes this rank's slice of it, as verl's inputs do."""
            import torch

            rows = torch.cat([rows, rows.new_zeros((pad_size, *rows.shape[1:]))])
            present = torch.cat([present, present.new_zeros(pad_size)])
            if self.use_ulysses_sp:
                from verl.utils.ulysses import slice_input_tensor

                rows = slice_input_tensor(rows, dim=0, padding=False)
                present = slice_input_tensor(present, dim=0, padding=False)
            return rows, present

        def _of_rollouts(self, rows: Any, present: Any, micro_batch: Any, offsets: Any) -> Any:
            """bool `[tokens]`: False in sequences without a single choice, which nobody sampled: the rows that make a
            batch divisible (trainer/ppo/padding_utils.py) and rollouts that were lost before their first token.
            One that is trained on means that the rollout gave no routes: `RoutesError`."""
            import torch

            from rufus_plugins.algos.routing_replay.replay import valid_rows
            from rufus_plugins.algos.routing_replay.routers import RoutesError

            holds = valid_rows(rows, self._routers.num_experts).any(1)
            lengths = offsets.diff()
            some = _per_sequence(holds & present, offsets) > 0
            loss_mask = micro_batch.get("loss_mask", None)
            if loss_mask is not None:
                if loss_mask.is_nested:
                    trained = _per_sequence(loss_mask.values() != 0, loss_mask.offsets())
                else:
                    trained = (loss_mask != 0).sum(-1)
                empty = (trained > 0) & ~some & (lengths > 1)
                if bool(empty.any()):
                    where = torch.nonzero(empty).flatten().tolist()
                    raise RoutesError(
                        f"routing replay is on, but the sequences {where} of this micro-batch have no routes: the "
                        "rollout answered none for them (rollout.enable_rollout_routing_replay, and an engine that "
                        "supports it)"
                    )
            return some.repeat_interleave(lengths)

        def _recorded(self, micro_batch: Any, output_args: Any) -> Any:
            """What the routers chose, in verl's layout: int16 jagged `[sequences, tokens, num_layers, top_k]`."""
            import torch

            chosen = self._recorder.tensor()
            whole = torch.zeros(
                (chosen.shape[0], self._depth, chosen.shape[2]), dtype=torch.int16, device=chosen.device
            )
            whole[:, self._routers.layers] = chosen.to(torch.int16)
            offsets = micro_batch["input_ids"].offsets()
            if "pad_size" in output_args:
                # as bytes: collectives know no int16
                gathered = self._gather_and_unpad_packed(whole.view(torch.uint8), output_args["pad_size"])
                whole = gathered.view(torch.int16)
            else:
                lengths = offsets.diff()
                width = int(lengths.max())
                real = torch.arange(width, device=whole.device) < lengths[:, None].to(whole.device)
                whole = whole[real.flatten()]
            return torch.nested.nested_tensor_from_jagged(whole, offsets)

        def train_batch(self, data: Any, loss_function: Any) -> Any:
            outputs = super().train_batch(data, loss_function)
            if self._replay_mode == "disabled":
                return outputs
            self._updated = True
            from verl.utils import tensordict_utils as tu

            # engine_workers.py:308 marks the last mini-batch of a step: counts are reported once, for all of them
            last = tu.get_non_tensor_data(data, key="update_lr_scheduler", default=True)
            metrics = self._step_metrics() if last else {}
            self._updated = not last
            if self.is_mp_src_rank_with_outputs():
                grad_norm = float(outputs["metrics"]["grad_norm"])
                for name, value in {**metrics, "grad_norm_max": grad_norm}.items():
                    outputs["metrics"][name] = [value]
            return outputs

        def _step_metrics(self) -> dict[str, float]:
            """Over all mini-batches and ranks since the last call."""
            import torch
            from verl.utils.device import get_device_id

            if self._counts is None:
                return {}
            counts = [self._counts, self._fresh[:2], self._counts.new_tensor([self._bytes])]
            counts = torch.cat(counts).to(get_device_id())
            self._counts, self._fresh, self._bytes = None, None, 0
            torch.distributed.all_reduce(counts)
            same, replayed, everything, same_fresh, fresh, held = counts.tolist()
            match = same / replayed if replayed else float("nan")
            if match < LOW_MATCH and self.rank == 0:
                print(
                    f"rufus: the rollout's routes agree with only {match:.0%} of the trainer's own choices: are they "
                    "of this model and these tokens?",
                    flush=True,
                )
            return {
                "routing_replay/match_rate": match,
                "routing_replay/match_rate_fresh": same_fresh / fresh if fresh else float("nan"),
                "routing_replay/native_share": 1 - replayed / everything if everything else float("nan"),
                "routing_replay/bytes": float(held / self.ulysses_sequence_parallel_size),
            }

    ReplayingEngine.__name__ = ReplayingEngine.__qualname__ = f"Replaying{stock.__name__}"
    return ReplayingEngine


def _equal(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def _per_sequence(flags: Any, offsets: Any) -> Any:
    """How many of the flags `[tokens]` are set in each sequence."""
    import torch

    ones = torch.nn.functional.pad(flags.long().cumsum(0), (1, 0))
    return ones[offsets].diff()


def _padded(values: Any, offsets: Any, shape: Any) -> Any:
    """`[tokens, ...]` of jagged sequences -> `[sequences * width, ...]`, right-padded with zeros."""
    import torch

    lengths = offsets.diff()
    real = torch.arange(shape[1], device=values.device) < lengths[:, None]
    padded = values.new_zeros((shape[0] * shape[1], *values.shape[1:]))
    padded[real.flatten()] = values
    return padded
