"""`rufus prepare reasoning_rl`: every row's gold is right by its own reward, and nothing is lost without a reason."""

import asyncio
import json

import pyarrow.parquet as pq
import pytest

from rufus_plugins import cli
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.reasoning_rl import puzzles
from rufus_plugins.recipes.reasoning_rl.prepare import prepare
from rufus_plugins.rewards.math_answer import MathAnswer
from rufus_plugins.rewards.puzzle import Puzzle
from rufus_plugins.rewards.science_answer import ScienceAnswer
from rufus_plugins.types import Task, Trajectory


def rows(output, split="train"):
    return pq.read_table(output / f"{split}.parquet").to_pylist()


def lines(path, *records):
    path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records))
    return str(path)


def scores(reward, pairs):
    async def all_():
        return await asyncio.gather(
            *(
                reward(Trajectory(Task("", "", (), gold), messages=[{"role": "assistant", "content": said}]))
                for gold, said in pairs
            )
        )

    return [score.value for score in asyncio.run(all_())]


def test_the_sample_has_all_three_kinds_and_each_gold_gets_its_reward(tmp_path):
    manifest = prepare("sample", tmp_path / "o", count=34)
    assert manifest["kept"] == 102 and manifest["dropped"] == {}
    found = rows(tmp_path / "o")
    kinds = {kind: [r for r in found if r["data_source"].startswith(kind)] for kind in ("math", "science", "puzzle")}
    assert [len(kinds[k]) for k in ("math", "science", "puzzle")] == [34, 34, 34]
    gold = [r["reward_model"]["ground_truth"] for r in kinds["math"]]
    assert scores(MathAnswer(), [(g, f"\\boxed{{{g}}}") for g in gold]) == [1.0] * 34
    assert sum(scores(MathAnswer(), [(g, f"\\boxed{{{g}+1}}") for g in gold])) == 0
    gold = [r["reward_model"]["ground_truth"] for r in kinds["science"]]
    assert scores(ScienceAnswer(), [(g, f"Answer: {g}") for g in gold]) == [1.0] * 34


def test_generated_golds_are_right_by_another_computation(tmp_path):
    import re

    prepare("sample", tmp_path / "o", count=60, puzzles=0)
    checked = 0
    for row in rows(tmp_path / "o"):
        text, gold = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]
        if found := re.search(r"when \$(\d+)\^\{(\d+)\}\$ is divided by (\d+)", text):
            base, power, modulus = map(int, found.groups())
            value = 1
            for _ in range(power):
                value = value * base % modulus
            assert int(gold) == value
            checked += 1
        if found := re.search(r"sequence is (\d+) and its difference is (\d+).*first (\d+) terms", text):
            first, step, terms = map(int, found.groups())
            assert int(gold) == sum(first + step * i for i in range(terms))
            checked += 1
        if found := re.search(r"body of (\d+) kg .* of (\d+) m/s", text):
            assert gold == f"{int(found[1]) * int(found[2])} N"
            checked += 1
    assert checked >= 30


def test_puzzles_are_the_same_for_the_same_seed_and_their_own_answers_count(tmp_path):
    for name in ("a", "b"):
        prepare("puzzles", tmp_path / name, puzzles=34, seed=5)
    assert (tmp_path / "a/train.parquet").read_bytes() == (tmp_path / "b/train.parquet").read_bytes()
    found = rows(tmp_path / "a")
    truths = [json.loads(r["reward_model"]["ground_truth"]) for r in found]
    pairs = [(t, f"<answer>{t['entry']['answer']}</answer>") for t in truths if isinstance(t["entry"]["answer"], str)]
    right = scores(Puzzle(), pairs)
    assert len(right) >= 30
    assert [t["dataset"] for (t, _), value in zip(pairs, right, strict=True) if value < 1] == []
    assert sum(scores(Puzzle(), [(t, "<answer>no</answer>") for t, _ in pairs])) == 0


def test_another_seed_gives_other_puzzles():
    one, other = ([i.record["entry"]["question"] for _, i in puzzles.records(34, seed)] for seed in (1, 2))
    assert sum(a == b for a, b in zip(one, other, strict=True)) <= 3


def test_public_formats_are_told_apart_by_their_columns(tmp_path):
    deepscaler = {"problem": "What is 1+1?", "answer": "2", "solution": "Well."}
    assert prepare(lines(tmp_path / "a.jsonl", deepscaler), tmp_path / "a")["data_sources"] == {"math/a": 1}
    dapo = {
        "prompt": [{"role": "user", "content": "What is 2+2? Put it in \\boxed{}."}],
        "reward_model": {"ground_truth": "4", "style": "rule"},
        "data_source": "math_dapo",
    }
    prepare(lines(tmp_path / "b.jsonl", dapo), tmp_path / "b")
    assert rows(tmp_path / "b")[0]["prompt"][0]["content"].count("boxed") == 1
    solution = {"problem": "What is 3+3?", "solution": "It is \\boxed{6}."}
    prepare(lines(tmp_path / "c.jsonl", solution), tmp_path / "c")
    assert rows(tmp_path / "c")[0]["reward_model"]["ground_truth"] == "6"
    sciq = {"question": "What?", "correct_answer": "ion", "distractor1": "a", "distractor2": "b", "distractor3": "c"}
    prepare(lines(tmp_path / "d.jsonl", sciq), tmp_path / "d")
    assert rows(tmp_path / "d")[0]["data_source"] == "science/d"


def test_gsm8k_needs_what_follows_the_hashes(tmp_path):
    good = {"question": "How many?", "answer": "He has 3.\n#### 1,234"}
    bad = {"question": "How many more?", "answer": "He has 3."}
    manifest = prepare(lines(tmp_path / "g.jsonl", good, bad), tmp_path / "g", source="gsm8k")
    assert manifest["dropped"] == {"no_answer": 1}
    assert rows(tmp_path / "g")[0]["reward_model"]["ground_truth"] == "1,234"


def test_what_no_matcher_can_compare_is_set_aside(tmp_path):
    records = [
        {"problem": "Prove it.", "answer": "See the proof that every even number is the sum of two primes here"},
        {"problem": "Prove it again.", "answer": "x" * 300},
        {"problem": "", "answer": "1"},
        {"problem": "No answer?", "answer": None},
        {"problem": "Half a pair \ud800?", "answer": "1"},
        {"problem": "what IS  1+1?", "answer": "2"},
        {"problem": "What is 1+1?", "answer": "2"},
        b"\xff\xfe not utf8",
        b'{"problem": "cut off',
    ]
    manifest = prepare(lines(tmp_path / "x.jsonl", *records), tmp_path / "o")
    assert manifest["kept"] == 1
    assert manifest["dropped"] == {
        "prose_answer": 1, "long_answer": 1, "no_question": 1, "no_answer": 1, "bad_text": 1, "duplicate": 1,
        "not_utf8": 1, "bad_json": 1,
    }  # fmt: skip
    aside = [json.loads(line) for line in (tmp_path / "o/set_aside.jsonl").read_text().splitlines()]
    assert sum(manifest["dropped"].values()) == len(aside) and all(line["where"] for line in aside)


def test_unknown_columns_sources_and_files_are_said(tmp_path):
    with pytest.raises(ConfigError, match="no source of the list has"):
        prepare(lines(tmp_path / "x.jsonl", {"frage": "?", "antwort": "!"}), tmp_path / "o")
    with pytest.raises(ConfigError, match="the list has deepscaler"):
        prepare(str(tmp_path / "x.jsonl"), tmp_path / "o", source="nosuch")
    with pytest.raises(ConfigError, match="no file"):
        prepare("nosuch.jsonl", tmp_path / "o")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(ConfigError, match="empty"):
        prepare(str(tmp_path / "empty.jsonl"), tmp_path / "o")
    (tmp_path / "bad.yaml").write_text("sources: [")
    with pytest.raises(ConfigError, match="no list of sources"):
        prepare(str(tmp_path / "x.jsonl"), tmp_path / "o", sources=str(tmp_path / "bad.yaml"))
    assert not (tmp_path / "o").exists()


def test_a_record_of_other_columns_costs_itself_only(tmp_path):
    good = [{"problem": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(3)]
    data = lines(
        tmp_path / "x.jsonl", {"weird": {"a": 1}}, good[0], {}, good[1], {"problem": ["?"], "answer": {}}, good[2]
    )
    manifest = prepare(data, tmp_path / "o")
    assert manifest["kept"] == 3 and manifest["dropped"] == {"unknown_columns": 2, "no_question": 1}


def test_two_meanings_of_the_same_columns_need_a_name(tmp_path):
    listed = tmp_path / "s.yaml"
    listed.write_text(
        "sources:\n  a: {kind: math, hub: x/a, columns: {question: q, answer: a}}\n"
        "  b: {kind: science, hub: x/b, columns: {question: q, answer: a}}\n"
    )
    data = lines(tmp_path / "x.jsonl", {"q": "What is water?", "a": "a liquid"})
    with pytest.raises(ConfigError, match="--source NAME"):
        prepare(data, tmp_path / "o", sources=str(listed))
    assert prepare(data, tmp_path / "o", sources=str(listed), source="b")["kept"] == 1


def test_the_held_out_share_is_chosen_by_the_question(tmp_path):
    prepare("sample", tmp_path / "a", count=100, puzzles=0, heldout_share=0.3)
    prepare("sample", tmp_path / "b", count=60, puzzles=0, heldout_share=0.3)
    held = [{r["prompt"][0]["content"] for r in rows(tmp_path / n, "heldout")} for n in "ab"]
    assert 40 <= len(held[0]) <= 80 and held[1] <= held[0]


def test_the_command_line_says_what_became_of_the_records(tmp_path, capsys):
    args = ["prepare", "reasoning_rl", "--input", "sample", "--output", str(tmp_path / "o"), "--count", "5"]
    assert cli.main(args) == 0
    assert "15 records read" in capsys.readouterr().out


@pytest.mark.slow
def test_puzzles_do_not_depend_on_the_process(tmp_path):
    import os
    import subprocess
    import sys

    count = len(puzzles.DATASETS)
    code = (
        "import hashlib, json; from rufus_plugins.recipes.reasoning_rl import puzzles as p; "
        f"made = [json.dumps(p._plain(i.record)) for _, i in p.records({count}, 7)]; "
        "print([hashlib.sha256(text.encode()).hexdigest() for text in made])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and said.pop().count(b"'") == 2 * count
