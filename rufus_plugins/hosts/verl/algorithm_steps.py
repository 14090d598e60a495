"""Where the algorithm's rules enter verl's training step: group filter, masked endings, length penalty, budgets.

Mixed into a trainer of verl before `trainer.RufusTrainer`. verl 0.9.1, trainer/ppo/v1/trainer_base.py: a step is
`prepare_step` (prompts go out), `replay_buffer.sample` (groups come back), `_balance_batch`, log-probabilities,
`_compute_advantage`, updates.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rufus_plugins import selection
from rufus_plugins.algos.curriculum import FILE
from rufus_plugins.algos.group_filter import group_filter
from rufus_plugins.algos.length_penalty import length_penalty
from rufus_plugins.algos.truncation import TRUNCATED, masked_terminations, response_budget, truncation_rate
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.report.samples import sample_rules
from rufus_plugins.types import Termination

from . import advantages, faults
from .group_values import ending, last_scores
from .response_budget import FIELD
from .rollout_metrics import rollout_metrics
from .rollout_samples import RolloutSamples
from .rollout_watch import RolloutWatch

SAMPLER = ("pkg://rufus_plugins.hosts.verl.group_filter_sampler", "GroupFilterSampler")
EVERY_GROUP = {"min_rollouts": 1}
"""Without `rufus.group_filter` nothing is filtered, but a lost rollout still cannot hold a step."""
BUDGET_FILE = "response_budget.json"


class AlgorithmSteps:
    def __init__(self, config: Any):
        check_rules(config)
        rules = selection.section(config)
        self._masked = masked_terminations(rules["mask_terminations"])
        self._penalty = length_penalty(rules["length_penalty"])
        self._budget = response_budget(rules["response_budgets"])
        self._filter = rules["group_filter"]
        self._facts = advantages.StepFacts({})
        self._stopped = False
        kept = sample_rules(rules["samples"])
        self._samples = None if kept is None else RolloutSamples(kept)
        super().__init__(config)
        self._run_folder = Path(self.config.trainer.default_local_dir)
        self._resume_budget()

    # ---- sampling --------------------------------------------------------------------------------------------------

    def _build_replay_buffer(self) -> Any:
        _select_sampler(self.config, self._filter, self._masked)
        buffer = super()._build_replay_buffer()
        if self._samples_groups(buffer):
            buffer.abort = self._stop_generation
        return buffer

    @staticmethod
    def _samples_groups(buffer: Any) -> bool:
        from .group_filter_sampler import GroupFilterSampler

        return isinstance(buffer, GroupFilterSampler)

    def _init_dataloader(self) -> None:
        from omegaconf import open_dict

        if self._samples_groups(self.replay_buffer):
            with open_dict(self.config):  # a refill asks for an exact number of prompts
                self.config.data.gen_batch_size = 1
        super()._init_dataloader()

    def fit(self, agent_loop_manager: Any) -> Any:
        if self._samples_groups(self.replay_buffer):
            self.replay_buffer.watch = RolloutWatch(agent_loop_manager)
        return super().fit(agent_loop_manager)

    def prepare_step(self) -> dict:
        skipped = self.config.get("skip", {}).get("rollout_tq", {}).get("enable", False)
        if self.trainer_mode != "sync" or skipped or not self._samples_groups(self.replay_buffer):
            return super().prepare_step()
        wanted = self.replay_buffer.prompts_wanted(self.global_steps, self.config.data.train_batch_size)
        if wanted > 0:
            self._add_prompts_to_generate(wanted)
        return {}

    def _next_train_batch(self, *args: Any, **kwargs: Any) -> Any:
        batch = super()._next_train_batch(*args, **kwargs)
        if self._budget is not None:
            from verl.utils import tensordict_utils as tu

            tu.assign_non_tensor_data(batch, FIELD, self._budget.current)
        return batch

    def _submit_batch_to_rollout(self, batch: Any) -> int:
        self._resume_generation()
        return super()._submit_batch_to_rollout(batch)

    def on_step_end(self) -> None:
        super().on_step_end()
        self._resume_generation()

    def _stop_generation(self) -> None:
        """Ends what the engines still work on; what those rollouts ask for next is refused."""
        self._stopped = True
        self.checkpoint_manager.abort_replicas(reject_request=True)

    def _resume_generation(self) -> None:
        if self._stopped:
            self._stopped = False
            self.checkpoint_manager.resume_generation_replicas()

    # ---- the sampled batch -----------------------------------------------------------------------------------------

    def prepare_samples(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Masks the endings of `rufus.mask_terminations`, counts endings, and notes who is part of a group."""
        if self._samples is not None:
            self._samples.before(batch, self.global_steps, self._cap(), self.tokenizer)
        batch = super().prepare_samples(batch, metrics)
        endings = self._endings(batch)
        fault = {key: faults.is_fault(end) for key, end in endings.items()}
        masked = [key for key, end in endings.items() if end in self._masked]
        mask_rows(batch.partition_id, masked)
        outside = {key: fault[key] or endings[key] in self._masked for key in batch.keys}
        self._facts = advantages.StepFacts(outside, fault, self._penalty, self._cap())

        rollouts = list({key.rsplit("_", 1)[0]: end for key, end in endings.items()}.values())
        for end in Termination:
            count = rollouts.count(end)
            if count or end in TRUNCATED:
                metrics[f"rufus/endings/{end}/total"] = float(count)
        metrics.update(rollout_metrics(batch.tags))
        metrics["rufus/truncation/mean"] = truncation_rate(rollouts)
        metrics["rufus/masked_rollouts/total"] = float(len({key.rsplit("_", 1)[0] for key in masked}))
        self._watch_budget(metrics)
        return batch

    def _endings(self, batch: Any) -> dict[str, Termination | None]:
        """Row key -> how its rollout ended."""
        scores = last_scores(dict(zip(batch.keys, batch.tags, strict=True)), batch.partition_id, self._cap())
        return {key: ending(scores[key.rpartition("_")[0]]) for key in batch.keys}

    def _cap(self) -> int:
        return self._budget.current if self._budget is not None else self.config.data.max_response_length

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        with advantages.step_facts(self._facts) as facts:
            batch = super()._compute_advantage(batch, metrics)
        if facts.not_finite:  # known only now, where a reward model scores after sampling
            mask_rows(batch.partition_id, facts.not_finite)
            name = f"rufus/faults/{Termination.REWARD_FAILED}"
            metrics[name] = metrics.get(name, 0) + len(facts.not_finite)
        metrics.update(facts.metrics)
        if self._samples is not None:
            outside = {**facts.outside, **dict.fromkeys(facts.not_finite, True)}
            self._samples.after(batch, self.global_steps, outside)
        return batch

    # ---- the response budget ---------------------------------------------------------------------------------------

    def _watch_budget(self, metrics: dict[str, Any]) -> None:
        if self._budget is None:
            return
        # the filter drops groups with many truncated rollouts, so what was generated counts, not what is trained on
        rate = metrics.get("rufus/group_filter/truncated/mean", metrics["rufus/truncation/mean"])
        metrics["rufus/response_budget/max"] = float(self._budget.current)
        message = self._budget.observe(rate)
        if message:
            print(f"rufus: step {self.global_steps}: {message}", file=sys.stderr, flush=True)
        self._run_folder.mkdir(parents=True, exist_ok=True)
        partial = self._run_folder / f"{BUDGET_FILE}.partial"
        partial.write_text(json.dumps(self._budget.state()), encoding="utf-8")
        os.replace(partial, self._run_folder / BUDGET_FILE)

    def _resume_budget(self) -> None:
        file = self._run_folder / BUDGET_FILE
        if self._budget is not None and self.config.trainer.resume_mode != "disable" and file.exists():
            self._budget.resume(json.loads(file.read_text(encoding="utf-8")))


def mask_rows(partition_id: str, keys: list[str]) -> None:
    """Sets the masks of these rows to 0 in the TransferQueue: no loss, and no part in what losses divide by."""
    if not keys:
        return
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["response_mask"])
    zeros = [torch.zeros_like(mask) for mask in data["response_mask"].unbind()]
    fields = list_of_dict_to_tensordict([{"response_mask": zero, "loss_mask": zero} for zero in zeros])
    tq.kv_batch_put(keys=keys, partition_id=partition_id, fields=fields)


def check_rules(config: Any) -> None:
    """Raises `ConfigError` for rules that do not fit the rest of the config. Called before Ray starts, too."""
    from verl.trainer.ppo import core_algos

    rules = selection.section(config)
    masked_terminations(rules["mask_terminations"])
    name = getattr(config.algorithm.adv_estimator, "value", config.algorithm.adv_estimator)
    if length_penalty(rules["length_penalty"]) is not None and advantages.asking(name) is None:
        known = sorted(str(n) for n in core_algos.ADV_ESTIMATOR_REGISTRY if advantages.asking(n) is not None)
        raise ConfigError(
            f"rufus.length_penalty applies to rollouts, but algorithm.adv_estimator={name} sees rows only: "
            f"choose one of {', '.join(known)}"
        )
    budget, longest = response_budget(rules["response_budgets"]), config.data.max_response_length
    if budget is not None and budget.budgets[-1] != longest:
        raise ConfigError(
            f"rufus.response_budgets ends at {budget.budgets[-1]}, but data.max_response_length={longest}: "
            "the engines are sized for the latter, so the last budget must equal it"
        )
    if rules["group_filter"] is not None:
        group_filter(rules["group_filter"])
        _check_sampler(config)


def _check_sampler(config: Any) -> None:
    if _stock_filter(config):
        raise ConfigError("rufus.group_filter and algorithm.filter_groups.enable are both set: keep one of them")
    path, name = _custom_sampler(config)
    if path and (path, name) != SAMPLER:
        raise ConfigError(
            f"rufus.group_filter is set, but trainer.v1.sampler.custom_sampler is {path}:{name}: keep one of them"
        )
    if _scores_late(config):
        raise ConfigError(
            "rufus.group_filter needs rewards when groups are sampled, but a colocated reward model scores afterwards: "
            "set reward.reward_model.enable_resource_pool=True"
        )


def _stock_filter(config: Any) -> bool:
    return bool((config.algorithm.get("filter_groups") or {}).get("enable", False))


def _custom_sampler(config: Any) -> tuple[str | None, str | None]:
    own = config.trainer.v1.sampler.get("custom_sampler") or {}
    return (own.get("path"), own.get("name")) if own.get("path") and own.get("name") else (None, None)


def _scores_late(config: Any) -> bool:
    model = config.reward.reward_model
    return bool(model.enable and not model.enable_resource_pool)


def _select_sampler(config: Any, rule: Any, masked: Any) -> None:
    """Puts our sampler into verl's own place for one, unless something else samples."""
    from omegaconf import open_dict

    path, name = _custom_sampler(config)
    if _stock_filter(config) or _scores_late(config) or (path and (path, name) != SAMPLER):
        return
    sampler = config.trainer.v1.sampler
    with open_dict(config):
        sampler.custom_sampler = {"path": SAMPLER[0], "name": SAMPLER[1]}
        kwargs = dict(sampler.get("sampler_kwargs") or {})
        kwargs["group_filter"] = dict(rule) if rule is not None else EVERY_GROUP
        kwargs["max_response_length"] = config.data.max_response_length
        kwargs["mask_terminations"] = sorted(ending.value for ending in masked)
        if rule is not None:
            kwargs["history"] = os.path.join(config.trainer.default_local_dir, FILE)
        sampler.sampler_kwargs = kwargs
