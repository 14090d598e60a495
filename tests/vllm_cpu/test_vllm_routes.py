"""The real vLLM on CPU in bf16 against an fp32 trainer: its routes, in its own format, replayed.

`make vllm` runs it in an environment of its own.
"""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from rufus_plugins.algos.routing_replay.engine_formats import from_vllm
from rufus_plugins.algos.routing_replay.replay import replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
MOE_LAYERS, DEPTH, TOP_K, EXPERTS = [1, 2, 3, 4, 5, 6], 7, 4, 32  # trained_tiny.py
HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def rollout(trained, tmp_path_factory):
    found = tmp_path_factory.mktemp("vllm") / "rollout.npz"
    subprocess.run([sys.executable, HERE / "generate.py", trained, "bfloat16", found], check=True, timeout=900)
    return trained, dict(np.load(found))


def sequences(found):
    for number in range(len(found) // 4):
        yield tuple(found[f"{name}{number}"] for name in ("prompt", "response", "logprobs", "routes"))


def logprobs(model, prompt, response, routes=None):
    ids = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)[None]
    with torch.no_grad():
        if routes is None:
            logits, match = model(input_ids=ids, use_cache=False).logits, None
        else:
            last = np.full((1, *routes.shape[1:]), 255, routes.dtype)  # the last token was never routed
            with replay(model, np.concatenate([routes, last])) as pass_:
                logits = model(input_ids=ids, use_cache=False).logits
            match = pass_.match_rate()
    scored = torch.log_softmax(logits[0, :-1].double(), -1).gather(1, ids[0, 1:, None])[:, 0]
    return scored[len(prompt) - 1 :].numpy(), match


def test_vllm_answers_one_row_per_input_token_and_every_decoder_layer(rollout):
    for prompt, response, _, routes in sequences(rollout[1]):
        assert routes.shape == (len(prompt) + len(response) - 1, DEPTH, TOP_K)
        assert routes.dtype == np.uint8 and not routes[:, 0].any()  # layer 0 is dense
        assert (np.diff(np.sort(routes[:, 1:], axis=-1)) > 0).all() and routes.max() < EXPERTS


def test_replay_brings_an_fp32_trainer_closer_to_a_bf16_vllm(rollout):
    from transformers import AutoModelForCausalLM

    path, found = rollout
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    native, replayed, kl, matches = [], [], [[], []], []
    for prompt, response, sampled, routes in sequences(found):
        alone, _ = logprobs(model, prompt, response)
        with_routes, match = logprobs(model, prompt, response, from_vllm(routes, MOE_LAYERS, EXPERTS))
        native.append(np.abs(alone - sampled))
        replayed.append(np.abs(with_routes - sampled))
        for kept, trainer in zip(kl, (alone, with_routes), strict=True):
            kept.append(np.exp(trainer - sampled) - 1 - (trainer - sampled))
        matches.append(match)
    native, replayed = np.concatenate(native).mean(), np.concatenate(replayed).mean()
    k3 = [np.concatenate(kept).mean() for kept in kl]
    print(f"\nmatch rate {np.mean(matches):.4f}, mean |dlogp| {native:.5f} -> {replayed:.5f}, k3 {k3}")
    assert np.mean(matches) < 0.995  # else there is nothing to replay
    assert replayed <= 0.6 * native
    assert k3[1] < k3[0]
