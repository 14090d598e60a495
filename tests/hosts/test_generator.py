"""The batching generator against the plain model: whole sequences through one forward pass are the oracle."""

import random

import numpy as np
import pytest
import torch

from rufus_plugins.errors import ConfigError
from rufus_plugins.hosts.verl.transformers_rollout.generator import Generator, Request
from rufus_plugins.hosts.verl.transformers_rollout.sampling import Sampling
from rufus_plugins.recipes.tiny.model import build


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    model, tokenizer = build(seed=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(10)  # peaked: differences of probabilities would hide in a flat distribution
    return model, tokenizer


def prompts(tokenizer, count, low=3, high=40):
    rng = random.Random(0)
    return [[rng.randrange(len(tokenizer)) for _ in range(rng.randrange(low, high))] for _ in range(count)]


def generate(generator, requests):
    for request in requests:
        generator.submit(request)
    while generator.busy:
        generator.step()
    return requests


def request(prompt, done=None, **fields):
    fields = {"max_tokens": 12, "seed": 1} | fields
    return Request(prompt, Sampling(**fields), done=done or (lambda r: None))


def oracle(model, finished, temperature=1.0):
    """Log-probabilities of the generated tokens and routes of the whole sequence, without cache or batch."""
    chosen = {}
    handles = [
        layer.mlp.experts.register_forward_pre_hook(lambda m, args, i=i: chosen.__setitem__(i, args[1].numpy()))
        for i, layer in enumerate(model.model.layers)
        if hasattr(layer.mlp, "experts")
    ]
    with torch.no_grad():
        logits = model(torch.tensor([finished.ids])).logits[0].double() / temperature
    for handle in handles:
        handle.remove()
    start = len(finished.prompt)
    logprobs = logits.log_softmax(-1)[start - 1 : -1].gather(1, torch.tensor(finished.tokens)[:, None])[:, 0]
    return logprobs, chosen


def test_rows_of_different_lengths_get_the_probabilities_and_routes_of_the_plain_model(tiny):
    model, tokenizer = tiny
    generator = Generator(model, tokenizer, max_rows=64, max_length=128, record_routes=True)
    finished = generate(
        generator,
        [
            request(p, seed=i, max_tokens=random.Random(i).randrange(1, 25))
            for i, p in enumerate(prompts(tokenizer, 12) * 2)
        ],
    )
    for r in finished:
        logprobs, chosen = oracle(model, r)
        assert (logprobs.exp() - torch.tensor(r.logprobs).double().exp()).abs().max() < 1e-6
        assert r.routed == len(r.ids) - 1
        assert sorted(chosen) == [1, 2, 3], "the first layer is dense"
        for layer, ids in chosen.items():
            assert (r.routes[: r.routed, layer] == ids[:-1]).all()
        assert not r.routes[: r.routed, 0].any()


def test_a_full_batch_queues_and_rows_that_leave_make_room(tiny):
    model, tokenizer = tiny
    ps = prompts(tokenizer, 7)
    wide = generate(Generator(model, tokenizer, max_rows=64, max_length=128), [request(p) for p in ps])
    seen = []
    narrow_generator = Generator(model, tokenizer, max_rows=2, max_length=128, max_prefill_tokens=16)
    for r in (narrow := [request(p, max_tokens=3 + i) for i, p in enumerate(ps)]):
        narrow_generator.submit(r)
    while narrow_generator.busy:
        narrow_generator.step()
        seen.append(len(narrow_generator.running))
    assert max(seen) <= 2
    for a, b in zip(wide, narrow, strict=True):
        assert a.tokens[: len(b.tokens)] == b.tokens, "what a row draws does not depend on its neighbours"
    assert narrow_generator.cache.rows == 0


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(tiny):
    model, tokenizer = tiny
    flat, _ = build(seed=1)
    [prompt] = prompts(tokenizer, 1)
    generator = Generator(flat, tokenizer, max_rows=8, max_length=128)
    a, b, c = generate(generator, [request(prompt, seed=s) for s in (5, 5, 6)])
    assert a.tokens == b.tokens != c.tokens


def test_temperature_zero_follows_the_likeliest_token(tiny):
    model, tokenizer = tiny
    [prompt] = prompts(tokenizer, 1)
    [r] = generate(Generator(model, tokenizer, max_rows=8, max_length=128), [request(prompt, temperature=0.0)])
    ids = list(prompt)
    for token in r.tokens:
        with torch.no_grad():
            assert token == model(torch.tensor([ids])).logits[0, -1].argmax().item()
        ids.append(token)


def test_logprobs_are_those_of_the_tempered_distribution(tiny):
    model, tokenizer = tiny
    [prompt] = prompts(tokenizer, 1)
    [r] = generate(Generator(model, tokenizer, max_rows=8, max_length=128), [request(prompt, temperature=1.7)])
    logprobs, _ = oracle(model, r, temperature=1.7)
    assert (logprobs.exp() - torch.tensor(r.logprobs).double().exp()).abs().max() < 1e-6


def test_stop_token_stop_string_and_length_end_a_request(tiny):
    model, tokenizer = tiny
    [prompt] = prompts(tokenizer, 1)
    generator = Generator(model, tokenizer, max_rows=8, max_length=len(prompt) + 10)
    [free] = generate(generator, [request(prompt, max_tokens=8, temperature=0.0)])
    assert (free.finish, len(free.tokens)) == ("length", 8)
    third = free.tokens[2]
    first = free.tokens.index(third)
    [stopped] = generate(generator, [request(prompt, max_tokens=8, temperature=0.0, stop_token_ids=frozenset({third}))])
    assert (stopped.finish, stopped.tokens) == ("stop", free.tokens[: first + 1])
    text = tokenizer.decode(free.tokens[:5])
    [worded] = generate(generator, [request(prompt, max_tokens=8, temperature=0.0, stop_strings=("never", text[-3:]))])
    assert worded.finish == "stop"
    assert text[-3:] in tokenizer.decode(worded.tokens)
    assert text[-3:] not in tokenizer.decode(worded.tokens[:-1])
    [capped] = generate(generator, [request(prompt, max_tokens=50, temperature=0.0)])
    assert (capped.finish, len(capped.tokens)) == ("length", 10), "the context ends it"


def test_abort_returns_what_there_is_and_the_rest_can_be_resumed(tiny):
    model, tokenizer = tiny
    ps = prompts(tokenizer, 3)
    generator = Generator(model, tokenizer, max_rows=2, max_length=128, record_routes=True)
    requests = [request(p, temperature=0.0) for p in ps]
    for r in requests:
        generator.submit(r)
    for _ in range(4):
        generator.step()
    assert generator.abort() == 3
    assert [r.finish for r in requests] == ["abort"] * 3
    assert not generator.busy and generator.cache.rows == 0
    assert len(requests[2].tokens) == 0, "it never ran"
    whole = generate(Generator(model, tokenizer, max_rows=8, max_length=128), [request(p, temperature=0.0) for p in ps])
    for part, full in zip(requests, whole, strict=True):
        [rest] = generate(generator, [request(part.ids, temperature=0.0, max_tokens=12 - len(part.tokens))])
        assert part.tokens + rest.tokens == full.tokens


def test_preemption_goes_on_from_the_tokens_there_are_and_keeps_their_routes(tiny):
    model, tokenizer = tiny
    ps = prompts(tokenizer, 4)
    plain = generate(
        Generator(model, tokenizer, max_rows=8, max_length=128, record_routes=True), [request(p) for p in ps]
    )
    generator = Generator(model, tokenizer, max_rows=8, max_length=128, record_routes=True)
    requests = [request(p) for p in ps]
    for r in requests:
        generator.submit(r)
    for step in range(100):
        if not generator.busy:
            break
        generator.step()
        if step in (2, 5):
            generator.version += 1
            generator.preempt()
    for a, b in zip(plain, requests, strict=True):
        assert a.tokens == b.tokens
        assert a.routed == b.routed
        assert np.array_equal(a.routes[: a.routed], b.routes[: b.routed])
    assert (requests[0].first_version, requests[0].last_version) == (0, 2)


def test_equal_prompts_share_one_prefill(tiny):
    model, tokenizer = tiny
    [prompt] = prompts(tokenizer, 1)
    generator = Generator(model, tokenizer, max_rows=64, max_length=128)
    batches = []
    forward = model.forward
    model.forward = lambda **kwargs: batches.append(kwargs["input_ids"].shape) or forward(**kwargs)
    try:
        generate(generator, [request(prompt, seed=s, max_tokens=2) for s in range(8)])
    finally:
        del model.forward
    assert batches == [(1, len(prompt)), (8, 1)]


def test_logits_beyond_the_tokenizer_are_never_drawn(tiny):
    model, tokenizer = tiny

    class Short:
        def __len__(self):
            return 10

        decode = tokenizer.decode

    generator = Generator(model, Short(), max_rows=8, max_length=128)
    finished = generate(generator, [request([1, 2, 3], seed=s, temperature=5.0) for s in range(8)])
    assert max(token for r in finished for token in r.tokens) < 10


def test_a_prompt_that_fills_the_context_is_refused(tiny):
    model, tokenizer = tiny
    with pytest.raises(ConfigError, match="no room"):
        Generator(model, tokenizer, max_rows=8, max_length=4).submit(request([1, 2, 3, 4]))


def test_a_model_with_a_sliding_window_is_refused(tiny):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, use_sliding_window=True, sliding_window=8, max_window_layers=1,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="full attention only"):
        Generator(Qwen2ForCausalLM(config), tiny[1], max_rows=8, max_length=64)


def test_a_dense_model_generates_but_cannot_record_routes(tiny):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    _, tokenizer = tiny
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2, head_dim=8,
            num_attention_heads=4, num_key_value_heads=2,
        )
    )  # fmt: skip
    for r in generate(
        Generator(model, tokenizer, max_rows=8, max_length=64), [request(p) for p in prompts(tokenizer, 3)]
    ):
        logprobs, _ = oracle(_NoExperts(model), r)
        assert (logprobs.exp() - torch.tensor(r.logprobs).double().exp()).abs().max() < 1e-6
    with pytest.raises(ConfigError, match="no model family .qwen3."):
        Generator(model, tokenizer, max_rows=8, max_length=64, record_routes=True)


class _NoExperts:
    def __init__(self, model):
        self.forward, self.model = model, type("M", (), {"layers": []})

    def __call__(self, ids):
        return self.forward(ids)
