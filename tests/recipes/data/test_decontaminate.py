"""Planted contaminations in small corpora; every expected count is counted by hand or by the plain reading below."""

import json
import random

import numpy as np
import pytest

from rufus_plugins.cli import main
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.decontaminate import Decontaminate
from rufus_plugins.recipes.data.embedding import embedder, windows
from rufus_plugins.recipes.data.ngrams import BASE, grams, stream_of, word_hashes, words
from rufus_plugins.recipes.data.run import execute

QUESTIONS = [
    "A farmer keeps seventeen goats and sells them at market for eleven coins each; how many coins does he get?",
    "Which enzyme unwinds the double helix during replication, and in which direction does it travel along the strand?",
    "Two cyclists leave towns ninety miles apart at the same moment and ride towards each other until they meet.",
    "Determine the smallest positive integer whose square ends in the digits four four four when written in base ten.",
]
VOCABULARY = [f"{a}{b}" for a in ("lor", "mit", "sed", "quam", "ter", "vol", "nec", "pul") for b in "aeiou"]


def prose(rng, count=60):
    return " ".join(rng.choice(VOCABULARY) for _ in range(count))


def chat(*turns):
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def jsonl(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


@pytest.fixture
def bench(tmp_path):
    return jsonl(tmp_path / "bench.jsonl", [{"id": f"q{i}", "question": q} for i, q in enumerate(QUESTIONS)])


def run(tmp_path, records, bench, **fields):
    source = jsonl(tmp_path / "in.jsonl", records)
    out = tmp_path / "out.jsonl"
    manifest = execute(Decontaminate((f"b={bench}",), **fields), source, out, workers=1, overwrite=True)
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    return manifest, kept


def test_words_do_not_depend_on_case_punctuation_blanks_or_form():
    plain = words("dont panic the naive cafe has x2 for 12 strasse 1 2")
    assert (
        words("Don\u2019t PANIC!\tThe na\u00efve\u2014cafe\u0301 has x\u00b2 (for) \uff11\uff12 Stra\u00dfe: \u00bd")
        == plain
    )
    assert words("zero\u200bwidth soft\u00adhyphen") == [b"zerowidth", b"softhyphen"]
    assert words("\u6771\u4eac\u306f") == [c.encode() for c in "\u6771\u4eac\u306f"]
    assert words("\u0421af\u0435 m\u03b1p it\u2019s") == words("cafe map its") == words("Cafe&nbsp;map it&#39;s")
    assert words("\ud800 lone") == [b"lone"] and words("\u0661\u0662") == [b"12"]


@pytest.mark.parametrize("n", range(1, 14))
def test_ngrams_are_the_polynomial_of_their_words(n):
    hashes = word_hashes("one two three four five six seven eight nine ten eleven twelve")
    expected = []
    for at in range(len(hashes) - n + 1):
        value = 0
        for word in hashes[at : at + n].tolist():
            value = (value * BASE + word) % 2**64
        expected.append(value)
    assert grams(hashes, n).tolist() == expected


def test_streams_hold_each_ngram_of_the_conversation_and_of_each_role_alone():
    rng = random.Random(0)
    for _ in range(30):
        roles = [rng.choice("ab") for _ in range(rng.randint(1, 7))]
        turns = [np.array([rng.getrandbits(60) for _ in range(rng.randint(0, 20))], dtype=np.uint64) for _ in roles]
        have = {tuple(w) for w in np.lib.stride_tricks.sliding_window_view(
            np.concatenate([*stream_of(turns, roles, 4), np.zeros(4, dtype=np.uint64)]), 4).tolist()}  # fmt: skip
        for names in ({"a", "b"}, {"a"}, {"b"}):
            joined = [w for turn, role in zip(turns, roles, strict=True) if role in names for w in turn.tolist()]
            for at in range(len(joined) - 3):
                assert tuple(joined[at : at + 4]) in have


def test_verbatim_changed_and_split_contaminations_are_found_and_nothing_else(tmp_path, bench):
    rng = random.Random(1)
    q = QUESTIONS[0].split()
    dirty = [
        chat(("user", prose(rng) + " " + QUESTIONS[0] + " " + prose(rng)), ("assistant", "187")),
        chat(("user", QUESTIONS[1].upper().replace(" ", " - ")), ("assistant", prose(rng))),
        chat(("user", " ".join(q[:9])), ("assistant", prose(rng)), ("user", " ".join(q[9:]))),
        chat(("user", " ".join(q[:5])), ("assistant", "Go on."), ("user", " ".join(q[5:10])), ("assistant", "And?"),
             ("user", " ".join(q[10:14])), ("assistant", "Yes?"), ("user", " ".join(q[14:]))),
        chat(("user", "Solve."), ("assistant", "First I recall: " + QUESTIONS[3])),
        {"prompt": [{"role": "user", "content": QUESTIONS[2]}], "data_source": "math"},
        {"conversations": [{"from": "human", "value": QUESTIONS[2]}, {"from": "gpt", "value": "ok"}]},
        {"instruction": "Answer.", "input": QUESTIONS[3], "output": "38"},
    ]  # fmt: skip
    clean = [chat(("user", prose(rng)), ("assistant", prose(rng))) for _ in range(40)]
    manifest, kept = run(tmp_path, dirty + clean, bench)
    assert kept == clean
    assert manifest["removed"] == {"first_passes": 8, "review": 0, "all": 8}
    assert manifest["set_aside"] == {"contaminated_sample": 8}


def test_the_review_counts_what_the_first_passes_missed(tmp_path, bench):
    rng = random.Random(2)
    q = [text.split() for text in QUESTIONS]
    whole = [chat(("user", text)) for text in QUESTIONS]
    # every window of eight words of a question, alone: one sampled n-gram means that the first pass finds few of them
    parts = [
        chat(("user", f"{prose(rng)} {' '.join(w[i : i + 8])} {prose(rng)}")) for w in q for i in range(len(w) - 7)
    ]
    manifest, kept = run(tmp_path, [*whole, *parts], bench, samples=1, exhaustive=("b",))
    assert kept == []
    table = {row["pass"]: row for row in manifest["passes"]}
    assert table["8-gram samples"]["removed"] == 4 + 4  # each question, and the one window that was sampled of it
    assert table["all 8-grams"]["removed"] == len(parts) - 4
    assert manifest["removed"] == {"first_passes": 8, "review": len(parts) - 4, "all": len(parts) + 4}


def test_a_record_counts_for_the_first_benchmark_and_is_matched_by_all(tmp_path, bench):
    other = jsonl(tmp_path / "other.jsonl", [{"problem": QUESTIONS[0]}])
    source = jsonl(tmp_path / "in.jsonl", [chat(("user", QUESTIONS[0])), chat(("user", QUESTIONS[1]))])
    tool = Decontaminate((f"first={other}", f"second={bench}"))
    manifest = execute(tool, source, tmp_path / "o.jsonl", workers=1)
    assert [(r["benchmark"], r["matched"], r["removed"]) for r in manifest["passes"]] == [
        ("first", 1, 1),
        ("second", 2, 1),
    ]


def test_the_template_of_a_benchmark_and_number_rows_are_not_matched(tmp_path):
    template = "Answer the following multiple choice question and end with the letter of the right option only:"
    items = [{"question": f"{template} {' '.join(random.Random(i).sample(VOCABULARY, 12))}"} for i in range(9)]
    bench = jsonl(tmp_path / "mc.jsonl", [*items, {"question": "1 2 3 4 5 6 7 8 9 10 11 12"}, {"question": "2 + 2 ="}])
    records = [
        chat(("user", f"{template} what is the capital of France, A or B?")),
        chat(("user", "count: 1 2 3 4 5 6 7 8 9 10 11 12 13")),
        chat(("user", items[4]["question"].removeprefix(template))),
        chat(("user", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")),
    ]
    manifest, kept = run(tmp_path, records, bench)
    assert kept == records[:2]  # the number row is found as a whole turn only
    assert manifest["benchmarks"] == [{"name": "b", "items": 11, "too_short": 1, "unreadable": 0}]


def test_no_output_holds_text_of_a_benchmark(tmp_path, bench):
    records = [chat(("user", "Please: " + q)) for q in QUESTIONS] + [chat(("user", "good " * 30))]
    run(tmp_path, records, bench, exhaustive=("b",), retrieval=("b",))
    outputs = [p for p in tmp_path.iterdir() if p.name.startswith("out.jsonl")]
    assert {p.name for p in outputs} == {
        f"out.jsonl{s}" for s in ("", ".rejected.jsonl", ".manifest.json", ".matches.jsonl", ".review.jsonl")
    }
    text = " ".join(p.read_text() for p in outputs)
    for word in ("goats", "enzyme", "cyclists", "smallest"):
        assert word not in text
    assert '"q0"' not in text and "(id q0)" in text  # items are named


PARAPHRASES = [
    "How many coins does a farmer get who sells his seventeen goats at the market, each one for eleven coins?",
    "During replication, which enzyme unwinds the double helix, and what direction of the strand is its travel?",
]


def test_near_paraphrases_are_listed_for_review_and_unrelated_text_is_not(tmp_path, bench):
    rng = random.Random(3)
    unrelated = [
        chat(
            ("user", "How many days does the moon take to travel around the earth, and in which direction does it go?")
        ),
        chat(("user", "What do farmers in the highlands sell at market in a good year?")),
        chat(("user", prose(rng))),
    ]
    records = [chat(("user", p), ("assistant", "hm")) for p in PARAPHRASES] + unrelated
    manifest, kept = run(tmp_path, records, bench, retrieval=("b",), remove_at=2.0)
    review = [json.loads(line) for line in (tmp_path / "out.jsonl.review.jsonl").read_text().splitlines()]
    assert kept == records and manifest["removed"]["all"] == 0
    assert [(r["record"], r["item"]) for r in review] == [
        ("in.jsonl:1", "bench.jsonl:1 (id q0)"), ("in.jsonl:2", "bench.jsonl:2 (id q1)"),
    ]  # fmt: skip
    assert all(0.7 <= r["score"] < 1 and r["decision"] == "keep" for r in review)


def test_a_reviewed_list_decides(tmp_path, bench):
    records = [chat(("user", p)) for p in PARAPHRASES]
    run(tmp_path, records, bench, retrieval=("b",), remove_at=2.0)
    pairs = [json.loads(line) for line in (tmp_path / "out.jsonl.review.jsonl").read_text().splitlines()]
    pairs[1]["decision"] = "remove"
    decided = jsonl(tmp_path / "decided.jsonl", pairs)
    fields = {"retrieval": ("b",), "remove_at": 0.5, "review_at": 0.5, "decisions": str(decided)}
    manifest, kept = run(tmp_path, records, bench, **fields)
    assert kept == records[:1]  # kept by the person although it scores above remove_at
    assert manifest["removed"] == {"first_passes": 0, "review": 1, "all": 1}


def test_a_paraphrase_inside_a_long_turn_is_found(tmp_path, bench):
    rng = random.Random(4)
    long = f"{prose(rng, 150)} {PARAPHRASES[0]} {PARAPHRASES[0]} {prose(rng, 150)}"
    assert len(windows(long)) > 8
    run(tmp_path, [chat(("user", long))], bench, retrieval=("b",), review_at=0.5)
    assert (tmp_path / "out.jsonl.review.jsonl").read_text().count('"record_digest"') >= 1


def test_a_real_static_model_finds_synonyms(tmp_path, bench):
    from model2vec import StaticModel
    from tokenizers import Tokenizer, models, pre_tokenizers

    groups = [["goats", "kids"], ["farmer", "peasant"], ["sells", "vends"], ["coins", "pieces"], ["market", "fair"],
              ["seventeen"], ["eleven"], ["keeps", "owns"]]  # fmt: skip
    others = sorted({w.decode() for q in QUESTIONS for w in words(q)} - {w for g in groups for w in g})
    vocabulary, vectors, rng = {"[UNK]": 0}, [np.zeros(64)], np.random.default_rng(0)
    for group in [*groups, *([w] for w in others)]:
        direction = rng.normal(size=64) * (1.0 if group in groups else 0.2)
        for word in group:
            vocabulary[word] = len(vectors)
            vectors.append(direction)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    StaticModel(np.array(vectors, dtype=np.float32), tokenizer).save_pretrained(str(tmp_path / "model"))
    records = [
        chat(("user", "The peasant owns seventeen kids and vends each one for eleven pieces down at the fair.")),
        chat(("user", "Which enzyme is in the market for eleven strands?")),
    ]
    name = f"model2vec:{tmp_path / 'model'}"
    run(tmp_path, records, bench, retrieval=("b",), embedder=name, review_at=0.85, remove_at=2.0)
    review = [json.loads(line) for line in (tmp_path / "out.jsonl.review.jsonl").read_text().splitlines()]
    assert [(r["record"], r["item"]) for r in review] == [("in.jsonl:1", "bench.jsonl:1 (id q0)")]


def test_the_output_is_the_same_in_one_process_and_in_two(tmp_path, bench):
    rng = random.Random(5)
    records = [
        chat(("user", prose(rng)), ("assistant", QUESTIONS[i % 4] if i % 7 == 0 else prose(rng))) for i in range(300)
    ]
    source = jsonl(tmp_path / "in.jsonl", records)
    made = []
    for workers in (1, 2):
        out = tmp_path / f"{workers}.jsonl"
        tool = Decontaminate((f"b={bench}",), retrieval=("b",))
        tool.chunk_records = 50
        execute(tool, source, out, workers=workers)
        made.append([out.with_name(out.name + s).read_bytes() for s in ("", ".rejected.jsonl", ".matches.jsonl")])
    assert made[0] == made[1] and len(made[0][1].splitlines()) == 43


def test_unreadable_lines_are_set_aside_and_a_missing_benchmark_is_said(tmp_path, bench, capsys):
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"text": "fine words"}\n{"text": "\xff\xfe"}\n[1]\n{"text": "cut')
    out = tmp_path / "o.jsonl"
    common = ["data", "decontaminate", "--input", str(source), "--output", str(out), "--benchmarks"]
    assert main([*common, f"b={bench}"]) == 0
    manifest = json.loads((tmp_path / "o.jsonl.manifest.json").read_text())
    assert manifest["counts"] == {"read": 4, "written": 1, "set_aside": 3}
    for wrong, said in (
        ("b=nowhere.jsonl", "no file nowhere.jsonl"),
        ("b", "NAME=FILE"),
        (f"b={source}#answer", "#column"),
    ):
        assert main([*common, wrong, "--overwrite"]) == 1
        assert said in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no such benchmark"):
        Decontaminate((f"b={bench}",), exhaustive=("c",))


def test_items_of_a_benchmark_that_cannot_be_read_are_said_aloud(tmp_path, bench, capsys):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "fine words"}\n')
    with bench.open("ab") as damaged:
        damaged.write(b'{"question": "\xff"}\n{"answer": 7}\n{"question": "cut')
    execute(Decontaminate((f"b={bench}",)), source, tmp_path / "o.jsonl")
    assert "are not screened for (cut_off 1, no_question 1, not_utf8 1)" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "o.jsonl.manifest.json").read_text())
    assert manifest["benchmarks"][0]["unreadable"] == 3


def test_embedders_that_do_not_exist_are_named(tmp_path):
    for name, said in (
        ("word2vec", "There is no embedder"),
        (f"model2vec:{tmp_path}", "cannot load"),
        ("sentence-transformers:x", "pip install sentence-transformers"),
        ("json:nothing", "json"),
    ):
        with pytest.raises(ConfigError, match=said):
            embedder(name)


def test_records_of_no_shape_are_read_as_far_as_they_go(tmp_path, bench):
    turns = [None, 1, {"role": None}, {"content": {"a": 1}}, {"content": [5, {"text": None}]}, {"tool_calls": 5}]
    calls = [None, {"function": None}, {"function": {"arguments": {"text": QUESTIONS[0]}}}]
    odd = [{}, {"messages": turns}, {"prompt": {"a": 1}}, {"text": "\ud800"}, {"messages": 7, "x": [[1], {"value": 2}]}]
    hidden = [{"messages": [{"role": "assistant", "tool_calls": calls}]}, {"text": "\ud800 " + QUESTIONS[1]}]
    manifest, kept = run(tmp_path, [*odd, *hidden], bench, retrieval=("b",))
    assert manifest["set_aside"] == {"contaminated_sample": 2, "bad_text": 1} and len(kept) == 4


def test_no_part_of_what_is_trained_on_hides_a_question(tmp_path, bench):
    spread = QUESTIONS[0].replace(" ", "\n")  # in JSON text the line breaks are letters
    plain = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    asked = [{"role": "user", "content": spread}, plain[1]]
    given = {"name": "f", "arguments": json.dumps({"q": spread})}
    hidden = [
        {"system": QUESTIONS[0], "messages": plain},
        {"system_prompt": QUESTIONS[0], "conversations": [{"from": "human", "value": "x"}]},
        {"messages": json.dumps(asked)},
        {"instruction": "Go on.", "output": "y", "history": [[QUESTIONS[0], "a"]]},
        {"messages": [plain[0], {"role": "assistant", "content": "", "function_call": given}]},
        {"messages": [plain[0], {"role": "assistant", "content": "", "tool_calls": [{"function": given}]}]},
        {"messages": [plain[0], {"role": "tool", "content": {"found": [{"page": spread}]}}]},
        {"messages": [{"role": "user", "content": QUESTIONS[0].replace("a", "\u0430").replace("o", "\u043e")}]},
    ]
    kept = [{"system": "x", "messages": plain}, {"messages": json.dumps(plain)}, {"text": "[1] {a}"}]
    manifest, left = run(tmp_path, hidden + kept, bench)
    assert left == kept and manifest["set_aside"] == {"contaminated_sample": len(hidden)}


def test_a_record_without_any_of_the_named_columns_is_set_aside_and_not_called_clean(tmp_path, bench):
    records = [{"question": QUESTIONS[0]}, {"prompt": "Nothing of the kind."}, {"prompt": QUESTIONS[1]}]
    manifest, kept = run(tmp_path, records, bench, columns=("prompt",))
    assert kept == [records[1]] and manifest["set_aside"] == {"no_columns": 1, "contaminated_sample": 1}
