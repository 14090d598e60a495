"""The end of the line: a worker that keeps dying. Restarts themselves are in test_e2e_training.py."""

import asyncio
import types

import pytest
import ray
from omegaconf import OmegaConf

from rufus_plugins.hosts.verl.reward_workers import type_lost_scores


class Output:
    def __init__(self):
        self.reward_score = None
        self.metrics = types.SimpleNamespace(compute_score=None)
        self.extra_fields = {}


def worker(config):
    class AgentLoopWorker:
        async def _compute_score(self, outputs, kwargs):
            raise ray.exceptions.RayActorError(error_msg="the worker died three times")

    type_lost_scores(types.SimpleNamespace(AgentLoopWorker=AgentLoopWorker))
    made = AgentLoopWorker()
    made.config = OmegaConf.create(config)
    return made


def test_a_sample_without_a_score_is_a_typed_fault(capsys):
    outputs = [Output(), Output()]
    asyncio.run(worker({"rufus": {}})._compute_score(outputs, {}))
    assert outputs[1].extra_fields["reward_extra_info"]["termination"] == "reward_failed"
    assert outputs[1].reward_score == 0.0 and outputs[0].reward_score is None
    assert "the worker died three times" in capsys.readouterr().err


def test_a_run_without_us_fails_as_it_always_did():
    with pytest.raises(ray.exceptions.RayActorError):
        asyncio.run(worker({})._compute_score([Output()], {}))
