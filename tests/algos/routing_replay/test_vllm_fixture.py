"""What a real vLLM 0.27.1 (CPU, fp32) answered for the tiny model of seed 0, recorded by tests/vllm_cpu/generate.py."""

import pathlib

import numpy as np
import pytest
import torch

from rufus_plugins.algos.routing_replay.engine_formats import from_vllm
from rufus_plugins.algos.routing_replay.replay import replay
from rufus_plugins.recipes.tiny.model import build

FIXTURE = pathlib.Path(__file__).with_name("vllm_0_27_1.npz")


@pytest.fixture(scope="module")
def model():
    return build(0)[0].eval()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_recorded_routes_are_the_models_own_and_replay_to_vllms_logprobs(model, number):
    recorded = np.load(FIXTURE)
    prompt, response, sampled, answer = (
        recorded[f"{name}{number}"] for name in ("prompt", "response", "logprobs", "routes")
    )
    assert answer.shape == (len(prompt) + len(response) - 1, 4, 2) and answer.dtype == np.uint8
    routes = from_vllm(answer, layers=[1, 2, 3], num_experts=8)  # layer 0 is dense
    ids = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)[None]
    with torch.no_grad(), replay(model, routes) as pass_:
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    assert pass_.match_rate() > 0.98  # other kernels: a tie may flip
    scored = torch.log_softmax(logits[0].double(), -1).gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
    np.testing.assert_allclose(scored.numpy(), sampled, atol=1e-4)
    with torch.no_grad(), replay(model, np.roll(routes, 1, axis=0)) as pass_:
        model(input_ids=ids[:, :-1], use_cache=False)
    assert pass_.match_rate() < 0.95  # a shift by one row would show
