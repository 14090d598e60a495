"""verl's V1 trainers with what ours need, as `rufus_sync`, `rufus_colocate_async` and `rufus_separate_async`.

`preflight` puts them into the place of the stock ones for configs of ours. To change what enters the loss,
override `prepare_samples`; to change which samples are drawn, use verl's own `trainer.v1.sampler.custom_sampler`.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any, ClassVar

from omegaconf import open_dict
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from . import environment_hosts, faults, mismatch
from .algorithm_steps import AlgorithmSteps
from .preflight import PREFIX
from .sequence_count import FLAG


class RufusTrainer:
    """Mixed into a trainer of verl."""

    mode: ClassVar[str]
    """verl's name of the mode: it compares it in many places."""

    def __init__(self, config: Any):
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode
        self._lost: Counter[str] = Counter()
        self._environment_hosts = environment_hosts.launch(config)
        super().__init__(config)

    def prepare_samples(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Called with each training batch as sampled and scored (`KVBatchMeta`), before anything is computed."""
        return faults.exclude(batch, metrics)

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super()._balance_batch(self.prepare_samples(batch, metrics), metrics, *args, **kwargs)

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        with mismatch.measured():
            return super()._compute_old_log_prob(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch.extra_info[FLAG] = True
        return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch.extra_info[FLAG] = True
        return super()._update_critic(batch, metrics)

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        # verl 0.9.1 replay_buffer.py:409 polls every 2 s and takes no setting; ours rides on the sampler's kwargs
        interval_s = self.config.trainer.v1.sampler.sampler_kwargs.get("poll_interval_s")
        if interval_s is not None:
            buffer.poll_interval = float(interval_s)
        stock = buffer.sample

        def sample(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            batch, metrics = stock(*args, **kwargs)
            if batch.partition_id == "val":
                batch, lost = faults.drop(batch)
                self._lost.update(lost)
            return batch, metrics

        buffer.sample = sample
        return buffer

    def _validate(self) -> dict[str, Any]:
        self._lost.clear()
        return {**super()._validate(), "val-aux/rufus/faults": self._lost.total()}

    def _val_metrics_update(self, *args: Any, expected_acc_counts: Any = None, **kwargs: Any) -> dict[str, Any]:
        """verl counts absent samples as acc=0 (metric_utils.py:963): those we dropped are not expected any more."""
        if expected_acc_counts:
            expected_acc_counts = {
                (source, uid): count - self._lost[uid] for (source, uid), count in expected_acc_counts.items()
            }
        return super()._val_metrics_update(*args, expected_acc_counts=expected_acc_counts, **kwargs)


def register(v1: ModuleType) -> None:
    for stock, mode in (
        (PPOTrainerSync, "sync"),
        (PPOTrainerColocateAsync, "colocate_async"),
        (PPOTrainerSeparateAsync, "separate_async"),
    ):
        trainer = type(
            f"Rufus{stock.__name__}", (AlgorithmSteps, RufusTrainer, stock), {"mode": mode, "__module__": __name__}
        )
        register_trainer(PREFIX + mode)(trainer)
