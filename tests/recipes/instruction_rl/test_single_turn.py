"""Generated prompts: every set of constraints can be followed, and known conflicts are conflicts."""

import itertools
import json
import random

import pyarrow.parquet as pq
import pytest

from rufus_plugins.recipes.instruction_rl import requests
from rufus_plugins.recipes.instruction_rl.catalog import KINDS, Atomic
from rufus_plugins.recipes.instruction_rl.conflicts import PAIRS, SLOTS, conflict
from rufus_plugins.recipes.instruction_rl.prepare import prepare
from rufus_plugins.recipes.instruction_rl.single_turn import prompts
from rufus_plugins.recipes.instruction_rl.witness import witness
from rufus_plugins.rewards import constraints
from rufus_plugins.rewards.rubric_records import read_rubrics


def rows(output, split="train"):
    return pq.read_table(output / f"{split}.parquet").to_pylist()


def lines(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


def c(name, **kwargs):
    return Atomic(name, kwargs, name)


def test_every_prompt_has_two_to_six_constraints_and_a_witness_that_all_checkers_accept():
    made = list(prompts(100, 11))
    assert {len(p.constraints) for p in made} == {2, 3, 4, 5, 6}
    for prompt in made:
        for rubric in read_rubrics({"rubrics": [k.as_rubric() for k in prompt.constraints]}):
            assert rubric.check(prompt.witness) is None
        assert all(k.text in prompt.text for k in prompt.constraints)


def test_each_constraint_occurs_and_each_value_it_needs_is_in_its_text():
    seen = {k.id for p in prompts(150, 2) for k in p.constraints}
    assert seen == set(KINDS) <= set(constraints.ids())
    rng = random.Random(0)
    for kind in KINDS.values():
        made = kind.make(rng, "Write about rivers.")
        for value in made.kwargs.values():
            for part in value if isinstance(value, list) else [value]:
                shown = f"{part}" if made.id != "count:keywords_multiple" else part
                if made.id != "sentence:keyword" or isinstance(part, str):
                    assert shown in made.text, made


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_constraints_are_either_a_known_conflict_or_have_a_witness(seed):
    rng = random.Random(seed)
    for one, other in itertools.combinations(KINDS.values(), 2):
        request = requests.draw(rng)
        pair = [one.make(rng, request), other.make(rng, request)]
        if conflict(pair, request) is None:
            assert witness(pair) is not None, pair


@pytest.mark.parametrize(
    "pair",
    [
        (c("change_case:english_capital"), c("change_case:english_lowercase")),
        (c("startend:quotation"), c("detectable_format:json_format")),
        (c("change_case:english_lowercase"), c("count:person_names", N=2)),
        (
            c("change_case:english_lowercase"),
            c("change_case:capital_word_frequency", capital_frequency=2, capital_relation="at least"),
        ),
        (c("punctuation:no_comma"), c("combination:repeat_prompt", prompt_to_repeat="Write, then read.")),
        (
            c("keywords:forbidden_words", forbidden_words=["good"]),
            c("startend:end_checker", end_phrase="This is good."),
        ),
        (
            c("length_constraints:number_words", relation="less than", num_words=20),
            c("count:unique_word_count", N=30),
        ),
        (
            c("keywords:letter_frequency", letter="z", let_frequency=2, let_relation="less than"),
            c("keywords:existence", keywords=["puzzle"]),
        ),
        (
            c("length_constraints:nth_paragraph_first_word", num_paragraphs=2, nth_paragraph=1, first_word="often"),
            c("combination:repeat_prompt", prompt_to_repeat="Write about rivers."),
        ),
    ],
)
def test_conflicts_are_found_and_no_witness_exists(pair):
    assert conflict(list(pair)) is not None
    assert witness(list(pair)) is None


def test_a_count_that_does_not_add_up_is_a_conflict_whatever_its_parts():
    few = c("count:word_count_range", min_words=10, max_words=24)
    parts = [c("count:person_names", N=9), c("count:pronouns", N=9), c("words:palindrome")]
    assert all(conflict([few, part]) is None for part in parts)
    assert "at least 28 words" in conflict([few, *parts])


def test_the_table_names_existing_constraints_only():
    named = {name for pair in PAIRS for name in pair} | {name for slot in SLOTS.values() for name in slot}
    assert named <= set(constraints.ids())


def test_the_sample_goes_to_parquet_and_is_the_same_every_time(tmp_path):
    for name in ("a", "b"):
        assert prepare("sample", tmp_path / name, count=60, seed=4)["kept"] == 60
    assert (tmp_path / "a/train.parquet").read_bytes() == (tmp_path / "b/train.parquet").read_bytes()
    row = rows(tmp_path / "a")[0]
    assert len(read_rubrics(row["reward_model"]["ground_truth"])) == int(row["extra_info"]["rubrics"])
    assert "witness" not in json.dumps(row)


def test_requests_get_constraints_and_own_constraints_are_kept(tmp_path):
    requests_ = lines(tmp_path / "r.jsonl", *({"request": text} for text in requests.everything()[:10]))
    assert prepare(requests_, tmp_path / "r")["kept"] == 10
    ifeval = {
        "prompt": "Write without commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{"num_words": None}],
    }
    optional = {"prompt": "x", "rubrics": [{"id": "punctuation:no_comma", "kwargs": {}, "weight": 2}]}
    unknown = {"prompt": "y", "rubrics": [{"id": "no:such", "kwargs": {}}]}
    none = {"prompt": "z", "rubrics": []}
    own = lines(tmp_path / "o.jsonl", ifeval, optional, unknown, none)
    manifest = prepare(own, tmp_path / "o")
    assert manifest["kept"] == 1 and manifest["dropped"] == {"bad_rubrics": 3}


def test_a_request_with_hostile_text_still_gets_constraints_that_can_be_followed(tmp_path):
    hostile = [
        'Write "this", {braces} and \\boxed{7}, [x] <<y>>.',
        "A\u0000B, c?" * 30,
        "\u202eabc, 1 2 3",
        "half \ud800",
    ]
    data = lines(tmp_path / "h.jsonl", *({"request": text} for text in hostile))
    manifest = prepare(data, tmp_path / "o", seed=9)
    assert manifest["kept"] == 3 and manifest["dropped"] == {"bad_text": 1}
