"""The server class itself, without Ray around it: what verl's trainer does with it between and during requests."""

import asyncio

import pytest
import torch

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.hosts.verl.transformers_rollout.server import TransformersServer
from rufus_plugins.recipes.tiny.model import build, save
from rufus_plugins.types import Termination


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("server") / "model"
    save(path, seed=0)
    return path


@pytest.fixture
def server(model_dir):
    from verl.workers.config import HFModelConfig, RolloutConfig

    def make(**fields):
        fields = {"prompt_length": 32, "response_length": 24, "dtype": "float32", "load_format": "auto"} | fields
        config = RolloutConfig(name="transformers", tensor_model_parallel_size=1, **fields)
        return TransformersServer(config, HFModelConfig(path=str(model_dir)), 0)

    return make


def ask(server, prompt, **params):
    return server.generate(prompt, {"temperature": 1.0, "logprobs": True} | params, request_id="r")


PROMPTS = [[5, 6, 7, number] for number in range(10, 16)]


def test_many_requests_at_once_answer_with_tokens_logprobs_and_version(server):
    s = server(enable_rollout_routing_replay=True)

    async def main():
        await s.set_global_steps(3)
        return await asyncio.gather(*(ask(s, p) for p in PROMPTS * 4))

    for p, output in zip(PROMPTS * 4, asyncio.run(main()), strict=True):
        assert 1 <= len(output.token_ids) <= 24
        assert len(output.log_probs) == len(output.token_ids)
        assert output.routed_experts.shape == (len(p) + len(output.token_ids) - 1, 4, 2)
        assert output.stop_reason == "completed"
        assert output.extra_fields["global_steps"] == output.extra_fields["min_global_steps"] == 3


def test_a_groups_samples_are_the_same_in_every_run_and_order(server):
    async def main(s, order):
        return await asyncio.gather(*(ask(s, p) for p in order))

    def groups(order):
        found = {}
        for p, output in zip(order, asyncio.run(main(server(), order)), strict=True):
            found.setdefault(tuple(p), []).append(tuple(output.token_ids))
        return {p: sorted(samples) for p, samples in found.items()}

    order = PROMPTS * 3
    first, second = groups(order), groups(order[::-1])
    assert first == second
    assert all(len(set(samples)) == 3 for samples in first.values()), "and they differ within the group"


def test_abort_ends_requests_parks_new_ones_and_resume_lets_them_in(server):
    s = server(response_length=400, max_model_len=2000)

    async def main():
        running = [asyncio.create_task(ask(s, p, ignore_eos=True)) for p in PROMPTS]
        while s.generator.generated < 60:
            await asyncio.sleep(0.005)
        aborted = await s.abort_all_requests()
        parts = await asyncio.gather(*running)
        parked = asyncio.create_task(ask(s, PROMPTS[0], max_tokens=2))
        await asyncio.sleep(0.1)
        assert not parked.done()
        await s.resume_generation()
        return aborted, parts, await parked

    aborted, parts, parked = asyncio.run(main())
    assert aborted == {"aborted_count": 6}
    assert all(part.stop_reason == "aborted" and 0 < len(part.token_ids) < 400 for part in parts)
    assert parked.stop_reason == "completed" and len(parked.token_ids) == 2


def test_a_rejecting_gate_sends_requests_back_at_once(server):
    s = server()

    async def main():
        await s.abort_all_requests(reject_request=True)
        return await ask(s, PROMPTS[0])

    output = asyncio.run(main())
    assert (output.stop_reason, output.token_ids) == ("aborted", [])


def test_requests_wait_while_asleep_and_go_on_with_the_new_weights(server):
    from verl.workers.engine.fsdp.utils import unfuse_moe_params

    s = server(response_length=60, max_model_len=200)
    other, _ = build(seed=9)
    weights = list(unfuse_moe_params(iter(other.state_dict().items()), "glm4_moe"))

    async def main():
        running = asyncio.create_task(ask(s, PROMPTS[0], ignore_eos=True))
        while s.generator.generated < 5:
            await asyncio.sleep(0.001)
        await s.sleep()
        before = s.generator.generated
        assert not s.generator.cache.keys, "asleep, no KV memory is held"
        await s.wake_up(tags=["weights"])
        await s.start_weight_update()
        await s.load_weights(weights[:20])
        await s.load_weights(weights[20:])
        await s.finish_weight_update(global_steps=7)
        await asyncio.sleep(0.05)
        assert s.generator.generated == before, "still asleep"
        await s.wake_up(tags=["kv_cache"])
        return before, await running

    before, output = asyncio.run(main())
    assert 0 < before < 60 and len(output.token_ids) == 60
    assert output.extra_fields["min_global_steps"] == 0 and output.extra_fields["max_global_steps"] == 7
    ids = torch.tensor([PROMPTS[0] + output.token_ids])
    with torch.no_grad():
        logprobs = (
            other(ids).logits[0, len(PROMPTS[0]) - 1 : -1].log_softmax(-1).gather(1, ids[0, len(PROMPTS[0]) :, None])
        )
    difference = (logprobs[:, 0].exp() - torch.tensor(output.log_probs).exp()).abs()
    assert difference[before:].max() < 1e-6, "tokens after the update are the new model's"
    assert difference[:before].max() > 1e-6, "tokens before it are the old one's"


def test_an_incomplete_weight_update_is_an_error(server):
    s = server()

    async def main():
        await s.start_weight_update()
        await s.load_weights([("lm_head.weight", torch.zeros_like(s.generator.model.lm_head.weight))])
        await s.finish_weight_update(1)

    with pytest.raises(ValueError, match="stale"):
        asyncio.run(main())


def test_a_step_that_fails_fails_its_requests_and_the_server_lives_on(server):
    s = server()
    step = s.generator.step

    def broken():
        s.generator.step = step
        raise MemoryError("no room")

    s.generator.step = broken

    async def main():
        with pytest.raises(InfrastructureError, match="MemoryError: no room") as caught:
            await ask(s, PROMPTS[0])
        return caught.value, await ask(s, PROMPTS[1])

    error, output = asyncio.run(main())
    assert error.termination is Termination.ENGINE_FAILED
    assert output.stop_reason == "completed"


def test_what_the_server_cannot_do_is_refused_by_name(server):
    with pytest.raises(ConfigError, match="rollout.dtype='float16'"):
        server(dtype="float16")
    s = server()
    with pytest.raises(ConfigError, match="text only"):
        asyncio.run(s.generate([1], {}, "r", image_data=[object()]))
    with pytest.raises(ConfigError, match="no room"):
        asyncio.run(ask(s, list(range(56))))
    with pytest.raises(ConfigError, match="repetition penalty"):
        asyncio.run(ask(s, [1], repetition_penalty=2.0))


def test_all_tokens_that_end_a_turn_stop_a_request(server):
    s = server()
    tokenizer = s.model_config.tokenizer
    names = ("<|endoftext|>", "<|user|>", "<|observation|>")
    assert s.end_ids == {tokenizer.convert_tokens_to_ids(name) for name in names}


def test_bf16_runs(server):
    s = server(dtype="bfloat16", enable_rollout_routing_replay=True)
    output = asyncio.run(ask(s, PROMPTS[0]))
    assert s.generator.model.dtype is torch.bfloat16 and len(output.token_ids) > 0
