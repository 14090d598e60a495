"""Our agent loop on the real rollout server, without Ray around it: outputs, alignment, retries, stock tools."""

import asyncio
import importlib.metadata
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module

from rufus_plugins import ConfigError, InfrastructureError, StepResult, Termination, hookimpl
from rufus_plugins.plugins import load
from rufus_plugins.types import CallStatus

PLUGIN = Path(__file__).parent / "lookup_plugin"


@dataclass
class Chatter:
    """A user who goes on twice."""

    reply: str = "And <|user|> then?"
    fails: int = 0
    """Episodes of this process that lose their sandbox first."""

    tools = ()
    started = 0

    async def start(self, task):
        Chatter.started += 1
        self.turns, self.lost = 0, Chatter.started <= self.fails
        return task.prompt

    async def step(self, message):
        self.turns += 1
        if self.lost:
            raise InfrastructureError("the machine is gone", Termination.SANDBOX_LOST)
        if self.turns == 3:
            return StepResult(done=True, termination=Termination.ANSWERED)
        return StepResult([{"role": "user", "content": self.reply}])

    async def finish(self):
        return {"turns": self.turns}

    async def close(self):
        pass


class Environments:
    @staticmethod
    @hookimpl
    def register_environments():
        return {"chatter": Chatter}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    from rufus_plugins.recipes.tiny.model import build

    path = tmp_path_factory.mktemp("loop") / "model"
    model, tokenizer = build(seed=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(5)  # flat probabilities would hide differences
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def loop(model_dir, monkeypatch):
    """loop(*overrides, client=..., tools=...) -> (our agent loop as verl's worker makes it, its client)."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.config import HFModelConfig, RolloutConfig

    from rufus_plugins import selection
    from rufus_plugins.hosts.verl.agent_loop import EnvironmentAgentLoop
    from rufus_plugins.hosts.verl.transformers_rollout.server import TransformersServer
    from rufus_plugins.recipes import config as options

    stock = importlib.metadata.EntryPoint.load
    monkeypatch.setattr(
        importlib.metadata.EntryPoint, "load", lambda self: Environments if self.value == "x" else stock(self)
    )
    mine = importlib.metadata.EntryPoint("chatter", "x", "rufus")
    found = load([*importlib.metadata.entry_points(group="rufus"), mine])
    monkeypatch.setattr(selection, "registry", lambda: found)
    options.publish(found)
    Chatter.started = 0

    def make(*overrides, client=None, tools=(), prompt=340, response=200):
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose(
                "rufus",
                [
                    "scale=tiny",
                    f"actor_rollout_ref.model.path={model_dir}",
                    f"data.max_prompt_length={prompt}",
                    f"data.max_response_length={response}",
                    "actor_rollout_ref.rollout.enable_rollout_routing_replay=true",
                    *overrides,
                ],
            )
        model_config = HFModelConfig(path=str(model_dir))
        if client is None:
            server = TransformersServer(
                RolloutConfig(
                    name="transformers", tensor_model_parallel_size=1, prompt_length=prompt, response_length=response,
                    dtype="float32", load_format="auto", enable_rollout_routing_replay=True,
                ),
                model_config,
                0,
            )  # fmt: skip
            client = Client(server)
        agent = EnvironmentAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=client,
            tokenizer=model_config.tokenizer,
            processor=None,
            hf_model_type="glm4_moe",
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap(list(tools)),
        )
        return agent, client

    return make


class Client:
    """verl's client without the load balancer."""

    def __init__(self, server):
        self.server, self.asked = server, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        self.asked.append((request_id, list(prompt_ids), sampling_params))
        output = await self.server.generate(prompt_ids, sampling_params, request_id, **kwargs)
        output.extra_fields.setdefault("min_global_steps", output.extra_fields.get("global_steps"))
        output.extra_fields.setdefault("max_global_steps", output.extra_fields.get("global_steps"))
        return output


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
RECORD = {
    "raw_prompt": [{"role": "user", "content": "What does bread cost?"}],
    "data_source": "prices",
    "reward_model": {"ground_truth": "5"},
    "extra_info": {"id": "bread"},
    "uid": "u1",
    "session_id": 0,
    "global_steps": 7,
}


def run(agent, **more):
    async def go():
        agent.loop = asyncio.get_running_loop()
        return await agent.run(dict(SAMPLING), **(RECORD | more))

    return asyncio.run(go())


@pytest.mark.parametrize("seed", [0, 1])
def test_logprobs_and_routes_over_turns_are_those_of_a_plain_forward_pass(loop, model_dir, seed):
    """Computed anew from the whole segment, by the model alone."""
    from transformers import AutoModelForCausalLM

    agent, client = loop("environment=chatter", "+rufus.environment.max_turn_tokens=40", response=160)
    [output] = run(agent, raw_prompt=[{"role": "user", "content": f"What does bread cost? {seed}"}])
    ids = [*output.prompt_ids, *output.response_ids]
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    chosen = {}
    for i, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts.register_forward_pre_hook(lambda m, args, i=i: chosen.__setitem__(i, args[1]))
    with torch.no_grad():
        logprobs = model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
    expected = logprobs[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0][len(output.prompt_ids) - 1 :]
    mask = torch.tensor(output.response_mask).bool()
    given = torch.tensor(output.response_logprobs)
    torch.testing.assert_close(given[mask], expected[mask], atol=2e-5, rtol=0)
    assert (given[~mask] == 0).all()
    routes = output.routed_experts
    assert routes.shape == (len(ids) - 1, 4, 2) and routes.dtype == np.int16 and not routes[:, 0].any()
    for layer, index in chosen.items():
        assert (routes[:, layer] == index.numpy()[: len(routes)]).mean() > 0.98
    assert (
        sum(output.response_mask)
        == sum(len(p) > 0 for p in []) + output.extra_fields["rollout_metrics"]["tokens_sampled"]
    )
    assert len({request for request, _, _ in client.asked}) == 1, "one server keeps the rollout's cache"


def test_each_prompt_extends_the_last_one_and_what_was_sampled_stands_in_it(loop):
    agent, client = loop("environment=chatter", "+rufus.environment.max_turn_tokens=300", prompt=340, response=800)
    outputs = run(agent)
    prompts = [prompt for _, prompt, _ in client.asked]
    for before, after in zip(prompts, prompts[1:], strict=False):
        assert after[: len(before)] == before and len(after) > len(before)
    whole = [*outputs[-1].prompt_ids, *outputs[-1].response_ids]
    assert whole[: len(prompts[-1])] == prompts[-1]


def test_the_response_budget_of_the_dispatch_bounds_the_segment(loop):
    agent, client = loop("environment=chatter")
    [output] = run(agent, response_budget=24)
    assert len(output.response_ids) <= 24
    assert all(params["max_tokens"] <= 24 for _, _, params in client.asked)


class Brief:
    """Says a word and ends its turn."""

    requests: set

    def __init__(self, tokenizer):
        self.ids, self.requests = tokenizer.encode("ok<|endoftext|>", add_special_tokens=False), set()

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        from verl.workers.rollout.replica import TokenOutput

        self.requests.add(request_id)
        return TokenOutput(token_ids=list(self.ids), log_probs=[-1.0] * len(self.ids), extra_fields={})


@pytest.mark.parametrize(
    ("fails", "retries", "episodes", "ending"),
    [(1, 1, 2, "answered"), (1, 0, 1, "sandbox_lost"), (9, 2, 3, "sandbox_lost")],
)
def test_a_lost_rollout_starts_anew_as_often_as_configured(loop, model_dir, capsys, fails, retries, episodes, ending):
    from transformers import AutoTokenizer

    client = Brief(AutoTokenizer.from_pretrained(model_dir))
    overrides = [f"rufus.environment.fails={fails}", f"+rufus.environment.retries={retries}"]
    agent, _ = loop("environment=chatter", *overrides, client=client)
    [output] = run(agent)
    assert Chatter.started == episodes == len(client.requests), "a fresh environment and a fresh request each time"
    assert output.extra_fields["termination"] == ending
    assert output.extra_fields["rollout_metrics"]["retries"] == episodes - 1


class Down:
    """An engine that is gone."""

    calls = 0

    async def generate(self, *args, **kwargs):
        Down.calls += 1
        raise ConnectionError("actor died")


def test_an_engine_that_is_gone_gives_one_end_token_with_every_column_and_no_mask(loop, capsys):
    Down.calls = 0
    agent, _ = loop("environment=chatter", "+rufus.environment.retries=2", client=Down())
    [output] = run(agent)
    assert Down.calls == 3
    assert output.extra_fields["termination"] == "engine_failed"
    assert output.extra_fields["rollout_metrics"]["retries"] == 2
    assert len(output.response_ids) == 1 and output.response_mask == [0] and output.response_logprobs == [0.0]
    assert output.routed_experts.shape == (len(output.prompt_ids), 4, 2)
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (7, 7)
    assert "actor died" in capsys.readouterr().err
    assert output.as_dict()["routed_experts"].dtype == torch.int16


class Played:
    """The lookup plugin's script as verl's client."""

    def __init__(self, script):
        self.script = script

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        from verl.workers.rollout.replica import TokenOutput

        sampled = await self.script.generate(prompt_ids, sampling_params["max_tokens"])
        rows = len(prompt_ids) + len(sampled.ids) - 1
        return TokenOutput(
            token_ids=list(sampled.ids),
            log_probs=[-0.5] * len(sampled.ids),
            routed_experts=np.ones((rows, 4, 2), np.uint8),
            stop_reason="completed",
            extra_fields={"global_steps": 3, "min_global_steps": 3, "max_global_steps": 4},
        )


@pytest.fixture
def lookup(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGIN))
    import lookup_plugin

    yield lookup_plugin
    sys.modules.pop("lookup_plugin", None)


FUNCTIONS = ("environment=functions", "rufus.environment.functions=[lookup_plugin:lookup]")


def test_a_tool_rollout_reaches_the_reward_with_messages_calls_and_ending(loop, lookup, model_dir):
    from transformers import AutoTokenizer

    from rufus_plugins.recipes.tiny.by_heart import Script

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    agent, _ = loop(*FUNCTIONS, client=Played(Script(tokenizer, lookup.say("apple", short=False))))
    [output] = run(agent)
    told = output.extra_fields["trajectory"]
    assert told["termination"] == "answered" and told["turns"] == 2 and told["metrics"]["tool_calls"] == 1
    [call] = told["tool_calls"]
    assert (call.name, call.arguments, call.status) == ("lookup", {"word": "apple"}, CallStatus.OK)
    assert [m["role"] for m in told["messages"]] == ["assistant", "tool", "assistant"]
    assert told["messages"][-1]["content"] == "apple costs 3"
    [(mask, logprobs)] = told["sampled"]
    assert mask.tolist() == output.response_mask and logprobs.tolist() == output.response_logprobs
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 4)
    context = [i for i, m in zip(output.response_ids, output.response_mask, strict=True) if not m]
    assert tokenizer.convert_tokens_to_ids("<|user|>") not in context
    assert "<|user|> costs 3 </tool_response>" in tokenizer.decode(context)


def test_a_compacted_rollout_is_one_output_per_segment(loop, lookup, model_dir):
    from transformers import AutoTokenizer

    from rufus_plugins.recipes.tiny.by_heart import Script

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    compaction = (
        "+rufus.environment.compaction={by:policy,at:0.6,instruction:'Your context is nearly full.',keep_chars:120}"
    )
    agent, _ = loop(*FUNCTIONS, compaction, client=Played(Script(tokenizer, lookup.say("chair", short=False))))
    first, second = run(agent, raw_prompt=[{"role": "user", "content": "What does chair cost?"}])
    assert "trajectory" not in first.extra_fields and second.extra_fields["trajectory"]["metrics"]["segments"] == 2
    for output in (first, second):
        assert sum(output.response_mask) > 0
        assert len(output.routed_experts) == len(output.prompt_ids) + len(output.response_ids) - 1
        assert first.as_dict().keys() == output.as_dict().keys(), "one TensorDict holds them"
    assert "Called lookup for chair." in tokenizer.decode(second.prompt_ids)


def test_verls_own_tools_are_tools_of_the_environment_and_live_as_long_as_the_episode(loop, model_dir):
    from verl.tools.base_tool import BaseTool
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

    from rufus_plugins.hosts.verl.stock_tools import stock_tools
    from rufus_plugins.rollouts.tools import Toolbox, schema_of
    from rufus_plugins.types import Task

    log = []

    class Counter(BaseTool):
        async def create(self, instance_id=None, **kwargs):
            log.append(("create", kwargs))
            self.count = 0
            return "i1", ToolResponse()

        async def execute(self, instance_id, parameters, **kwargs):
            self.count += parameters["by"]
            if self.count > 5:
                raise ValueError("too much")
            return ToolResponse(text=f"{instance_id} {self.count}"), 0.5, {}

        async def release(self, instance_id, **kwargs):
            log.append(("release", instance_id))

    def shout(word: str) -> str:
        """Shouts.

        word: the word
        """
        return word.upper()

    def count(by: int): ...

    def schema(f):
        return OpenAIFunctionToolSchema.model_validate(schema_of(f))

    stock = [Counter({}, schema(count)), FunctionTool("shout", shout, schema(shout))]
    tools = stock_tools(stock, {"count": {"create_kwargs": {"start": 1}}})

    def call(i, name, **arguments):
        return {"id": str(i), "function": {"name": name, "arguments": arguments}}

    async def go():
        box = Toolbox(tools)
        await box.open(Task("t", "d", ()))
        calls = [call(0, "count", by=2), call(1, "count", by=2), call(2, "shout", word="a"), call(3, "count", by=9)]
        answers = await box.answer({"role": "assistant", "content": "", "tool_calls": calls})
        await box.close()
        return answers

    answers = asyncio.run(go())
    assert [m["content"] for m in answers] == ["i1 2", "i1 4", "A", "Error: ValueError: too much"]
    assert log == [("create", {"create_kwargs": {"start": 1}}), ("release", "i1")]
    agent, _ = loop("environment=functions", tools=stock)
    assert [t["function"]["name"] for t in _schemas(agent)] == ["count", "shout"]
    agent, _ = loop("environment=chatter", tools=stock)
    with pytest.raises(ConfigError, match="takes no further tools"):
        run(agent)


def _schemas(agent):
    from rufus_plugins.types import Task

    environment = agent._environment({})

    async def go():
        await environment.start(Task("t", "d", ({"role": "user", "content": "x"},)))
        tools = environment.tools
        await environment.close()
        return tools

    return asyncio.run(go())


def test_the_environment_option_selects_our_loop_and_preflight_wants_both(loop):
    from rufus_plugins.hosts.verl.preflight import preflight

    with initialize_config_module("verl.trainer.config", version_base=None):
        good = ["scale=tiny", "environment=chatter", "algorithm=gspo"]
        config = compose("rufus", good)
        assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "rufus"
        preflight(config)
        other = "actor_rollout_ref.rollout.agent.default_agent_loop"
        with pytest.raises(ConfigError, match="select the environment by environment=chatter"):
            preflight(compose("rufus", [*good, f"{other}=tool_agent"]))
        with pytest.raises(ConfigError, match="none is selected"):
            preflight(compose("rufus", ["scale=tiny", f"{other}=rufus"]))
        with pytest.raises(ConfigError, match="retries"):
            preflight(compose("rufus", [*good, "+rufus.environment.retries=-1"]))
        with pytest.raises(ConfigError, match="no field 'turnz'"):
            preflight(compose("rufus", [*good, "+rufus.environment.turnz=1"]))


def test_step_metrics_average_episodes_and_count_events():
    from rufus_plugins.hosts.verl.rollout_metrics import rollout_metrics
    from rufus_plugins.hosts.verl.score_tags import TAG

    def tag(**told):
        return {TAG: json.dumps(told)}

    one = {"turns": 2.0, "tool_calls": 4.0, "tool_calls_malformed": 1.0, "retries": 1.0, "segments": 2.0}
    two = {"turns": 4.0, "tool_calls": 0.0, "tool_calls_malformed": 0.0, "segments": 1.0, "asked": 3.0}
    tags = [tag(rollout=one), {"status": "success"}, tag(rollout=two), tag(reward=1.0)]
    found = rollout_metrics(tags)
    assert found["rufus/rollout/turns/mean"] == 3 and found["rufus/rollout/turns/max"] == 4
    assert found["rufus/rollout/malformed/mean"] == 0.25 and found["rufus/rollout/retries/total"] == 1
    assert found["rufus/rollout/asked/mean"] == 1.5 and found["rufus/rollout/segments/max"] == 2
    assert rollout_metrics([{"status": "success"}]) == {}


def test_what_only_the_reward_reads_is_not_stored_with_the_rows():
    from types import SimpleNamespace

    from rufus_plugins.hosts.verl.trajectories import drop_trajectories

    class Worker:
        async def _compute_score(self, outputs, kwargs):
            outputs[-1].reward_score = kwargs["score"]

    drop_trajectories(SimpleNamespace(AgentLoopWorker=Worker))
    for score, kept in ((1.0, False), (None, True)):  # a colocated reward model reads it later
        output = SimpleNamespace(reward_score=None, extra_fields={"trajectory": {}, "termination": "answered"})
        asyncio.run(Worker()._compute_score([output], {"score": score}))
        assert ("trajectory" in output.extra_fields) == kept


def test_files_that_only_the_reward_reads_are_removed_once_it_has_read_them(tmp_path):
    from types import SimpleNamespace

    from rufus_plugins.hosts.verl.trajectories import drop_trajectories

    kept, scored, gone = tmp_path / "kept.db", tmp_path / "scored.db", tmp_path / "gone.db"
    for path in (kept, scored):
        path.write_bytes(b"rows")

    class Worker:
        async def _compute_score(self, outputs, kwargs):
            assert scored.exists()  # the reward reads it here
            outputs[-1].reward_score = 1.0

    drop_trajectories(SimpleNamespace(AgentLoopWorker=Worker))
    artifacts = {"db_before": str(kept), "db_after": str(scored), "temporary_files": [str(scored), str(gone)]}
    output = SimpleNamespace(reward_score=None, extra_fields={"trajectory": {"artifacts": artifacts}})
    asyncio.run(Worker()._compute_score([output], {}))
    assert kept.exists() and not scored.exists()
