"""The transformers rollout answers the routes that a plain forward pass over the same tokens chooses."""

import numpy as np
import pytest
import torch

from rufus_plugins.hosts.verl.transformers_rollout.generator import Generator, Request
from rufus_plugins.hosts.verl.transformers_rollout.sampling import Sampling
from rufus_plugins.recipes.tiny.model import build


@pytest.fixture(scope="module")
def tiny():
    model, tokenizer = build(0)
    return model.eval(), tokenizer


def choices(model, ids):
    """Recomputed without any of our code: what the router of each MoE layer gives its experts."""
    seen = {}
    hooks = [
        layer.mlp.experts.register_forward_pre_hook(lambda m, args, i=i: seen.__setitem__(i, args[1]))
        for i, layer in enumerate(model.model.layers)
        if hasattr(layer.mlp, "experts")
    ]
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def generate(model, tokenizer, prompts, tokens, interrupt=None):
    requests = []
    generator = Generator(model, tokenizer, max_rows=4, max_length=256, record_routes=True)
    for seed, prompt in enumerate(prompts):
        rule = Sampling.of({"temperature": 1.0}, max_tokens=tokens, end_ids=frozenset(), seed=seed)
        requests.append(Request(prompt, rule, done=lambda request: None))
        generator.submit(requests[-1])
    steps = 0
    while generator.busy:
        generator.step()
        steps += 1
        if steps == interrupt:
            generator.preempt()  # weights change here: the rows go on from what they have
    return requests


@pytest.mark.parametrize("interrupt", [None, 5])
def test_every_token_but_the_last_has_the_experts_it_went_to(tiny, interrupt):
    model, tokenizer = tiny
    prompts = [list(range(5, 5 + n)) for n in (9, 4, 13)]
    for request in generate(model, tokenizer, prompts, tokens=12, interrupt=interrupt):
        routes = request.routes[: request.routed]
        expected = choices(model, request.ids[:-1])
        assert routes.shape == (len(request.ids) - 1, 4, 2) and not routes[:, 0].any()  # layer 0 is dense
        for layer, index in expected.items():
            assert (routes[:, layer] == index.numpy()).mean() > 0.98  # batch shapes round differently: ties may flip


def test_rows_of_tokens_routed_before_an_interruption_are_not_replaced(tiny):
    model, tokenizer = tiny
    generator = Generator(model, tokenizer, max_rows=1, max_length=256, record_routes=True)
    rule = Sampling.of({"temperature": 1.0}, max_tokens=10, end_ids=frozenset(), seed=0)
    request = Request(list(range(5, 12)), rule, done=lambda request: None)
    generator.submit(request)
    for _ in range(5):
        generator.step()
    before = request.routes[: request.routed].copy()
    generator.preempt()
    gate = model.model.layers[1].mlp.gate
    kept = gate.weight.data.clone()
    try:
        gate.weight.data.neg_()  # other weights route otherwise
        while generator.busy:
            generator.step()
    finally:
        gate.weight.data.copy_(kept)
    np.testing.assert_array_equal(request.routes[: len(before)], before)
    after = choices(model, request.ids[:-1])[1].numpy()[len(before) :]
    assert (request.routes[len(before) : request.routed, 1] != after).any()
