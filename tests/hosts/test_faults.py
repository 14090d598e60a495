"""Faulted samples against a real TransferQueue, written as verl's agent-loop workers write them."""

import numpy as np
import pytest
import torch

from rufus_plugins.errors import InfrastructureError
from rufus_plugins.hosts.verl import faults
from rufus_plugins.types import Termination


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


@pytest.fixture
def batch(queue):
    """batch(endings) -> KVBatchMeta of one group with a rollout per ending; rewards are 1, 2, 3 ..."""
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    written = []

    def write(endings, partition="train"):
        keys, fields, tags = [], [], []
        for number, ending in enumerate(endings):
            length = 3 + number
            scores = torch.zeros(length)
            scores[-1] = 1.0 + number
            ones = torch.ones(length, dtype=torch.int64)
            info = {} if ending is None else {"reward_extra_info": {"termination": ending}}
            keys.append(f"uid_{number}_0")
            fields.append({"rm_scores": scores, "response_mask": ones, "loss_mask": ones, "uid": "uid"} | {
                "extra_fields": info
            })  # fmt: skip
            tags.append({"status": "success", "seq_len": length})
        queue.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields), tags=tags)
        written.append((keys, partition))
        return KVBatchMeta(partition_id=partition, keys=keys, tags=[dict(tag) for tag in tags])

    yield write
    for keys, partition in written:
        present = set(queue.kv_list().get(partition, {}))
        queue.kv_clear(keys=[key for key in keys if key in present], partition_id=partition)


def read(queue, batch, field):
    data = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[field])
    return [row.tolist() if hasattr(row, "tolist") else row for row in list(data[field])]


def test_a_faulted_sample_leaves_the_loss_its_group_and_the_metrics(queue, batch):
    metrics = {}
    b = faults.exclude(batch(["answered", "sandbox_lost", "response_length"]), metrics)
    assert metrics == {"rufus/faults": 1, "rufus/faults/sandbox_lost": 1}
    assert read(queue, b, "response_mask") == [[1] * 3, [0] * 4, [1] * 5]
    assert read(queue, b, "loss_mask") == [[1] * 3, [0] * 4, [1] * 5]
    assert [sum(row) for row in read(queue, b, "rm_scores")] == [1.0, 0.0, 3.0]
    uids = read(queue, b, "uid")
    assert uids[0] == uids[2] == "uid" and uids[1] != "uid"
    assert [tag.get("is_padding", False) for tag in b.tags] == [False, True, False]
    stored = queue.kv_list()["train"]
    assert [stored[key].get("is_padding", False) for key in b.keys] == [False, True, False]


def test_verls_own_grpo_then_centres_on_the_healthy_samples_alone(queue, batch):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    b = faults.exclude(batch(["answered", "judge_failed", "answered"]), {})
    fields = ["rm_scores", "response_mask"]
    data = queue.kv_batch_get(keys=b.keys, partition_id="train", select_fields=fields).to_padded_tensor()
    advantages, _ = compute_grpo_outcome_advantage(
        data["rm_scores"], data["response_mask"], np.array(read(queue, b, "uid")), norm_adv_by_std_in_grpo=False
    )
    # rewards 1 and 3 have the mean 2
    assert advantages[:, 0].tolist() == [-1.0, 0.0, 1.0]
    assert not advantages[1].any()


def test_without_faults_nothing_is_written(queue, batch):
    metrics = {}
    b = faults.exclude(batch(["answered", None, "malformed", "max_turns"]), metrics)
    assert metrics == {"rufus/faults": 0}
    assert read(queue, b, "uid") == ["uid"] * 4
    assert not any("is_padding" in tag for tag in b.tags)


def test_a_step_that_is_mostly_faults_ends_the_run(batch):
    with pytest.raises(InfrastructureError, match="2 of 3 samples .*judge_failed 2"):
        faults.exclude(batch(["judge_failed", "answered", "judge_failed"]), {})


def test_validation_drops_faulted_samples_instead_of_counting_zeros(queue, batch):
    b, lost = faults.drop(batch(["answered", "timeout_infra", "answered"], partition="val"))
    assert b.keys == ["uid_0_0", "uid_2_0"] and len(b.tags) == 2
    assert lost == ["uid"]
    assert set(queue.kv_list()["val"]) == set(b.keys)


def test_validation_of_faults_alone_is_an_error(batch):
    with pytest.raises(InfrastructureError, match="every validation sample"):
        faults.drop(batch(["timeout_infra"], partition="val"))


def test_the_ending_is_read_from_where_the_reward_or_the_agent_loop_wrote_it():
    assert faults.termination_of({"reward_extra_info": {"termination": "sandbox_lost"}}) is Termination.SANDBOX_LOST
    assert faults.termination_of({"termination": "max_turns"}) is Termination.MAX_TURNS
    assert faults.termination_of({}) is None
    assert faults.termination_of(None) is None
