"""The tiny families: the right teacher earns the reward, the careless one seldom does, no constant answer gets far."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rufus_plugins.plugins import registry
from rufus_plugins.recipes.data.conversations import conversation
from rufus_plugins.recipes.tiny.families import STAGES, demonstrations, manners, programs, splits
from rufus_plugins.recipes.tiny.families.writing import family, write
from rufus_plugins.types import Task, Trajectory

SCORED = ["reasoning_rl", "coding_rl", "instruction_rl"]
"""Single answers; agents are played in test_families_played.py, and the reward of rlhf is a model."""


def parts_of(module, seed):
    return module.splits(seed) if module is programs else splits(module.items(seed), seed)


def rewards(module, pairs):
    fields = dict(module.FAMILY.reward)
    reward = registry().build("reward", fields.pop("name"), fields)

    def trajectory(item, messages):
        truth = item.ground_truth if isinstance(item.ground_truth, str) else json.dumps(item.ground_truth)
        return Trajectory(Task(item.id, module.FAMILY.data_source, item.prompt, truth), messages=messages)

    async def all_():
        return await asyncio.gather(*(reward(trajectory(item, m)) for item, m in pairs))

    return [score.value for score in asyncio.run(all_())]


@pytest.mark.parametrize("stage", SCORED)
def test_the_best_constant_answer_earns_what_its_baseline_says(stage):
    module = family(stage)
    items = parts_of(module, 0)["heldout"]
    answer, share = module.constant_baseline(items)
    messages = ({"role": "assistant", "content": answer},)
    assert sum(rewards(module, [(i, messages) for i in items])) == pytest.approx(share * len(items))


def test_no_answer_of_another_item_beats_the_baseline_of_words():
    module = family("instruction_rl")
    items = splits(module.items(1), 1)["heldout"]
    _, share = module.constant_baseline(items)
    for other in items[::24]:
        assert sum(rewards(module, [(i, other.right) for i in items])) <= share * len(items) + 1e-9


@pytest.mark.parametrize("stage", list(STAGES))
def test_splits_are_disjoint_and_follow_the_seed(stage):
    module = family(stage)
    parts = parts_of(module, 0)
    ids = [{i.id for i in part} for part in parts.values()]
    assert sum(map(len, ids)) == len(set.union(*ids)) == len(module.items(0))
    assert parts_of(module, 0) == parts
    assert {i.id for i in parts_of(module, 1)["rl"]} != ids[1]
    assert [len(part) / len(module.items(0)) for part in parts.values()] == pytest.approx([0.4, 0.4, 0.2], abs=0.01)


@pytest.mark.parametrize("stage", ["instruction_rl", "general_agent", "search_agent", "axion_rl"])
def test_the_written_files_are_what_the_trainers_read(stage, tmp_path):
    report = write(stage, tmp_path / "a", 3, sft_rows=50)
    write(stage, tmp_path / "b", 3, sft_rows=50)
    for name in ("sft.jsonl", "rl/train.parquet", "rl/heldout.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    rows = pq.read_table(tmp_path / "a/rl/train.parquet").to_pylist()
    assert len(rows) == report["items"]["rl"]
    assert rows[0]["data_source"] == family(stage).FAMILY.data_source
    for override in report["overrides"]:
        key, _, path = override.partition("=")
        assert key.startswith("rufus.") and Path(path).is_absolute() and Path(path).exists()
    lines = (tmp_path / "a/sft.jsonl").read_text().splitlines()
    assert len(lines) == (100 if stage == "axion_rl" else 50)  # a compacted episode is two conversations
    for line in lines:
        messages, tools = conversation(json.loads(line), Counter())
        assert messages[0]["role"] == "user" and messages[-1]["role"] == "assistant"
        assert bool(tools) == (stage in ("general_agent", "search_agent", "axion_rl"))
    assert max(len(r["prompt"][0]["content"]) for r in rows) < 100  # the tiny model's contexts are short


def test_the_careless_teacher_errs_in_the_share_that_was_asked_for():
    items = family("reasoning_rl").items(0)
    drawn = demonstrations(items, 0, 1000, 0.6)
    assert 0.5 < sum(m == i.faulty for i, m in drawn) / 1000 < 0.7
    assert len({i.id for i, _ in drawn}) == 1000


def test_manners_values_are_those_of_its_rule():
    assert manners.value("bread", "Bake it hot. Good luck!") == 1.0
    assert manners.value("bread", "Bake it hot.") == 0.5
    assert manners.value("bread", "Play slow games. Good luck!") == 0.0
    assert manners.value("bread", "Silly question. Bake it hot. Good luck!") == 0.0
    assert manners.value("bread", "Bake it hot. It depends. It depends. Good luck!") == pytest.approx(0.8)
    assert manners.value("bread", "Bake it") == 0.0
    found = manners.items(0)
    subjects = {item.prompt[0]["content"]: item.extra["subject"] for item in found}
    pairs = manners.pairs(found, 0)
    for pair in pairs:
        subject = subjects[pair["prompt"][0]["content"]]
        assert manners.value(subject, pair["chosen"]) > manners.value(subject, pair["rejected"])
    assert Counter(p["chosen"] for p in pairs).most_common(1)[0][1] < 0.1 * len(pairs)


def test_the_best_constant_advice_suits_one_subject_in_24():
    answer, share = manners.constant_baseline(parts_of(manners, 0)["heldout"])
    assert answer.endswith("Good luck!") and share == pytest.approx(1 / 24, abs=0.001)


def test_every_search_of_a_right_trajectory_finds_the_document_that_it_shows(tmp_path):
    for stage in ("search_agent", "axion_rl"):
        write(stage, tmp_path / stage, 1, sft_rows=5)
        fields = {"results": 1, "python_tool": False, "backend_config": {"path": str(tmp_path / stage / "index")}}
        environment = registry().build("environment", "search", fields)

        async def searched(environment=environment, stage=stage):
            for item in family(stage).items(1)[::5]:
                await environment.start(Task(item.id, "", item.prompt))
                for said, told in zip(item.right[:-1:2], item.right[1::2], strict=True):
                    given = await environment.step(said)
                    assert given.messages[0]["content"] == told["content"], item.id

        asyncio.run(searched())


def test_a_stage_without_a_family_is_told_which_have_one():
    from rufus_plugins.errors import ConfigError

    with pytest.raises(ConfigError, match="no tiny family for 'sft'; there are reasoning_rl, coding_rl"):
        family("sft")


def test_other_things_in_the_folder_are_never_replaced(tmp_path):
    from rufus_plugins.errors import ConfigError

    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="holds other things"):
        write("instruction_rl", tmp_path, 0, sft_rows=5)
    assert (tmp_path / "mine.txt").read_text() == "x"


def test_every_stage_with_a_config_has_tiny_data():
    stages = {name: part.factory() for name, part in registry().parts["stage"].items()}
    assert {name for name, stage in stages.items() if stage.tiny} == set(STAGES)


def test_the_rule_server_judges_through_the_real_client():
    judge = registry().build("judge", "rule_server", {})

    async def all_():
        return [
            (await judge("Which river?", said, "Isel ||| Enz")).value for said in ("Isel", "Enz.", "Gera", "Isel a")
        ]

    assert asyncio.run(all_()) == [1.0, 1.0, 0.0, 0.0]
    assert judge.stats.requests == judge.stats.answered == 4 and not judge.stats.failures


def test_the_rule_server_refuses_what_is_no_judges_prompt():
    import httpx

    from rufus_plugins.recipes.tiny.judge_server import address

    said = httpx.post(f"{address()}/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert said.status_code == 400 and "no reference" in said.json()["error"]["message"]
