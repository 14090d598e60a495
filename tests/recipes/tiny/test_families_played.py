"""The demonstrations, played through the composed stage: real environment, real reward, real tokens."""

import asyncio
import json

import pyarrow.parquet as pq
import pytest

from rufus_plugins import selection
from rufus_plugins.recipes.tiny.families import STAGES, splits
from rufus_plugins.recipes.tiny.families.writing import family, records, write
from rufus_plugins.types import Task, Termination, Trajectory

AGENTS = ["general_agent", "coding_agent", "search_agent", "axion_rl"]
ANSWERS = ["reasoning_rl", "coding_rl", "instruction_rl"]
COUNT = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """stage -> (folder, report, composed config); written once."""
    known = {}

    def of(stage):
        if stage not in known:
            folder = tmp_path_factory.mktemp(stage) / "data"
            report = write(stage, folder, 0, sft_rows=40)
            known[stage] = folder, report, composed(stage, report["overrides"])
        return known[stage]

    return of


def composed(stage, overrides=()):
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("rufus", overrides=[f"stage={stage}", "scale=tiny", *overrides])


@pytest.fixture(scope="module")
def tokenizer():
    from rufus_plugins.recipes.tiny.tokenizer import build

    return build("families")


def task_of(row):
    truth = row["reward_model"]["ground_truth"]
    return Task(row["extra_info"]["id"], row["data_source"], row["prompt"], truth, row["extra_info"])


def heldout(made, stage, count=COUNT):
    """(item, task) of held-out rows."""
    folder, _, _ = made(stage)
    by_id = {item.id: item for item in family(stage).items(0)}
    rows = pq.read_table(folder / "rl/heldout.parquet").to_pylist()[:count]
    return [(by_id[row["extra_info"]["id"]], task_of(row)) for row in rows]


class Player:
    """The model's place: says the assistant messages of a demonstration, one a turn."""

    def __init__(self, tokenizer, messages, tools):
        self.tokenizer, self.told = tokenizer, [m for m in messages if m["role"] == "assistant"]
        self.tools = tools

    async def generate(self, prompt_ids, max_tokens):
        from rufus_plugins.rollouts.turns import Sampled

        base = [{"role": "user", "content": "x"}]
        options = {"tools": self.tools, "tokenize": False, "enable_thinking": False}
        before = self.tokenizer.apply_chat_template(base, add_generation_prompt=True, **options)
        after = self.tokenizer.apply_chat_template([*base, self.told.pop(0)], **options)
        ids = self.tokenizer.encode(after[len(before) :], add_special_tokens=False)
        return Sampled(ids[:max_tokens], "stop" if len(ids) <= max_tokens else "length")


async def played(config, tokenizer, module, task, messages):
    from rufus_plugins.hosts.verl.chat_tokens import ChatTokens
    from rufus_plugins.recipes.tiny.tokenizer import STOP_TOKENS
    from rufus_plugins.rollouts.episode import Episode, Limits

    stops = tokenizer.convert_tokens_to_ids(list(STOP_TOKENS))
    chat = ChatTokens(tokenizer, "glm4_moe", end_ids=stops, template_kwargs={"enable_thinking": False})
    room, context = config.data.max_response_length, config.data.max_prompt_length
    player = Player(tokenizer, messages, list(module.FAMILY.tools))
    environment, rules = selection.build(config, "environment"), selection.rules_of(config)
    rollout = await Episode(task, environment, player, chat, rules, Limits(context + room, room)).run()
    assert not rollout.problem, rollout.problem
    score = await selection.build(config, "reward")(rollout.trajectory)
    return rollout.trajectory, score


@pytest.mark.parametrize("stage", AGENTS)
def test_right_episodes_earn_everything_in_three_calls_and_careless_ones_do_not(stage, made, tokenizer):
    _, _, config = made(stage)
    module = family(stage)

    async def all_():
        found = []
        for item, task in heldout(made, stage):
            right = await played(config, tokenizer, module, task, item.right)
            faulty = await played(config, tokenizer, module, task, item.faulty)
            found.append((item, right, faulty))
        return found

    for item, (trajectory, score), (careless, other) in asyncio.run(all_()):
        assert score.value == 1.0, (score.explanation, trajectory.messages)
        assert trajectory.termination is careless.termination is Termination.ANSWERED
        assert len(trajectory.tool_calls) >= 3
        # the careless earn nothing; on the trail, two of three targets: 0.3 * 2/3
        assert other.value == pytest.approx(0.2 if stage == "axion_rl" else 0.0), other.explanation
        told = [m["content"] for m in trajectory.messages if m["role"] == "tool"]
        assert told == [m["content"] for m in item.right if m["role"] == "tool"]


@pytest.mark.parametrize("stage", AGENTS)
def test_an_episode_has_the_tokens_of_its_demonstration(stage, made, tokenizer):
    _, _, config = made(stage)
    module = family(stage)
    item, task = heldout(made, stage, 1)[0]
    trajectory, _ = asyncio.run(played(config, tokenizer, module, task, item.right))
    shown = records(module, item, item.right)
    options = {"tools": list(module.FAMILY.tools), "enable_thinking": False, "return_dict": False}
    expected = [list(tokenizer.apply_chat_template(messages, **options)) for messages in shown]
    lived = [[*segment.prompt_ids, *segment.response_ids] for segment in trajectory.segments]
    assert len(lived) == len(expected) == (2 if stage == "axion_rl" else 1)
    assert lived[-1] == expected[-1]
    assert expected[0][: len(lived[0])] == lived[0]
    assert all(len(ids) <= 250 for ids in lived)


@pytest.mark.parametrize("stage", ANSWERS)
def test_right_answers_earn_everything_careless_ones_seldom_and_run_ons_nothing(stage, made):
    _, _, config = made(stage)
    reward = selection.build(config, "reward")
    pairs = heldout(made, stage, 30)

    async def values(messages_of, ending=Termination.ANSWERED):
        rollouts = [Trajectory(task, messages=messages_of(item), termination=ending) for item, task in pairs]
        return [score.value for score in await asyncio.gather(*map(reward, rollouts))]

    def more(item):
        return ({"role": "assistant", "content": item.right[0]["content"] + " and so on, and so on"},)

    async def all_():
        return (
            await values(lambda item: item.right),
            await values(lambda item: item.faulty),
            await values(lambda item: item.right, Termination.RESPONSE_LENGTH),
            await values(more),
        )

    right, faulty, cut, longer = asyncio.run(all_())
    assert right == [1.0] * 30
    assert sum(faulty) <= 6
    assert cut == longer == [0.0] * 30


@pytest.mark.parametrize("stage", AGENTS)
def test_an_episode_that_a_budget_ended_earns_nothing(stage, made, tokenizer):
    _, _, config = made(stage)
    module = family(stage)
    item, task = heldout(made, stage, 1)[0]
    # everything is done, but the last words go on for longer than a turn may
    last = {"role": "assistant", "content": item.right[-1]["content"] + " blah" * 60}
    trajectory, score = asyncio.run(played(config, tokenizer, module, task, [*item.right[:-1], last]))
    assert trajectory.termination is Termination.RESPONSE_LENGTH
    # on the trail: all three targets without an answer are worth 0.3 - 0.1
    assert score.value == pytest.approx({"search_agent": -0.1, "axion_rl": 0.2}.get(stage, 0.0))


def test_a_lamp_that_was_not_found_in_the_episode_cannot_be_changed(made, tokenizer):
    _, _, config = made("general_agent")
    module = family("general_agent")
    item, task = heldout(made, "general_agent", 1)[0]
    trajectory, score = asyncio.run(played(config, tokenizer, module, task, item.right[2:]))
    assert score.value == 0.0 and len(trajectory.tool_calls) == 2
    assert all("find it first" in m["content"] for m in trajectory.messages if m["role"] == "tool")


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "rlhf"])
def test_the_best_constant_of_the_heldout_items_solves_less_than_a_twentieth(stage, made):
    folder, report, _ = made(stage)
    module = family(stage)
    rows = pq.read_table(folder / "rl/heldout.parquet").to_pylist()
    assert len(rows) == report["items"]["heldout"]
    assert 0 < report["constant_share"] < 0.05
    assert report["constant_kind"] == ("call sequence" if stage in AGENTS else "answer")
    by_id = {item.id: item for item in module.items(0)}
    items = [by_id[row["extra_info"]["id"]] for row in rows]
    if stage in ("search_agent", "axion_rl"):
        said = [item.right[-1]["content"] for item in items]
    elif stage == "coding_agent":
        said = [item.right[4]["tool_calls"][0]["function"]["arguments"]["command"] for item in items]
    elif stage == "general_agent":
        said = [json.dumps([m.get("tool_calls") for m in item.right]) for item in items]
    else:
        return  # rewards of single answers are asked in test_families.py
    assert report["constant_share"] == pytest.approx(max(map(said.count, said)) / len(said))


def test_a_second_call_changes_nothing_and_an_unfinished_folder_is_no_data(tmp_path):
    first = write("instruction_rl", tmp_path / "a", 3, sft_rows=20)
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "a").rglob("*") if file.is_file()}
    assert write("instruction_rl", tmp_path / "a", 3, sft_rows=20) == first
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    # a killed call leaves its part beside the folder, never in it
    (tmp_path / ".b.left").mkdir()
    assert write("instruction_rl", tmp_path / "b", 3, sft_rows=20)["items"] == first["items"]
    assert (tmp_path / "a/sft.jsonl").read_bytes() == (tmp_path / "b/sft.jsonl").read_bytes()
    other = write("instruction_rl", tmp_path / "a", 4, sft_rows=20)
    assert other["seed"] == 4 and json.loads((tmp_path / "a/family.json").read_text()) == other
    assert not list(tmp_path.glob(".a.*"))


def test_a_write_that_fails_leaves_the_old_data_and_nothing_else(tmp_path, monkeypatch):
    from rufus_plugins.recipes.tiny.families import words

    before = write("instruction_rl", tmp_path / "a", 3, sft_rows=20)

    def fail(_):
        raise RuntimeError("killed")

    monkeypatch.setattr(words, "constant_baseline", fail)
    with pytest.raises(RuntimeError, match="killed"):
        write("instruction_rl", tmp_path / "a", 5, sft_rows=20)
    assert json.loads((tmp_path / "a/family.json").read_text()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_strata_are_spread_evenly_over_the_splits():
    items = family("search_agent").items(0)
    for part in splits(items, 0).values():
        answers = [item.ground_truth for item in part]
        counts = [answers.count(answer) for answer in {item.ground_truth for item in items}]
        assert max(counts) - min(counts) <= 5 and max(counts) <= 0.03 * len(part)
