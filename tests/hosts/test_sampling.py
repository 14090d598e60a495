import math

import pytest
import torch

from rufus_plugins.errors import ConfigError
from rufus_plugins.hosts.verl.transformers_rollout.sampling import Sampling, draw

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.10]]))


def rule(**fields):
    return Sampling(max_tokens=8, **fields)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.499, 0), (0.501, 1), (0.749, 1), (0.76, 2), (0.999, 3)])
def test_the_uniform_number_picks_the_token_by_the_distribution_function(uniform, token):
    tokens, logprobs = draw(LOGITS, [rule()], [uniform])
    assert tokens.item() == token
    assert logprobs.item() == pytest.approx(LOGITS[0, token].item(), abs=1e-6)


def test_the_logprob_is_that_of_the_distribution_after_temperature():
    # p ** (1 / 0.5), normalised: 0.25, 0.0625, 0.0225, 0.01 -> sum 0.345
    tokens, logprobs = draw(LOGITS, [rule(temperature=0.5)], [0.99])
    assert tokens.item() == 3
    assert logprobs.item() == pytest.approx(math.log(0.01 / 0.345), abs=1e-5)


def test_top_k_renormalises_over_the_k_likeliest():
    tokens, logprobs = draw(LOGITS, [rule(top_k=2)], [0.99])
    assert tokens.item() == 1
    assert logprobs.item() == pytest.approx(math.log(0.25 / 0.75), abs=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    tokens, logprobs = draw(LOGITS, [rule(top_p=0.6)], [0.99])  # 0.5 < 0.6 <= 0.75: two tokens
    assert tokens.item() == 1
    assert logprobs.item() == pytest.approx(math.log(0.25 / 0.75), abs=1e-6)


def test_a_tiny_top_p_still_leaves_the_likeliest_token():
    tokens, logprobs = draw(LOGITS, [rule(top_p=1e-6)], [0.99])
    assert (tokens.item(), logprobs.item()) == (0, pytest.approx(0.0, abs=1e-6))


def test_greedy_takes_the_likeliest_and_reports_the_models_own_logprob():
    tokens, logprobs = draw(LOGITS, [rule(temperature=0.0, top_p=0.1)], [0.99])
    assert tokens.item() == 0
    assert logprobs.item() == pytest.approx(math.log(0.5), abs=1e-6)


def test_rows_follow_their_own_rules():
    rules = [rule(), rule(temperature=0.0), rule(top_k=1)]
    tokens, _ = draw(LOGITS.repeat(3, 1), rules, [0.999, 0.999, 0.999])
    assert tokens.tolist() == [3, 0, 0]


def test_a_token_without_probability_is_never_drawn():
    logits = torch.tensor([[0.0, float("-inf"), 0.0, float("-inf")]])
    tokens, _ = draw(logits.repeat(200, 1), [rule()] * 200, [i / 200 for i in range(200)])
    assert set(tokens.tolist()) == {0, 2}


def test_frequencies_match_the_distribution():
    uniforms = torch.rand(20000, generator=torch.Generator().manual_seed(0)).tolist()
    tokens, _ = draw(LOGITS.repeat(20000, 1), [rule()] * 20000, uniforms)
    share = torch.bincount(tokens, minlength=4) / 20000
    assert torch.allclose(share, torch.tensor([0.5, 0.25, 0.15, 0.10]), atol=0.015)


def test_verls_parameters_are_understood():
    params = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.0, "logprobs": True,
        "stop": ["\n"], "stop_token_ids": [7],
    }  # fmt: skip
    sampling = Sampling.of(params, max_tokens=4, end_ids=frozenset({9}), seed=3)
    assert sampling == Sampling(4, 0.7, 0.9, 5, frozenset({7, 9}), ("\n",), 3)
    assert Sampling.of({"ignore_eos": True}, max_tokens=4, end_ids=frozenset({9}), seed=3).stop_token_ids == frozenset()
    assert Sampling.of({"stop": "end", "seed": 8}, max_tokens=4, end_ids=frozenset(), seed=3).seed == 8


@pytest.mark.parametrize("params", [{"repetition_penalty": 1.2}, {"min_p": 0.1}, {"top_p": 0.0}, {"temperature": -1}])
def test_a_parameter_that_would_be_ignored_is_refused(params):
    with pytest.raises(ConfigError):
        Sampling.of(params, max_tokens=4, end_ids=frozenset(), seed=0)
