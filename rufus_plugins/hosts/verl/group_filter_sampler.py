"""The group filter as a V1 sampler (`trainer.v1.sampler.custom_sampler`), for sync, colocate_async, separate_async.

verl's own samplers drop groups of zero variance only, throw surplus away in sync mode, and wait for ever for a lost
rollout or a band that no group enters (trainer/ppo/v1/replay_buffer.py). This one keeps the band of
`rufus.group_filter`, carries surplus good groups to the next step (they stay in the TransferQueue under their keys,
which verl clears for selected groups only), and ends every wait: with a full batch, with a smaller one and a
warning, or with `NoProductiveGroups`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.utils.skip import SkipManager

from rufus_plugins.algos.curriculum import Curriculum, Judged
from rufus_plugins.algos.group_filter import GroupFilter, NoProductiveGroups, Verdict, group_filter
from rufus_plugins.algos.truncation import masked_terminations
from rufus_plugins.errors import ConfigError
from rufus_plugins.types import Termination

from .group_values import rollout_values
from .rollout_watch import RolloutWatch
from .sampling_step import Step
from .validation_groups import validation_groups

POLL_S = 0.5
"""Shortest time between two looks at the queue. verl's is 2 s; ours."""
LONGEST_POLL_S = 5.0
"""However long the queue; ours."""


class GroupFilterSampler(ReplayBufferAsync):
    """`sampler_kwargs`: `group_filter`, `mask_terminations` (both as under `rufus:`), `max_response_length`,
    `history` (a file) and `poll_interval_s`.

    `watch` (prompts of dead workers, and the records' own ids) and `abort` (stops what is being generated) come from
    our trainer; without them the deadlines alone end a wait, and there is no history.
    """

    def __init__(self, trainer_mode: str, sampler_kwargs: Any = None, poll_interval: float = POLL_S, **kwargs: Any):
        options = _plain(sampler_kwargs)
        super().__init__(
            trainer_mode=trainer_mode,
            sampler_kwargs=sampler_kwargs,
            poll_interval=float(options.get("poll_interval_s") or poll_interval),
            **kwargs,
        )
        if self.refill_fn is None:
            raise ConfigError("the group filter needs a trainer that can generate more prompts (refill_fn)")
        self.filter: GroupFilter = group_filter(options.get("group_filter"))
        self.masked = masked_terminations(options.get("mask_terminations"))
        self.cap: int | None = options.get("max_response_length")
        self.curriculum = Curriculum(options["history"]) if options.get("history") else None
        self.watch: RolloutWatch | None = None
        self.abort: Callable[[], None] | None = None
        self._values: dict[str, list[float]] = {}
        """Judged groups that are still in the queue -> values of their rollouts."""
        self._verdicts: dict[str, Verdict] = {}
        self._waiting_since: dict[str, int] = {}
        """Surplus good groups -> step in which they were left over."""
        self._abandoned: set[str] = set()
        """Prompts given up while in flight: whatever they still write is cleared."""
        self._fresh: list[tuple[Verdict, float | None]] = []
        """Judged since the last step took note."""
        self._endings: list[Termination | None] = []
        """How the rollouts of these groups ended."""
        self._entries: list[Judged] = []
        self._resumed, self._step = False, 0

    # ---- what verl calls -------------------------------------------------------------------------------------------

    @SkipManager.annotate_tq(role="rollout_tq", phase="sample")
    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict]:
        """`batch_size` groups (fewer with a warning, see `on_short`) and the metrics of the wait."""
        if partition_id == "val":
            return validation_groups(self, batch_size), {}
        step = Step(global_steps, batch_size, self.filter)
        good = self._fill(step)
        if len(good) < batch_size:
            self._short(step, good)
        chosen = self._oldest(good)[:batch_size]
        surplus = set(good) - set(chosen)
        if self.trainer_mode == "sync" and self.filter.max_age_steps == 0 and surplus:
            step.dropped[Verdict.CUT] += len(surplus)
            self._clear_groups(partition_id, surplus)
            self._forget(surplus)
            surplus = set()
        for uid in surplus:
            self._waiting_since.setdefault(uid, global_steps)
        metrics = self._metrics(step, chosen)
        batch = self._materialize_batch(partition_id, chosen, dict(self.partitions[partition_id]))
        self._forget(chosen)
        if self.curriculum is not None:
            self.curriculum.append(self._entries)
        self._entries = []
        return batch, metrics

    def wait_for_sampleable(self, global_steps: int, partition_id: str, target_count: int) -> tuple[set[str], dict]:
        """For separate_async's hybrid switching: waits as `sample` does, without taking the groups."""
        step = Step(global_steps, target_count, self.filter)
        good = self._fill(step)
        return set(good), self._metrics(step, [])

    def get_sampleable_count(self, global_steps: int, partition_id: str) -> int:
        """Groups that `sample` could return now. Drops nothing, so that each drop is counted and refilled once."""
        self._look()
        return len(self._ended() - self._bad(global_steps).keys())

    def prompts_wanted(self, global_steps: int, batch_size: int) -> int:
        """Prompts that a new sync step has to generate, given the good groups that wait."""
        self._sync_metadata_from_transfer_queue()
        oldest = global_steps - self.filter.max_age_steps
        ended = self._ended()
        waiting = sum(uid in ended and since >= oldest for uid, since in self._waiting_since.items())
        return max(0, math.ceil(batch_size * self.filter.oversample) - waiting)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def _fill(self, step: Step) -> list[str]:
        """Polls, drops and refills until there are enough good groups or a bound is met; returns the good ones."""
        if self.curriculum is not None and not self._resumed:
            self.curriculum.resume(step.step)
        self._resumed, self._step = True, step.step
        per_round = step.per_round
        allowed = self.filter.max_rounds * per_round
        seen: Any = None
        progressed = debugged = time.monotonic()
        first, sync, replaced = True, self.trainer_mode == "sync", 0
        while True:
            looked = time.monotonic()
            good = self._poll(step)
            flying = self.pending_keys["train"] | self.running_keys["train"]
            if first:
                step.carried = sum(uid in self._waiting_since for uid in good)
                step.asked = step.judged + len(flying) if sync else per_round
            more = 0
            if not sync:  # keeps the window of prompts in flight filled
                more = self._refill(step, step.dropped.total() - replaced, allowed)
                replaced = step.dropped.total()
            enough = len(good) >= step.wanted
            if enough and not (sync and flying) and self._may_sample(step.step, flying):
                return good

            now = time.monotonic()
            mark = (len(self.partitions["train"]), len(flying), step.asked, step.dropped.total())
            if mark != seen:
                seen, progressed = mark, now
            if now - step.started > self.filter.max_wait_s:
                step.late = True
                if sync and flying:
                    self._give_up(step, flying, f"the step has waited {now - step.started:.0f} s", abort=True)
                return good
            if flying and now - progressed > self.filter.lost_after_s:
                self._give_up(step, flying, f"nothing has ended for {now - progressed:.0f} s", abort=sync)
                continue

            # Tops up when even a perfect rest would not do.
            if not enough:
                short = (per_round if first else step.wanted) - len(good) - len(flying) - more
                more += self._refill(step, math.ceil(short * (1.0 if first else self.filter.oversample)), allowed)
            first = False
            if more > 0:
                continue
            if not flying and not enough:
                return good  # the rounds are used up
            debugged = self._pause(looked, debugged)

    def _refill(self, step: Step, count: int, allowed: int) -> int:
        """Asks for `count` more prompts, within the step's rounds; returns how many it asked for."""
        count = min(count, allowed - step.asked)
        if count <= 0:
            return 0
        self.refill_fn(count)
        step.asked += count
        return count

    def _may_sample(self, global_steps: int, flying: set[str]) -> bool:
        """verl's off-policy strategy `wait`: prompts at the threshold are waited for (replay_buffer.py:533)."""
        if self.trainer_mode == "sync" or self.max_off_policy_threshold is None:
            return True
        if self.max_off_policy_strategy != "wait":
            return True
        started = self.prompt_global_steps["train"]
        return all(global_steps - started[uid] + 1 < self.max_off_policy_threshold for uid in flying)

    def _pause(self, looked: float, debugged: float) -> float:
        # A look costs time that grows with the queue: it may take a few percent of the wait.
        cost = time.monotonic() - looked
        interval, self.poll_interval = self.poll_interval, max(self.poll_interval, min(25 * cost, LONGEST_POLL_S))
        try:
            return self._wait_for_next_poll("train", debugged)
        finally:
            self.poll_interval = interval

    def _give_up(self, step: Step, flying: set[str], why: str, abort: bool) -> None:
        """Counts the prompts in flight as lost and clears them; in sync mode the engine stops working on them."""
        print(
            f"rufus: step {step.step}: {why}; {len(flying)} prompts in flight count as lost",
            file=sys.stderr,
            flush=True,
        )
        self._lose(step, set(flying))
        if abort and self.abort is not None:
            self.abort()

    def _lose(self, step: Step, uids: set[str]) -> None:
        step.dropped[Verdict.LOST] += len(uids)
        self._abandoned |= uids
        self._clear_groups("train", uids)
        self._forget(uids)

    # ---- one look at the queue -------------------------------------------------------------------------------------

    def _poll(self, step: Step) -> list[str]:
        """Looks, drops the groups that are no good, and returns those that are."""
        self._look()
        if self.watch is not None:
            gone = self.watch.lost() & (self.pending_keys["train"] | self.running_keys["train"])
            if gone:
                self._lose(step, gone)
        for verdict, mean in self._fresh:
            step.judged += 1
            step.kept += verdict is Verdict.KEPT
            if mean is not None:
                step.means.append(mean)
        step.endings.extend(self._endings)
        self._fresh, self._endings = [], []
        drop = self._bad(step.step)
        if drop:
            step.dropped.update(drop.values())
            self._clear_groups("train", set(drop))
            self._forget(drop)
        return list(self._ended())

    def _look(self) -> None:
        """Reads the queue's tags and judges the groups that ended since the last look."""
        self._sync_metadata_from_transfer_queue()
        if self._abandoned:
            partition = self.partitions["train"]
            strays = [key for key in partition if key.split("_", 1)[0] in self._abandoned]
            if strays:
                tq.kv_clear(partition_id="train", keys=strays)
                for key in strays:
                    del partition[key]
        self._judge(self._ended() - self._verdicts.keys())

    def _ended(self) -> set[str]:
        return self.finished_keys["train"] | self.failure_keys["train"]

    def _bad(self, global_steps: int) -> dict[str, Verdict]:
        """Ended groups that must not be trained on -> why."""
        stale = self._stale_terminal_keys(global_steps, "train") if self.trainer_mode != "sync" else set()
        bad = {}
        for uid in self._ended():
            if self._verdicts[uid] is not Verdict.KEPT:
                bad[uid] = self._verdicts[uid]
            elif uid in stale or global_steps - self._waiting_since.get(uid, global_steps) > self.filter.max_age_steps:
                bad[uid] = Verdict.TOO_OLD
        return bad

    def _judge(self, uids: set[str]) -> None:
        if not uids:
            return
        tags = {key: tag for key, tag in self.partitions["train"].items() if key.split("_", 1)[0] in uids}
        values: dict[str, list[float]] = {uid: [] for uid in uids}
        found, endings = rollout_values(tags, self.filter.metric, self.masked, self.cap)
        for rollout, value in found.items():
            values[rollout.split("_", 1)[0]].append(value)
        self._endings.extend(endings.values())
        for uid, group in values.items():
            verdict = self.filter.judge(group)
            mean = math.fsum(group) / len(group) if group else None
            self._verdicts[uid], self._values[uid] = verdict, group
            self._fresh.append((verdict, mean))
            prompt = self.watch.prompt_ids.get(uid) if self.watch is not None else None
            if prompt is not None and self.curriculum is not None:
                self._entries.append(
                    Judged(self._step, prompt, len(group), mean, self.filter.side(group), verdict.value)
                )

    # ---- the rest --------------------------------------------------------------------------------------------------

    def _oldest(self, uids: Iterable[str]) -> list[str]:
        started = self.prompt_global_steps["train"]
        return sorted(uids, key=lambda uid: (started.get(uid, 0), uid))

    def _forget(self, uids: Iterable[str]) -> None:
        uids = set(uids)
        for known in (self._values, self._verdicts, self._waiting_since):
            for uid in uids & known.keys():
                del known[uid]
        if self.watch is not None:
            self.watch.settled(uids)

    def _short(self, step: Step, good: list[str]) -> None:
        rule = self.filter
        message = step.story(len(good))
        if rule.on_short == "stop" or len(good) < rule.min_groups:
            if self.curriculum is not None:
                self.curriculum.append(self._entries)
            raise NoProductiveGroups(message)
        print(f"rufus: {message}\n  The step goes on with {len(good)} groups.", file=sys.stderr, flush=True)

    def _metrics(self, step: Step, chosen: list[str]) -> dict[str, float]:
        started = self.prompt_global_steps["train"]
        ages = [step.step - started.get(uid, step.step) for uid in chosen]
        return step.metrics([self._values[uid] for uid in chosen], ages)


def _plain(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else dict(config)
