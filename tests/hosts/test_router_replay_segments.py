"""Routes of whole rollouts (turns, truncation, compaction, abort and resume), recomputed from the token ids alone."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rufus_plugins import StepResult, Task, Termination
from rufus_plugins.rollouts.episode import Episode, Limits
from rufus_plugins.rollouts.rules import EpisodeRules

TASK = Task("1", "chat", ({"role": "user", "content": "What does bread cost?"},), "5")
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


class Talker:
    """A user who never stops asking."""

    tools = ()

    async def start(self, task):
        return task.prompt

    async def step(self, message):
        return StepResult([{"role": "user", "content": "And <|user|> then?"}])

    async def finish(self):
        return {}

    async def close(self):
        pass


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save(tmp_path_factory.mktemp("routes") / "model", experts=8)


def save(path, experts):
    from transformers import Glm4MoeForCausalLM

    from rufus_plugins.recipes.tiny import model, tokenizer

    words = tokenizer.build()
    config = model.config(words)
    config.n_routed_experts = experts
    torch.manual_seed(0)
    made = Glm4MoeForCausalLM(config)
    for parameter in made.parameters():
        if parameter.dim() >= 2:  # routers whose choices are far apart: few near ties
            parameter.data.copy_(0.1 * torch.randn(parameter.shape))
    made.save_pretrained(path)
    words.save_pretrained(path)
    return path


class Engine:
    """The rollout server behind verl's own client, the one that resumes aborted requests; without Ray in between."""

    def __init__(self, path):
        from verl.workers.config import HFModelConfig, RolloutConfig
        from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

        from rufus_plugins.hosts.verl.transformers_rollout.server import TransformersServer

        self.model_config = HFModelConfig(path=str(path))
        self.server = TransformersServer(
            RolloutConfig(
                name="transformers", tensor_model_parallel_size=1, prompt_length=600, response_length=600,
                dtype="float32", load_format="auto", enable_rollout_routing_replay=True,
            ),
            self.model_config,
            0,
        )  # fmt: skip

        class Client(FullyAsyncLLMServerClient):
            async def _acquire_server(self, request_id, **extra):
                return "0", SimpleNamespace(generate=SimpleNamespace(remote=handle.generate))

            def _release_server(self, server_id, request_id=None):
                pass

        handle = self.server
        self.client = object.__new__(Client)
        rollout = SimpleNamespace(name="transformers", response_length=600)
        self.client.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))

    def episode(self, limits, stop=("k",), **rules):
        """Turns end at a letter: a random model seldom ends one itself."""
        import verl.experimental.agent_loop  # noqa: F401  verl's loop first: it imports ours

        from rufus_plugins.hosts.verl.agent_loop import EnginePolicy
        from rufus_plugins.hosts.verl.chat_tokens import ChatTokens

        ends = frozenset(self.server.end_ids)
        policy = EnginePolicy(self.client, {**SAMPLING, "stop": list(stop)}, "r", ends)
        chat = ChatTokens(self.model_config.tokenizer, "glm4_moe", end_ids=ends)
        return Episode(TASK, Talker(), policy, chat, EpisodeRules(**rules), limits).run()


def recomputed(model, ids):
    """Without any of our code: what the experts of each layer are given, `[len(ids) - 1, moe_layers, top_k]`."""
    seen = []
    hooks = [
        layer.mlp.experts.register_forward_pre_hook(lambda module, args: seen.append(args[1].numpy()))
        for layer in model.model.layers
        if hasattr(layer.mlp, "experts")
    ]
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return np.stack(seen, axis=1)[:-1]


def plain(path, factor=1.0):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.weight.data.mul_(factor)
    return model


def agreement(routes, expected):
    """Share of equal rows of a layer; the choice is a set, its order the kernel's. A near tie may flip."""
    return (np.sort(routes, -1) == np.sort(expected, -1)).all(-1).mean()


def check(segment, model):
    ids = [*segment.prompt_ids, *segment.response_ids]
    routes, expected = segment.routed_experts, recomputed(model, ids)
    assert routes.shape == (len(ids) - 1, 4, 2) and not routes[:, 0][known(routes)].any()  # layer 0 is dense
    assert routes.dtype == (np.uint8 if model.config.n_routed_experts <= 256 else np.uint16)
    # what came after the last sampled token was never routed in the rollout: tokens of the last message
    sampled = max(i for i, trained in enumerate(segment.response_mask) if trained) + len(segment.prompt_ids)
    assert known(routes)[:sampled].all() and not known(routes)[sampled:].any()
    assert agreement(routes[:sampled, 1:], expected[:sampled]) > 0.99
    assert agreement(routes[1:sampled, 1:], expected[: sampled - 1]) < 0.5  # one row off would show
    return ids


def known(routes):
    return (routes < np.iinfo(routes.dtype).max).all((1, 2))


@pytest.mark.parametrize("experts", [8, 300])  # ids in one byte and in two
def test_turns_until_the_response_is_full_keep_the_routes_of_every_token(tmp_path, experts):
    model = save(tmp_path / "model", experts)
    trajectory = asyncio.run(Engine(model).episode(Limits(600, 260))).trajectory
    assert trajectory.termination in (Termination.RESPONSE_LENGTH, Termination.CONTEXT_LENGTH)
    assert trajectory.turns > 3
    [segment] = trajectory.segments
    check(segment, plain(model))


def test_each_compacted_context_has_the_routes_of_its_own_tokens(model_dir):
    compaction = {"by": "rule", "at": 0.5, "keep_chars": 120}
    episode = Engine(model_dir).episode(Limits(500, 160), compaction=compaction, max_segments=3)
    trajectory = asyncio.run(episode).trajectory
    assert len(trajectory.segments) == 3
    model = plain(model_dir)
    for segment in trajectory.segments:
        check(segment, model)


def test_an_aborted_and_resumed_turn_keeps_the_order_of_its_routes(model_dir, monkeypatch):
    engine = Engine(model_dir)
    brief = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda s, *a: brief(min(s, 0.01), *a))  # verl waits 1 s before it resumes
    cuts = []

    async def interrupted():
        running = asyncio.create_task(engine.episode(Limits(600, 260)))
        while not running.done():
            done = engine.server.generator.generated
            while engine.server.generator.generated < done + 9 and not running.done():
                await asyncio.sleep(0.001)
            cuts.append((await engine.server.abort_all_requests())["aborted_count"])
            await engine.server.resume_generation()
        return await running

    trajectory = asyncio.run(interrupted()).trajectory
    assert sum(cuts) > 3, "aborted again and again"
    model = plain(model_dir)
    for segment in trajectory.segments:
        check(segment, model)


def test_tokens_sampled_under_old_weights_keep_the_routes_of_the_old_weights(model_dir, monkeypatch):
    brief = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda s, *a: brief(min(s, 0.01), *a))
    engine = Engine(model_dir)
    old, new = plain(model_dir), plain(model_dir, factor=-1.0)
    prompt = list(range(5, 25))
    first = []

    async def main():
        asked = {**SAMPLING, "max_tokens": 60, "ignore_eos": True}
        running = asyncio.create_task(engine.client.generate("r", prompt_ids=prompt, sampling_params=asked))
        while engine.server.generator.generated < 20:
            await asyncio.sleep(0.001)
        await engine.server.abort_all_requests()
        first.append(engine.server.generator.generated)
        await engine.server.start_weight_update()
        await engine.server.load_weights([(name, value) for name, value in new.state_dict().items()])
        await engine.server.finish_weight_update(global_steps=1)
        await engine.server.resume_generation()
        return await running

    output = asyncio.run(main())
    ids = prompt + output.token_ids
    routes, cut = output.routed_experts[:, 1:], len(prompt) + first[0] - 1
    assert len(output.token_ids) == 60 and len(routes) == len(ids) - 1
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (0, 1)
    assert agreement(routes[:cut], recomputed(old, ids)[:cut]) > 0.99
    assert agreement(routes[cut:], recomputed(new, ids)[cut:]) > 0.99
    assert agreement(routes[cut:], recomputed(old, ids)[cut:]) < 0.5
