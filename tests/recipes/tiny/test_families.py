"""The tiny families: the right teacher earns the reward, the careless one seldom does, no constant answer gets far."""

import asyncio
import contextlib
import json
import sqlite3
from collections import Counter

import pyarrow.parquet as pq
import pytest

from rufus_plugins.plugins import registry
from rufus_plugins.recipes.data.conversations import conversation
from rufus_plugins.recipes.tiny.families import STAGES, demonstrations, manners, splits
from rufus_plugins.recipes.tiny.families.__main__ import family, write
from rufus_plugins.types import CallStatus, Task, ToolCall, Trajectory

SCORED = [stage for stage in STAGES if stage != "rlhf"]
"""The reward of rlhf is a model."""


def trajectory(module, item, messages, folder):
    calls = [
        ToolCall(c["function"]["name"], c["function"]["arguments"], CallStatus.OK, turn, True)
        for turn, m in enumerate(messages)
        for c in m.get("tool_calls", ())
    ]
    artifacts = played(module, calls, folder) if module.FAMILY.stage == "general_agent" else {}
    truth = item.ground_truth if isinstance(item.ground_truth, str) else json.dumps(item.ground_truth)
    task = Task(item.id, module.FAMILY.data_source, item.prompt, truth, item.extra)
    return Trajectory(task, messages=messages, tool_calls=calls, artifacts=artifacts)


def played(module, calls, folder):
    """The lamps before and after the calls."""
    paths = {}
    for name, doing in (("before", ()), ("after", calls)):
        path = folder / f"{name}-{abs(hash(str(calls)))}.db"
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE lamp (room TEXT PRIMARY KEY, is_on INTEGER, colour TEXT)")
            db.executemany("INSERT INTO lamp VALUES (?, ?, ?)", [(r, *v) for r, v in module.initial().items()])
            for call in doing:
                column, value = ("is_on", "on") if call.name == "switch" else ("colour", "colour")
                given = call.arguments
                db.execute(f"UPDATE lamp SET {column} = ? WHERE room = ?", (given[value], given["room"]))
            db.commit()
        paths[f"db_{name}"] = str(path)
    return paths


def rewards(module, pairs, folder):
    fields = dict(module.FAMILY.reward)
    reward = registry().build("reward", fields.pop("name"), fields)

    async def all_():
        return await asyncio.gather(*(reward(trajectory(module, item, m, folder)) for item, m in pairs))

    return [score.value for score in asyncio.run(all_())]


@pytest.mark.parametrize("stage", SCORED)
def test_the_right_teacher_earns_the_reward_and_the_careless_one_seldom(stage, tmp_path):
    module = family(stage)
    items = module.items(0)[:60]
    assert rewards(module, [(i, i.right) for i in items], tmp_path) == [1.0] * 60
    assert sum(rewards(module, [(i, i.faulty) for i in items], tmp_path)) <= 12


@pytest.mark.parametrize("stage", SCORED)
def test_the_best_constant_answer_is_what_its_baseline_says(stage, tmp_path):
    module = family(stage)
    items = splits(module.items(0), 0)["heldout"]
    answer, share = module.constant_baseline(items)
    assert 0 < share < 0.1
    if stage == "general_agent":
        calls = json.loads(answer)
        messages = ({"role": "assistant", "content": "", "tool_calls": [{"function": c} for c in calls]},)
        messages += ({"role": "assistant", "content": "Done."},)
        part = items[:40]
        expected = sum(json.dumps([m["tool_calls"][0]["function"] for m in i.right[:-1:2]]) == answer for i in part)
    elif stage == "search_agent":
        made = items[0].right[:-1]
        messages, part = (*made, {"role": "assistant", "content": answer}), items
        expected = share * len(items)
    else:
        messages, part = ({"role": "assistant", "content": answer},), items
        expected = share * len(items)
    assert sum(rewards(module, [(i, messages) for i in part], tmp_path)) == pytest.approx(expected)


def test_no_answer_of_another_item_beats_the_baseline_of_words(tmp_path):
    module = family("instruction_rl")
    items = splits(module.items(1), 1)["heldout"]
    _, share = module.constant_baseline(items)
    for other in items[::24]:
        assert sum(rewards(module, [(i, other.right) for i in items], tmp_path)) <= share * len(items) + 1e-9


@pytest.mark.parametrize("stage", list(STAGES))
def test_splits_are_disjoint_and_follow_the_seed(stage):
    module = family(stage)
    parts = splits(module.items(0), 0)
    ids = [{i.id for i in part} for part in parts.values()]
    assert sum(map(len, ids)) == len(set.union(*ids)) == len(module.items(0))
    assert splits(module.items(0), 0) == parts
    assert {i.id for i in splits(module.items(0), 1)["rl"]} != ids[1]
    assert [len(part) / len(module.items(0)) for part in parts.values()] == pytest.approx([0.4, 0.4, 0.2], abs=0.01)


@pytest.mark.parametrize("stage", list(STAGES))
def test_the_written_files_are_what_the_trainers_read(stage, tmp_path):
    report = write(stage, tmp_path / "a", 3, sft_rows=50)
    write(stage, tmp_path / "b", 3, sft_rows=50)
    for name in ("sft.jsonl", "rl/train.parquet", "rl/heldout.parquet", "family.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    rows = pq.read_table(tmp_path / "a/rl/train.parquet").to_pylist()
    assert len(rows) == report["items"]["rl"]
    assert rows[0]["data_source"] == family(stage).FAMILY.data_source
    for line in (tmp_path / "a/sft.jsonl").read_text().splitlines():
        messages, tools = conversation(json.loads(line), Counter())
        assert messages[0]["role"] == "user" and messages[-1]["role"] == "assistant"
        assert bool(tools) == any(m.get("tool_calls") for m in messages)
    assert max(len(r["prompt"][0]["content"]) for r in rows) < 100  # the tiny model's contexts are short


def test_the_careless_teacher_errs_in_the_share_that_was_asked_for():
    items = family("reasoning_rl").items(0)
    drawn = demonstrations(items, 0, 1000, 0.6)
    assert 0.5 < sum(m == i.faulty for i, m in drawn) / 1000 < 0.7
    assert len({i.id for i, _ in drawn}) == 1000


def test_manners_values_are_those_of_its_rule():
    assert manners.value("bread", "Bake it hot. Good luck!") == 1.0
    assert manners.value("bread", "Bake it hot.") == 0.5
    assert manners.value("bread", "Play slow games. Good luck!") == 0.5
    assert manners.value("bread", "Silly question. Bake it hot. Good luck!") == 0.0
    assert manners.value("bread", "Bake it hot. It depends. It depends. Good luck!") == pytest.approx(0.8)
    pairs = manners.pairs(manners.items(0), 0)
    for pair in pairs:
        subject = next(i.extra["subject"] for i in manners.items(0) if list(i.prompt) == pair["prompt"])
        assert manners.value(subject, pair["chosen"]) > manners.value(subject, pair["rejected"])
    assert Counter(p["chosen"] for p in pairs).most_common(1)[0][1] < 0.2 * len(pairs)


def test_atlas_questions_are_answered_by_the_two_documents_a_search_finds(tmp_path):
    from rufus_plugins.recipes.search_agent.corpus import prepare

    write("search_agent", tmp_path / "a", 0, sft_rows=5)
    prepare(str(tmp_path / "a/corpus.jsonl"), tmp_path / "index")
    module = family("search_agent")
    environment = registry().build(
        "environment",
        "search",
        {
            **{k: v for k, v in module.FAMILY.environment.items() if k != "name"},
            "backend_config": {"path": str(tmp_path / "index")},
        },
    )

    async def episode(item):
        await environment.start(Task(item.id, "", item.prompt, item.ground_truth))
        seen = []
        for message in item.right:
            if message["role"] == "assistant" and message.get("tool_calls"):
                seen.append((await environment.step(message)).messages[0]["content"])
        await environment.close()
        return seen

    for item in module.items(0)[:12]:
        first, second = asyncio.run(episode(item))
        assert item.extra["town"] in first and item.ground_truth in second and item.ground_truth not in first


@pytest.mark.slow
def test_lamps_are_switched_in_the_real_world_behind_mcp(tmp_path):
    from rufus_plugins.recipes.general_agent.prepare import prepare

    module = family("general_agent")
    items = module.items(0)[:6]
    module.write_world(tmp_path / "worlds", items)
    assert prepare(str(tmp_path / "worlds"), tmp_path / "rl")["kept"] == 6
    environment = registry().build("environment", "mcp", {"worlds": str(tmp_path / "worlds")})
    reward = registry().build("reward", "post_state", {})

    async def value(item, messages):
        task = Task(item.id, "", item.prompt, item.ground_truth, dict(item.extra))
        await environment.start(task)
        for message in messages:
            if message["role"] == "assistant":
                await environment.step(message)
        artifacts = await environment.finish()
        await environment.close()
        said = [{"role": "assistant", "content": "Done."}]
        return (await reward(Trajectory(task, messages=said, artifacts=artifacts))).value

    async def all_():
        return [(await value(i, i.right), await value(i, i.faulty)) for i in items]

    assert asyncio.run(all_()) == [(1.0, 0.0)] * 6
