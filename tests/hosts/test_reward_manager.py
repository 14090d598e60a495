"""The reward manager on the DataProto that verl's agent loop builds (agent_loop.py `_compute_score`)."""

import asyncio
import importlib.metadata
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from rufus_plugins import DataError, InfrastructureError, Score, Termination, hookimpl
from rufus_plugins.hosts.verl import reward_manager
from rufus_plugins.plugins import load


@dataclass
class Probe:
    """Does what the task's ground truth says."""

    bonus: float = 0.0

    async def __call__(self, trajectory):
        seen.append(trajectory)
        match trajectory.task.ground_truth:
            case "lost":
                raise InfrastructureError("the judge is down", Termination.JUDGE_FAILED)
            case "bug":
                raise ZeroDivisionError("oops")
            case "bad record":
                raise DataError("no tests")
            case "slow":
                await asyncio.sleep(60)
            case "wrong type":
                return 1.0
            case "nan":
                return Score(float("nan"))
        return Score(1.0 + self.bonus, {"length": np.int64(len(trajectory.response)), "kind": "fine"})


seen = []


@hookimpl
def register_rewards():
    return {"probe": Probe}


class Tokenizer:
    """Ids are code points, 0 is the end token."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(i) for i in ids if i)


@pytest.fixture
def manager(monkeypatch):
    entry = importlib.metadata.EntryPoint("probe_plugin", __name__, "rufus")
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: PLUGIN)
    found = load([entry])
    assert not found.failures
    monkeypatch.setattr(reward_manager.selection, "registry", lambda: found)
    seen.clear()

    def make(**fields):
        config = OmegaConf.create(
            {"rufus": {"reward": {"name": "probe", **fields}}, "data": {"max_response_length": 8}}
        )
        return reward_manager.RufusRewardManager(config, Tokenizer(), None)

    return make


class PLUGIN:
    register_rewards = staticmethod(register_rewards)


def data(truth="x", outputs=(("hi", "yes\0"),), **extra_fields):
    from verl import DataProto

    pad = torch.nn.utils.rnn.pad_sequence
    prompts = [torch.tensor([ord(c) for c in prompt]) for prompt, _ in outputs]
    responses = [torch.tensor([ord(c) for c in response]) for _, response in outputs]
    whole = [torch.ones(len(p) + len(r), dtype=torch.long) for p, r in zip(prompts, responses, strict=True)]
    n = len(outputs)
    return DataProto.from_dict(
        tensors={
            "prompts": pad(prompts, batch_first=True),
            "responses": pad(responses, batch_first=True),
            "attention_mask": pad(whole, batch_first=True),
        },
        non_tensors={
            "uid": np.array(["u1"] * n, dtype=object),
            "data_source": np.array(["toy"] * n, dtype=object),
            "raw_prompt": np.array([[{"role": "user", "content": "hi"}]] * n + [None], dtype=object)[:n],
            "reward_model": np.array([{"ground_truth": truth}] * n, dtype=object),
            "extra_info": np.array([{"index": np.int64(7), "tags": np.array(["a"])}] * n, dtype=object),
            "prompt_len": np.array([len(p) for p in prompts]),
            "response_len": np.array([len(r) for r in responses]),
            "tool_extra_fields": np.array([extra_fields] * n, dtype=object),
        },
    )


def run(manager, proto):
    return asyncio.run(manager.run_single(proto))


def test_the_reward_sees_task_text_and_tokens(manager):
    result = run(manager(bonus=0.5), data())
    assert result == {
        "reward_score": 1.5,
        "reward_extra_info": {"length": 3, "kind": "fine", "score": 1.5, "termination": "answered"},
    }
    [trajectory] = seen
    assert trajectory.response == "yes"
    assert trajectory.task.id == "7"
    assert trajectory.task.data_source == "toy"
    assert trajectory.task.extra == {"index": 7, "tags": ["a"]}
    assert list(trajectory.task.prompt) == [{"role": "user", "content": "hi"}]
    [segment] = trajectory.segments
    assert segment.prompt_ids == [104, 105]
    assert segment.response_ids == [121, 101, 115, 0]
    assert segment.response_mask == [1, 1, 1, 1]
    assert all(type(i) is int for i in segment.response_ids)


def test_the_reward_sees_which_tokens_were_sampled_in_each_segment(manager):
    told = {"sampled": [(np.array([1, 0], np.uint8), np.array([-0.5, 0.0])), (np.array([0, 1, 1], np.uint8), None)]}
    run(manager(), data(outputs=(("p", "ab"), ("q", "cde")), trajectory=told))
    first, second = seen[0].segments
    assert (first.response_mask, first.response_logprobs) == ([1, 0], [-0.5, 0.0])
    assert (second.response_mask, second.response_logprobs) == ([0, 1, 1], None)


def test_several_outputs_are_the_segments_of_one_rollout_without_their_padding(manager):
    run(manager(), data(outputs=(("long prompt", "a"), ("p", "answer"))))
    [trajectory] = seen
    assert [len(s.prompt_ids) for s in trajectory.segments] == [11, 1]
    assert [len(s.response_ids) for s in trajectory.segments] == [1, 6]
    assert trajectory.response == "answer"


def test_what_an_agent_loop_tells_goes_in_as_it_is(manager):
    told = {
        "messages": [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}],
        "termination": "max_turns",
        "turns": 3,
        "artifacts": {"db": "/x"},
        "metrics": {"calls": 2},
    }
    result = run(manager(), data(trajectory=told))
    [trajectory] = seen
    assert trajectory.turns == 3 and trajectory.artifacts == {"db": "/x"} and trajectory.metrics == {"calls": 2}
    assert len(trajectory.messages) == 2 and trajectory.response == "a"
    assert result["reward_extra_info"]["termination"] == "max_turns"


def test_a_rollout_that_our_side_spoiled_is_not_scored(manager):
    result = run(manager(), data(trajectory={"termination": "environment_lost"}))
    assert not seen
    assert result["reward_extra_info"]["termination"] == "environment_lost"


@pytest.mark.parametrize(
    ("truth", "termination", "words"),
    [
        ("lost", "judge_failed", "the judge is down"),
        ("bug", "reward_failed", "ZeroDivisionError: oops"),
        ("bad record", "reward_failed", "cannot be scored: no tests"),
        ("wrong type", "reward_failed", "returned float, not a rufus_plugins.Score"),
        ("nan", "reward_failed", "returned the score nan"),
    ],
)
def test_a_scorer_that_fails_gives_a_typed_fault_and_is_heard(manager, capsys, truth, termination, words):
    m = manager()
    result = run(m, data(truth))
    assert result["reward_extra_info"]["termination"] == termination
    assert Termination(termination).fault == "infrastructure"
    assert words in capsys.readouterr().err
    run(m, data(truth))
    assert capsys.readouterr().err == "", "each kind is told once"


def test_a_scorer_that_hangs_meets_its_deadline(manager, monkeypatch):
    monkeypatch.setattr(reward_manager, "TIMEOUT_S", 0.05)
    result = run(manager(), data("slow"))
    assert result["reward_extra_info"]["termination"] == "timeout_infra"


def test_the_deadline_counts_from_admission_not_from_queueing(manager, monkeypatch):
    monkeypatch.setattr(reward_manager, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(reward_manager, "CONCURRENCY", 1)
    m = manager()

    async def unhurried(trajectory):
        await asyncio.sleep(0.2)
        return Score(1.0)

    m.reward = unhurried

    async def five():
        return await asyncio.gather(*(m.run_single(data()) for _ in range(5)))

    assert [r["reward_extra_info"]["termination"] for r in asyncio.run(five())] == ["answered"] * 5


@pytest.mark.parametrize(
    ("reason", "response", "termination"),
    [
        ("length", "yes", "response_length"),
        ("stop", "12345678", "answered"),
        (None, "12345678", "response_length"),
        (None, "yes", "answered"),
    ],
)
def test_a_cut_response_is_told_from_a_finished_one(manager, reason, response, termination):
    extra = {} if reason is None else {"finish_reason": reason}
    result = run(manager(), data(outputs=(("p", response),), **extra))
    assert result["reward_extra_info"]["termination"] == termination
