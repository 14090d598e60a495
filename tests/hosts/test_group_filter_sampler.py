"""The sampler against a real TransferQueue; the rollout side writes groups as verl's agent-loop workers do."""

import json
import math
import time
import types

import pytest
import torch

from rufus_plugins.algos.curriculum import FILE, read
from rufus_plugins.algos.group_filter import NoProductiveGroups
from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.hosts.verl.score_tags import TAG, score_tag
from rufus_plugins.types import Termination

TRUNCATED = (1.0, Termination.RESPONSE_LENGTH)
LOST = (0.0, Termination.SANDBOX_LOST)


@pytest.fixture(scope="module")
def queue():
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield tq
    tq.close()
    ray.shutdown()


def write_group(tq, uid, rewards, partition="train", segments=1, status="finished", metric=None, tagged=True):
    """One ended group: a trajectory per reward, `(reward, ending)` or a number."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    keys, fields, tags = [], [], []
    for rollout, told in enumerate(rewards):
        reward, ending = told if isinstance(told, tuple) else (told, Termination.ANSWERED)
        for segment in range(segments if rollout == 0 else 1):
            length = 2 + rollout + segment
            scores = torch.zeros(length)
            scores[-1] = reward
            info = {"score": reward, "termination": ending.value}
            if metric is not None:
                info["acc"] = metric[rollout]
            keys.append(f"{uid}_{rollout}_{segment}")
            fields.append({"rm_scores": scores, "extra_fields": {"reward_extra_info": info}})
            tags.append({"status": "success", "response_len": length, "seq_len": length, "global_steps": 1})
        if tagged:  # as our patched worker does
            tags[-1][TAG] = json.dumps(score_tag(reward, {"reward_extra_info": info}))
    if keys:
        tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields), tags=tags)
    tq.kv_batch_put(keys=[uid], partition_id=partition, tags=[{"status": status}])


class Rollouts:
    """The trainer's side of a run: dispatches prompts and answers each by the next group of `script`."""

    def __init__(self, tq, script):
        self.tq, self.script, self.step, self.count, self.asked = tq, iter(script), 1, 0, []

    def dispatch(self, count):
        self.asked.append(count)
        for _ in range(count):
            uid = f"p{self.count:04d}"
            self.count += 1
            tag = {"is_prompt": True, "status": "pending", "global_steps": self.step}
            self.tq.kv_batch_put(keys=[uid], partition_id="train", tags=[tag])
            group = next(self.script, [0.0, 0.0])
            if group == "running":
                self.tq.kv_batch_put(keys=[uid], partition_id="train", tags=[{"status": "running"}])
            elif isinstance(group, dict):
                write_group(self.tq, uid, **group)
            else:
                write_group(self.tq, uid, group)


@pytest.fixture
def start(queue, tmp_path):
    """start(script, mode=..., **group_filter) -> (sampler, rollouts); empties the queue before and after."""
    from rufus_plugins.hosts.verl.group_filter_sampler import GroupFilterSampler

    def clear():
        for partition, items in (queue.kv_list() or {}).items():
            if items:
                queue.kv_clear(keys=list(items), partition_id=partition)

    def build(script, mode="sync", threshold=None, strategy="drop", mask=None, history=False, **rule):
        rollouts = Rollouts(queue, script)
        kwargs = {"group_filter": {"min_rollouts": 2, **rule}, "mask_terminations": mask, "poll_interval_s": 0.02}
        if history:
            kwargs["history"] = str(tmp_path / FILE)
        sampler = GroupFilterSampler(
            trainer_mode=mode,
            trainer_config={},
            max_off_policy_threshold=threshold,
            max_off_policy_strategy=strategy,
            sampler_kwargs=kwargs,
            refill_fn=rollouts.dispatch,
        )
        return sampler, rollouts

    clear()
    yield build
    clear()


def uids(batch):
    return sorted({key.split("_")[0] for key in batch.keys})


BAND = {"low": 0.0, "high": 0.8}
GOOD, SOLVED, FAILED = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_groups_outside_the_band_are_dropped_and_replaced(start, mode):
    sampler, rollouts = start([GOOD, SOLVED, FAILED, GOOD, GOOD], mode=mode, **BAND)
    rollouts.dispatch(3)
    batch, metrics = sampler.sample(1, "train", 3)
    assert uids(batch) == ["p0000", "p0003", "p0004"]
    assert rollouts.asked == [3, 2]
    assert metrics["rufus/group_filter/total/generated"] == 5
    assert metrics["rufus/group_filter/total/kept"] == 3
    assert metrics["rufus/group_filter/total/dropped/above_band"] == 1
    assert metrics["rufus/group_filter/total/dropped/below_band"] == 1
    assert metrics["rufus/group_filter/rounds/max"] == 2
    assert metrics["rufus/group_filter/reward_generated/mean"] == pytest.approx((0.5 * 3 + 1 + 0) / 5)
    assert metrics["rufus/group_filter/reward_trained/mean"] == 0.5
    assert metrics["rufus/group_filter/short/max"] == 0


@pytest.mark.parametrize("tagged", [True, False])
def test_the_edges_of_the_band_through_the_queue(start, tagged):
    """With the scores in the tags, and fetched as float32 where the tags do not have them."""
    groups = [[0.8, 0.8], [0.8, 0.81], [0.0, 0.0], [0.0, 0.0001]]
    script = [{"rewards": group, "tagged": tagged} for group in groups]
    sampler, rollouts = start(script, **BAND, max_rounds=1)
    rollouts.dispatch(4)
    batch, _ = sampler.sample(1, "train", 4)
    assert uids(batch) == ["p0000", "p0003"]


@pytest.mark.parametrize("tagged", [True, False])
def test_segments_count_once_and_faulted_and_masked_rollouts_do_not_count(start, tagged):
    script = [
        {"rewards": [1.0, 0.0, 0.0, 0.0, 0.0], "segments": 9},  # .2 by rollouts, 9/13 by rows
        {"rewards": [1.0, 0.0, LOST, LOST]},  # .5 of two healthy ones
        {"rewards": [1.0, 1.0, TRUNCATED, LOST]},  # 1.0 of two
        {"rewards": [1.0, LOST, TRUNCATED]},  # one is left
        {"rewards": [], "status": "failure"},  # every session raised
        {"rewards": [1.0, 0.0], "status": "failure"},  # one session raised
        {"rewards": [float("nan"), 1.0, 0.0]},
    ]
    script = [{**group, "tagged": tagged} for group in script]
    sampler, rollouts = start(script, low=0.0, high=0.6, max_rounds=1)
    rollouts.dispatch(7)
    batch, metrics = sampler.sample(1, "train", 7)
    assert uids(batch) == ["p0000", "p0001", "p0005", "p0006"]
    assert len([key for key in batch.keys if key.startswith("p0000")]) == 13
    assert metrics["rufus/group_filter/total/dropped/above_band"] == 1
    assert metrics["rufus/group_filter/total/dropped/too_few_rollouts"] == 2
    assert metrics["rufus/group_filter/short/max"] == 1


def test_a_stage_that_trains_on_truncations_judges_them(start):
    sampler, rollouts = start([[TRUNCATED, 0.0]], mask=[], **BAND)
    rollouts.dispatch(1)
    batch, _ = sampler.sample(1, "train", 1)
    assert uids(batch) == ["p0000"]


def test_a_named_metric_is_judged_instead_of_the_reward(start):
    script = [{"rewards": [0.3, 0.2], "metric": [1, 1]}, {"rewards": [0.9, 0.9], "metric": [True, 0]}]
    sampler, rollouts = start(script, metric="acc", all_or_none=True, max_rounds=1)
    rollouts.dispatch(2)
    batch, metrics = sampler.sample(1, "train", 2)
    assert uids(batch) == ["p0001"]
    assert metrics["rufus/group_filter/total/dropped/all_solved"] == 1
    sampler, rollouts = start([GOOD], metric="accuracy", zero_variance=True)
    rollouts.dispatch(1)
    with pytest.raises(ConfigError, match="gives score"):
        sampler.sample(1, "train", 1)


def test_oversampling_asks_for_more_and_surplus_waits_for_the_next_step(start):
    sampler, rollouts = start([GOOD] * 20, oversample=2.0, **BAND)
    rollouts.dispatch(sampler.prompts_wanted(1, 2))
    batch, _ = sampler.sample(1, "train", 2)
    assert rollouts.asked == [4] and uids(batch) == ["p0000", "p0001"]
    rollouts.step = 2
    assert sampler.prompts_wanted(2, 2) == 2  # four for a step of two, less the two that wait
    rollouts.dispatch(2)
    batch, metrics = sampler.sample(2, "train", 2)
    assert uids(batch) == ["p0002", "p0003"]
    assert metrics["rufus/group_filter/total/carried"] == 2
    assert metrics["rufus/group_filter/age_steps/max"] == 1


def test_a_step_that_was_given_too_few_prompts_is_topped_up_at_once(start):
    sampler, rollouts = start(["running", GOOD, GOOD, GOOD], oversample=2.0, lost_after_s=0.3, **BAND)
    rollouts.dispatch(1)
    batch, metrics = sampler.sample(1, "train", 2)
    assert rollouts.asked == [1, 3] and uids(batch) == ["p0001", "p0002"]


def test_surplus_older_than_the_bound_is_dropped(start):
    sampler, rollouts = start([GOOD] * 4 + [FAILED] * 4 + [GOOD] * 8, max_age_steps=1, **BAND)
    rollouts.dispatch(4)
    sampler.sample(1, "train", 2)
    rollouts.step = 3
    assert sampler.prompts_wanted(3, 2) == 2
    rollouts.dispatch(4)
    batch, metrics = sampler.sample(3, "train", 2)
    assert uids(batch) == ["p0008", "p0009"]
    assert metrics["rufus/group_filter/total/dropped/too_old"] == 2


def test_an_age_bound_of_zero_throws_surplus_away_and_counts_it(start, queue):
    sampler, rollouts = start([GOOD] * 4, max_age_steps=0, **BAND)
    rollouts.dispatch(4)
    batch, metrics = sampler.sample(1, "train", 2)
    assert metrics["rufus/group_filter/total/dropped/cut"] == 2
    assert sorted(queue.kv_list("train")["train"]) == sorted(batch.keys)


def test_a_band_that_no_group_enters_ends_the_run_with_the_histogram(start):
    sampler, rollouts = start([FAILED] * 3 + [SOLVED], max_rounds=3, **BAND)
    rollouts.dispatch(4)
    with pytest.raises(NoProductiveGroups) as error:
        sampler.sample(5, "train", 4)
    assert sum(rollouts.asked) == 12  # three rounds of four
    text = str(error.value)
    assert "0 of 4 groups passed the filter (0 < mean reward <= 0.8" in text
    assert "12 prompts in 3 rounds" in text and "below_band 11, above_band 1" in text
    histogram = [line.split() for line in text.splitlines() if "###" in line]
    assert [(row[0], row[-1]) for row in histogram] == [("0", "11"), ("1", "1")]


def test_a_short_step_goes_on_and_says_so_or_stops_if_told(start, capsys):
    sampler, rollouts = start([GOOD] + [FAILED] * 9, max_rounds=2, **BAND)
    rollouts.dispatch(3)
    batch, metrics = sampler.sample(1, "train", 3)
    assert uids(batch) == ["p0000"] and metrics["rufus/group_filter/short/max"] == 1
    assert "goes on with 1 groups" in capsys.readouterr().err
    for rule in ({"on_short": "stop"}, {"min_groups": 2}):
        sampler, rollouts = start([GOOD] + [FAILED] * 9, max_rounds=2, **BAND, **rule)
        rollouts.dispatch(3)
        with pytest.raises(NoProductiveGroups, match="1 of 3"):
            sampler.sample(1, "train", 3)


def test_a_rollout_that_never_ends_does_not_hold_the_step(start, queue):
    stopped = []
    sampler, rollouts = start([GOOD, "running", GOOD], lost_after_s=0.3, **BAND)
    sampler.abort = lambda: stopped.append(True)
    rollouts.dispatch(2)
    batch, metrics = sampler.sample(1, "train", 2)
    assert uids(batch) == ["p0000", "p0002"]
    assert metrics["rufus/group_filter/total/dropped/lost"] == 1 and stopped == [True]
    # what the lost rollout still writes is cleared, whatever order it arrives in
    write_group(queue, "p0001", GOOD)
    rollouts.script = iter([GOOD, GOOD])
    rollouts.step = 2
    rollouts.dispatch(2)
    batch, _ = sampler.sample(2, "train", 2)
    assert uids(batch) == ["p0003", "p0004"]
    assert not [key for key in queue.kv_list("train")["train"] if key.startswith("p0001")]


def test_the_wall_time_bound_ends_the_wait(start):
    sampler, rollouts = start([GOOD, "running", "running"], max_wait_s=0.3, **BAND)
    rollouts.dispatch(3)
    began = time.monotonic()
    batch, metrics = sampler.sample(1, "train", 3)
    assert uids(batch) == ["p0000"] and metrics["rufus/group_filter/short/max"] == 1
    assert time.monotonic() - began < 20
    sampler, rollouts = start(["running"], mode="separate_async", max_wait_s=0.3, **BAND)
    rollouts.dispatch(1)
    with pytest.raises(NoProductiveGroups, match="max_wait_s=0.3 is over"):
        sampler.sample(1, "train", 1)


def test_async_modes_keep_the_window_filled_and_leave_rollouts_in_flight_alone(start, queue):
    sampler, rollouts = start([FAILED, GOOD, GOOD, GOOD, "running", "running"], mode="separate_async", **BAND)
    rollouts.dispatch(4)
    batch, _ = sampler.sample(1, "train", 2)
    assert uids(batch) == ["p0001", "p0002"]
    assert rollouts.asked == [4, 1]  # the dropped one is replaced although the batch was full
    assert queue.kv_list("train")["train"]["p0004"]["status"] == "running"
    assert sampler.get_sampleable_count(2, "train") == 1
    ready, _ = sampler.wait_for_sampleable(2, "train", 1)
    assert ready == {"p0003"}


def test_verls_off_policy_threshold_still_drops(start):
    sampler, rollouts = start([GOOD] * 4, mode="colocate_async", threshold=2, **BAND)
    rollouts.dispatch(2)  # dispatched at step 1
    rollouts.step = 3
    rollouts.dispatch(2)
    batch, metrics = sampler.sample(3, "train", 2)
    assert uids(batch) == ["p0002", "p0003"]
    assert metrics["rufus/group_filter/total/dropped/too_old"] == 2


def test_the_history_keeps_every_judged_group_under_its_records_id_and_resumes(start, tmp_path):
    sampler, rollouts = start([GOOD, SOLVED, FAILED, GOOD, GOOD, GOOD], history=True, **BAND)
    sampler.watch = types.SimpleNamespace(
        lost=set, settled=lambda uids: None, prompt_ids={f"p{i:04d}": f"math:{i}" for i in range(9)}
    )
    rollouts.dispatch(3)
    sampler.sample(7, "train", 3)
    entries = read(tmp_path / FILE)
    assert {(e.step, e.prompt, e.side) for e in entries} == {
        (7, "math:0", "inside"),
        (7, "math:1", "above"),
        (7, "math:2", "below"),
        (7, "math:3", "inside"),
        (7, "math:4", "inside"),
    }
    again, rollouts = start([GOOD], history=True, **BAND)
    rollouts.dispatch(1)
    again.sample(7, "train", 1)  # the run was resumed before step 7: it is judged again
    assert read(tmp_path / FILE) == []


def test_validation_is_complete_or_ends_with_a_message(start, queue):
    sampler, _ = start([], lost_after_s=0.3)
    for number in range(3):
        tag = {"is_prompt": True, "status": "pending", "global_steps": 1}
        queue.kv_batch_put(keys=[f"v{number}"], partition_id="val", tags=[tag])
    write_group(queue, "v0", [0.0], partition="val")
    write_group(queue, "v1", [1.0], partition="val")
    with pytest.raises(InfrastructureError, match="1 of 3 prompts are lost"):
        sampler.sample(1, "val", 3)
    write_group(queue, "v2", [1.0], partition="val")
    batch, metrics = sampler.sample(1, "val", 3)
    assert uids(batch) == ["v0", "v1", "v2"] and metrics == {}


def test_a_killed_rollout_worker_loses_its_prompts_and_the_others_go_on(start, queue):
    import numpy as np
    import ray
    from verl.utils import tensordict_utils as tu

    from rufus_plugins.hosts.verl.rollout_watch import RolloutWatch

    @ray.remote(num_cpus=0.1)
    class Worker:
        async def generate_sequences(self, batch):
            pass  # its prompts run until the test ends them

    workers = [Worker.remote(), Worker.remote()]
    victim = workers[0]
    ray.get([worker.__ray_ready__.remote() for worker in workers])
    manager = types.SimpleNamespace(agent_loop_workers=workers)
    watch = RolloutWatch(manager)
    sampler, rollouts = start([], **BAND)

    def dispatch(count, answer=None):
        names = [f"k{rollouts.count + i}" for i in range(count)]
        rollouts.count += count
        tag = {"is_prompt": True, "status": "running", "global_steps": 1}
        queue.kv_batch_put(keys=names, partition_id="train", tags=[dict(tag) for _ in names])
        batch = tu.get_tensordict({"uid": np.array(names, dtype=object), "index": torch.arange(count)})
        manager.generate_sequences(batch)
        for name in names if answer is None else answer:
            write_group(queue, name, GOOD)

    sampler.refill_fn, sampler.watch = dispatch, watch
    dispatch(4, answer=["k1", "k2", "k3"])  # k0 and k1 are the victim's; k0 is still running
    ray.kill(victim)
    batch, metrics = sampler.sample(1, "train", 4)
    assert uids(batch) == ["k1", "k2", "k3", "k4"]
    assert metrics["rufus/group_filter/total/dropped/lost"] == 1
    assert len(manager.agent_loop_workers) == 1

    ray.kill(workers[0])
    with pytest.raises(InfrastructureError, match="all rollout workers died"):
        dispatch(1, answer=[])


def test_record_ids_are_the_records_own_or_a_digest_of_the_messages():
    from rufus_plugins.hosts.verl.rollout_watch import record_ids

    prompts = {
        "uid": ["a", "b", "c", "d"],
        "data_source": ["math"] * 4,
        "extra_info": [{"id": "x7", "index": 3}, {"index": 0}, {}, None],
        "raw_prompt": [[], [], [{"role": "user", "content": "1+1"}], [{"content": "1+1", "role": "user"}]],
    }
    ids = record_ids(prompts)
    assert ids["a"] == "math:x7" and ids["b"] == "math:0"
    assert ids["c"] == ids["d"] and len(ids["c"]) == len("math:") + 16


def test_a_look_at_a_long_queue_does_not_become_a_busy_loop(start, monkeypatch):
    sampler, _ = start([])
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    sampler._pause(time.monotonic() - 0.5, time.time())
    assert waited[0] == 5.0 and math.isclose(sampler.poll_interval, 0.02)
