"""Measuring: what is measured is what is trained, the same twice and after a kill, and never a fault."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.recipes.data.attempt_store import AttemptStore
from rufus_plugins.recipes.evidence import sampler
from rufus_plugins.recipes.evidence.measure import load, measure
from rufus_plugins.recipes.evidence.protocol import Protocol, from_config
from rufus_plugins.types import Termination

from .conftest import FUNCTIONS, PROMPT, RESPONSE, composed


def quiet(done, total):
    pass


def episodes(folder, **changed):
    made = from_config("prices", "price_agent", composed(*FUNCTIONS), folder / "heldout.parquet", samples=2)
    # a model that is sure of each token to 2 % is surer of them all when it is colder
    return dataclasses.replace(made, **{"temperature": 0.2, **changed})


def single(folder, response=24, **more):
    return from_config("prices", "price_rl", composed(response=response), folder / "heldout.parquet", **more)


def kept(protocol, folder, path):
    """(item, number) -> the stored answer, with messages."""
    store = AttemptStore(path)
    attempts = sampler.attempts_of(protocol, folder / "model", "digest", store)
    tasks = protocol.tasks()
    asyncio.run(attempts.run(tasks))
    found = {
        (task.id, n): store.get("answers", attempts.plan.keys(task, n)[0])
        for task in tasks
        for n in range(protocol.attempts)
    }
    store.close()
    return found


class Client:
    """verl's client without the load balancer."""

    def __init__(self, server):
        self.server = server

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        return await self.server.generate(prompt_ids, sampling_params, request_id, **kwargs)


@pytest.fixture(scope="module")
def trained(folder):
    """trained(record) -> the trajectory of our agent loop on verl's rollout server, by the likeliest tokens."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.config import HFModelConfig, RolloutConfig

    from rufus_plugins.hosts.verl.agent_loop import EnvironmentAgentLoop
    from rufus_plugins.hosts.verl.transformers_rollout.server import TransformersServer

    config = composed(*FUNCTIONS, f"actor_rollout_ref.model.path={folder}/model")
    model = HFModelConfig(path=str(folder / "model"))
    lengths = {"prompt_length": PROMPT, "response_length": RESPONSE}
    how = {"tensor_model_parallel_size": 1, "dtype": "float32", "load_format": "auto", **lengths}
    server = TransformersServer(RolloutConfig(name="transformers", **how), model, 0)
    agent = EnvironmentAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=Client(server),
        tokenizer=model.tokenizer,
        processor=None,
        hf_model_type="glm4_moe",
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        tools=ToolListWrap([]),
    )

    def run(task):
        async def go():
            agent.loop = asyncio.get_running_loop()
            record = {"raw_prompt": list(task.prompt), "data_source": task.data_source, "extra_info": {"id": task.id}}
            return await agent.run({"temperature": 0.0, "logprobs": True}, **record)

        return asyncio.run(go())[-1].extra_fields["trajectory"]

    return run


def test_an_episode_is_measured_as_the_agent_loop_of_training_plays_it(folder, trained, tmp_path):
    protocol = episodes(folder)
    answers = kept(protocol, folder, tmp_path / "a.sqlite")
    for task in protocol.tasks():
        ours, theirs = answers[task.id, protocol.samples], trained(task)
        assert [m["role"] for m in theirs["messages"]] == ["assistant", "tool", "assistant"]
        assert ours["messages"] == theirs["messages"]
        assert ours["termination"] == theirs["termination"] == "answered"
        assert ours["tokens"] == theirs["metrics"]["tokens_sampled"]
        assert theirs["messages"][-1]["content"].startswith(f"{task.id} costs ")


def test_a_single_turn_is_read_as_the_reward_manager_of_training_reads_it(folder, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    protocol = single(folder)
    answers = kept(protocol, folder, tmp_path / "a.sqlite")
    for task in protocol.tasks():
        answer = answers[task.id, protocol.samples]
        template = tokenizer.apply_chat_template(
            list(task.prompt), add_generation_prompt=True, return_dict=False, **protocol.template
        )
        assert answer["prompt_ids"] == template
        [message] = answer["messages"]
        assert message["content"] == tokenizer.decode(answer["ids"], skip_special_tokens=True)
        ended = answer["ids"][-1] in {tokenizer.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|observation|>")}
        assert answer["termination"] == ("answered" if ended else "response_length")
        assert answer["tokens"] == len(answer["ids"]) <= 24


def test_evidence_has_every_attempt_and_what_it_was_measured_by(folder, tmp_path):
    protocol = episodes(folder)
    lines = []
    output = tmp_path / "e.json"
    made = measure(protocol, folder / "model", output, lambda done, total: lines.append((done, total)), digest="d")
    assert made == load(output) and [f.name for f in tmp_path.iterdir()] == ["e.json"]
    assert made["checkpoint"] == {"digest": "d", "name": "model"} and made["protocol_digest"] == protocol.digest
    assert sorted(made["items"]) == ["apple", "chair", "grape"] and lines[-1] == (9, 9)
    for item in made["items"].values():
        assert item["scores"] == [1.0, 1.0] and item["greedy"] == 1.0  # it knows them by heart
        assert item["terminations"] == ["answered"] * 2 and min(item["tokens"]) > 10
    assert made["unscored"] == 0 and made["faults"] == {}
    assert Protocol.of(made["protocol"], "here") == protocol
    again = measure(protocol, folder / "model", output, lambda *_: pytest.fail("measured again"), digest="d")
    assert again == made
    with pytest.raises(ConfigError, match="choose another file"):
        measure(protocol, folder / "model", output, quiet, digest="other")


def test_the_same_seeds_give_the_same_attempts_however_they_are_batched(folder, tmp_path, monkeypatch):
    protocol = single(folder, seed=3)
    one = kept(protocol, folder, tmp_path / "a.sqlite")
    monkeypatch.setattr(sampler, "CONCURRENCY", 2)
    assert {k: v["ids"] for k, v in kept(protocol, folder, tmp_path / "b.sqlite").items()} == {
        k: v["ids"] for k, v in one.items()
    }
    other = kept(single(folder, seed=4), folder, tmp_path / "c.sqlite")
    drawn = [key for key in one if key[1] < protocol.samples]
    assert any(other[key]["ids"] != one[key]["ids"] for key in drawn)
    greedy = [key for key in one if key[1] == protocol.samples]
    assert all(other[key]["ids"] == one[key]["ids"] for key in greedy)


@pytest.fixture
def failing(monkeypatch):
    """The reward loses its judge for the items in the returned set."""
    from rufus_plugins.rewards.science_answer import ScienceAnswer

    stock, lost = ScienceAnswer.__call__, set()

    async def scored(self, trajectory):
        if trajectory.task.id in lost:
            raise InfrastructureError("the judge is gone", Termination.JUDGE_FAILED)
        return await stock(self, trajectory)

    monkeypatch.setattr(ScienceAnswer, "__call__", scored)
    monkeypatch.setattr("rufus_plugins.recipes.evidence.measure.RETRIES", 0)
    return lost


def test_faults_are_no_scores_and_too_many_are_no_evidence_until_the_rest_is_measured(folder, tmp_path, failing):
    protocol, output = episodes(folder), tmp_path / "e.json"
    failing.add("chair")
    with pytest.raises(InfrastructureError, match=r"3 of 9 attempts .* \(judge_failed 3\); at most 2%") as error:
        measure(protocol, folder / "model", output, quiet, digest="d")
    assert error.value.termination is Termination.JUDGE_FAILED and not output.exists()
    failing.clear()
    told = []
    made = measure(protocol, folder / "model", output, lambda done, total: told.append(done), digest="d")
    assert made["items"]["chair"]["scores"] == [1.0, 1.0] and made["unscored"] == 0


def test_few_faults_are_left_out_and_counted(folder, tmp_path, failing, monkeypatch):
    monkeypatch.setattr("rufus_plugins.recipes.evidence.measure.MOST_UNSCORED", 0.4)
    failing.add("chair")
    made = measure(episodes(folder), folder / "model", tmp_path / "e.json", quiet, digest="d")
    assert made["items"]["chair"]["scores"] == [None, None] and made["items"]["chair"]["greedy"] is None
    assert made["unscored"] == 3 and made["faults"] == {"judge_failed": 3}
    assert made["items"]["apple"]["scores"] == [1.0, 1.0]


def test_a_protocol_takes_its_conditions_from_the_config_that_trains(folder, tmp_path):
    config = composed(
        *FUNCTIONS,
        "+data.apply_chat_template_kwargs.enable_thinking=false",
        "+rufus.environment.max_turns=5",
        "rufus.environment.call_timeout_s=7.5",
        "actor_rollout_ref.rollout.multi_turn.format=qwen3_coder",
    )
    made = from_config("p", "s", config, folder / "heldout.parquet", samples=3, seed=2, items=2)
    assert made.environment["fields"] | {"call_timeout_s": 7.5} == made.environment["fields"]
    assert made.rules["max_turns"] == 5 and made.tool_format == "qwen3_coder"
    assert made.template == {"enable_thinking": False}
    assert (made.max_tokens, made.context) == (RESPONSE, PROMPT + RESPONSE)
    assert made.engine == {"dtype": "float32", "attn_implementation": "sdpa_float64"}
    assert (made.heldout["rows"], made.heldout["items"], made.attempts) == (3, 2, 4)
    assert len(made.tasks()) == 2
    made.write(tmp_path / "p.json")
    assert Protocol.read(tmp_path / "p.json") == made and Protocol.read(tmp_path / "p.json").digest == made.digest


def test_files_of_an_environment_are_known_by_content(folder, tmp_path):
    def of(path):
        config = composed("environment=mcp", f"rufus.environment.worlds={path}")
        return from_config("p", "s", config, folder / "heldout.parquet")

    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gen_tasks.jsonl").write_text("{}" if name == "c" else "")
    one, same, other = of(tmp_path / "a"), of(tmp_path / "b"), of(tmp_path / "c")
    assert one.digest == same.digest != other.digest
    assert one.part("environment")[1]["worlds"] == str(tmp_path / "a")
    (tmp_path / "a" / "gen_tasks.jsonl").write_text("changed")
    with pytest.raises(ConfigError, match="environment.worlds of protocol p: .* has changed"):
        one.tasks()


def test_a_subset_is_drawn_by_the_seed_and_a_changed_file_is_refused(folder, tmp_path, lookup):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .conftest import rows

    prices = {f"w{n}": n for n in range(40)}
    path = tmp_path / "h.parquet"
    pq.write_table(pa.Table.from_pylist(rows(prices, prices)), path)
    made = from_config("p", "s", composed(), path, items=10)
    drawn = [task.id for task in made.tasks()]
    assert len(drawn) == 10 and drawn == [task.id for task in made.tasks()]
    assert drawn != [t.id for t in from_config("p", "s", composed(), path, items=10, seed=1).tasks()]
    pq.write_table(pa.Table.from_pylist(rows([*prices][::-1], prices)), path)
    assert {t.id for t in from_config("p", "s", composed(), path, items=10).tasks()} == set(drawn)
    with pytest.raises(ConfigError, match="not the held-out file of protocol p"):
        made.tasks()
    pq.write_table(pa.Table.from_pylist(rows(["w1", "w1"], prices)), path)
    with pytest.raises(ConfigError, match="the id 'w1' twice"):
        from_config("p", "s", composed(), path)


def test_the_best_constant_answer_of_the_family_stands_in_the_protocol(folder, tmp_path):
    (tmp_path / "rl").mkdir()
    held = tmp_path / "rl" / "heldout.parquet"
    held.write_bytes((folder / "heldout.parquet").read_bytes())
    family = {"constant_answer": "4", "constant_share": 0.05, "constant_kind": "answer", "seed": 0}
    (tmp_path / "family.json").write_text(json.dumps(family))
    made = from_config("p", "s", composed(), held)
    assert made.baseline == {"answer": "4", "share": 0.05, "kind": "answer"}
    assert made.digest == dataclasses.replace(made, baseline={}).digest


@pytest.mark.slow
def test_a_killed_measurement_goes_on_and_ends_with_the_same_figures(folder, tmp_path, lookup):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .conftest import rows

    words = [f"w{n}" for n in range(60)]
    pq.write_table(pa.Table.from_pylist(rows(words, dict.fromkeys(words, 1))), tmp_path / "h.parquet")
    protocol = from_config("p", "s", composed(response=64), tmp_path / "h.parquet")
    protocol.write(tmp_path / "p.json")

    def started(name):
        command = [sys.executable, "-m", "rufus_plugins.recipes.evidence", "measure"]
        command += ["--protocol", str(tmp_path / "p.json"), "--checkpoint", str(folder / "model")]
        return subprocess.Popen(
            [*command, "--output", str(tmp_path / name)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )

    whole = started("whole.json")
    assert whole.communicate(timeout=300) and whole.returncode == 0
    kills = 0
    deadline = time.monotonic() + 300
    while kills < 2 and time.monotonic() < deadline:
        broken = started("broken.json")
        for line in broken.stdout:
            if line.startswith("measured "):
                broken.send_signal(signal.SIGKILL)
                break
        broken.communicate(timeout=60)
        kills += broken.returncode == -signal.SIGKILL
    assert kills == 2 and not (tmp_path / "broken.json").exists()
    rest = started("broken.json")
    said, _ = rest.communicate(timeout=300)
    assert rest.returncode == 0
    assert int(said.split("measured ")[1].split("/")[0]) > 15  # what was made before was not made again
    one, two = load(tmp_path / "whole.json"), load(tmp_path / "broken.json")
    assert one["items"] == two["items"] and one["checkpoint"] == two["checkpoint"]
