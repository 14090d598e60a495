"""`rufus prepare search_agent`: question sets, and the generated world."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.search_agent import world
from rufus_plugins.recipes.search_agent.prepare import alternatives, prepare


def rows(output, split="train"):
    return pq.read_table(output / f"{split}.parquet").to_pylist()


def lines(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


def test_hotpot_wiki_and_nq_shapes_are_read(tmp_path):
    hotpot = {"id": "5a7", "question": "Which river?", "answer": "Rhine", "type": "bridge", "level": "hard"}
    nq = {"question": "who wrote it", "golden_answers": ["Ada", "Ada Lovelace"]}
    musique = {"question": "where is it", "answer": "Bonn", "answer_aliases": ["Bonn am Rhein"], "answerable": True}
    not_answerable = musique | {"question": "where is that", "answerable": False}
    manifest = prepare(lines(tmp_path / "q.jsonl", hotpot, nq, musique, not_answerable), tmp_path / "o")
    assert manifest["kept"] == 3 and manifest["dropped"] == {"other_part": 1}
    truths = [r["reward_model"]["ground_truth"] for r in rows(tmp_path / "o")]
    assert truths == ["Rhine", '["Ada", "Ada Lovelace"]', '["Bonn", "Bonn am Rhein"]']
    assert rows(tmp_path / "o")[0]["extra_info"]["kind"] == "bridge"


def test_questions_that_need_no_search_are_set_aside(tmp_path):
    records = [
        {"question": "Is Bonn a town?", "answer": "yes", "type": "comparison", "level": "easy"},
        {"question": "Is Bonn or Ulm older?", "answer": "Ulm", "type": "comparison", "level": "easy"},
        {"question": "Who?", "answer": "", "type": "", "level": ""},
        {"question": "What is it?", "answer": "long " * 40, "type": "", "level": ""},
        {"question": "When?", "answer": "1900", "type": "", "level": ""},
    ]
    data = lines(tmp_path / "q.jsonl", *records)
    manifest = prepare(data, tmp_path / "o")
    assert manifest["dropped"] == {"yes_no": 1, "answer_in_question": 1, "no_answer": 1, "long_answer": 1}
    assert prepare(data, tmp_path / "p", keep="yes_no")["kept"] == 2
    with pytest.raises(ConfigError, match="yes_no"):
        prepare(data, tmp_path / "r", keep="everything")


def test_alternatives_in_any_form():
    assert alternatives('["a", "b", "a"]') == ["a", "b"]
    assert alternatives("[sic] he said") == ["[sic] he said"]
    assert alternatives(1984) == ["1984"]


def test_every_answer_of_the_world_follows_from_the_documents_it_names():
    documents = {d["title"]: d["text"] for d in world.corpus(0)}
    assert len(documents) == len(world.corpus(0)) == 3 * world.SIZE
    for question in world.questions(0):
        texts = [documents[title] for title in question["titles"]]
        assert question["answers"][0] in texts[-1]
        for one, other in zip(question["titles"], texts, strict=False):
            assert one in other
        # each document names the next: the chain can be followed
        for text, nxt in zip(texts, question["titles"][1:], strict=False):
            assert nxt in text
        assert question["titles"][0] in question["question"]
        assert all(title not in question["question"] for title in question["titles"][1:])


def test_no_constant_answer_finds_much_in_the_world():
    asked = world.questions(0)
    counts = Counter(q["answers"][0] for q in asked)
    assert world.constant_baseline(asked) == max(counts.values()) / len(asked) < 0.02
    assert {q["type"] for q in asked} == {"one_hop", "two_hop", "three_hop"}


def test_the_sample_brings_its_corpus(tmp_path):
    manifest = prepare("sample", tmp_path / "o", count=50)
    assert manifest["kept"] == 50
    written = (tmp_path / "o-corpus/corpus.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == world.corpus(0)
