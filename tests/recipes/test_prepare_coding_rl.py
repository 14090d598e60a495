"""`rufus prepare coding_rl`: public formats in, verl's Parquet out, and every record accounted for."""

import base64
import gzip
import json
import pickle
import zlib
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rufus_plugins import cli
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.coding_rl.prepare import prepare

PRIME = {
    "data_source": "taco",
    "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Print the double of n."}],
    "ability": "code",
    "reward_model": {
        "style": "rule",
        "ground_truth": json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]}),
    },
    "extra_info": {"index": 7, "split": "train"},
}
CASES = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
LIVECODEBENCH = {
    "question_id": "abc_1",
    "question_content": "Add two numbers.",
    "starter_code": "class Solution:\n    def add(self, a, b):\n        ",
    "public_test_cases": json.dumps(CASES),
    "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES * 3)))).decode(),
    "metadata": json.dumps({"func_name": "add"}),
}
MBPP = {
    "task_id": 11,
    "text": "Write a function that squares a number.",
    "test_list": ["assert square(2) == 4", "assert square(-3) == 9"],
    "test_setup_code": "import math",
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def inc(x):\n    """Adds one."""\n',
    "test": "def check(candidate):\n    assert candidate(1) == 2\n",
    "entry_point": "inc",
}


def jsonl(path, *records):
    lines = (r if isinstance(r, bytes) else json.dumps(r).encode() for r in records)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def rows(output, split="train"):
    return pq.read_table(output / f"{split}.parquet").to_pylist()


def set_aside(output):
    return [json.loads(line) for line in (output / "set_aside.jsonl").read_text().splitlines()]


def test_each_format_becomes_a_row_that_verl_reads_and_the_reward_reads(tmp_path):
    from rufus_plugins.rewards.code_formats import read_tests

    source = jsonl(tmp_path / "mixed.jsonl", PRIME, LIVECODEBENCH, MBPP, HUMANEVAL)
    manifest = prepare(source, tmp_path / "out")
    assert manifest["formats"] == {"assertions": 1, "humaneval": 1, "livecodebench": 1, "prime": 1}
    got = rows(tmp_path / "out")
    assert [r["extra_info"]["id"] for r in got][1:] == ["abc_1", "11", "HumanEval/0"]
    assert [r["extra_info"]["index"] for r in got] == [0, 1, 2, 3]
    assert [r["data_source"] for r in got] == ["taco", "livecodebench", "mixed", "mixed"]
    assert {r["ability"] for r in got} == {"code"} and {r["reward_model"]["style"] for r in got} == {"rule"}
    counts = [len(read_tests(r["reward_model"]["ground_truth"], limit=50).tests) for r in got]
    assert counts == [2, 4, 2, 1]
    assert manifest["tests"] == {"total": 9, "fewest": 1, "most": 4}


def test_a_given_prompt_is_kept_and_a_bare_statement_gets_starter_code_or_a_name_but_no_expected_result(
    tmp_path,
):
    prepare(jsonl(tmp_path / "a.jsonl", PRIME, LIVECODEBENCH, MBPP), tmp_path / "out")
    prime, livecodebench, mbpp = (r["prompt"] for r in rows(tmp_path / "out"))
    assert prime == PRIME["prompt"]
    assert "class Solution:" in livecodebench[0]["content"] and "```python" in livecodebench[0]["content"]
    assert "`square`" in mbpp[0]["content"] and "9" not in mbpp[0]["content"] and "assert" not in mbpp[0]["content"]


def test_a_set_up_stands_before_each_assertion(tmp_path):
    prepare(jsonl(tmp_path / "a.jsonl", MBPP), tmp_path / "out")
    [row] = rows(tmp_path / "out")
    tests = json.loads(row["reward_model"]["ground_truth"])
    assert tests == ["import math\nassert square(2) == 4", "import math\nassert square(-3) == 9"]


def test_packed_tests_are_unpacked_once_and_a_pickle_that_names_a_function_runs_nothing(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    packed = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    bomb = {**LIVECODEBENCH, "question_content": "Another.", "private_test_cases": packed}
    manifest = prepare(jsonl(tmp_path / "a.jsonl", LIVECODEBENCH, bomb), tmp_path / "out")
    assert manifest["kept"] == 1 and manifest["dropped"] == {"bad_tests": 1}
    assert not (tmp_path / "owned").exists()
    assert json.loads(rows(tmp_path / "out")[0]["reward_model"]["ground_truth"])["private_test_cases"] == CASES * 3


def test_every_bad_record_is_set_aside_with_its_reason_and_counted(tmp_path):
    def prime(statement, tests, **more):
        truth = tests if isinstance(tests, str) else json.dumps(tests)
        prompt = [{"role": "user", "content": statement}]
        return {**PRIME, "prompt": prompt, "reward_model": {"ground_truth": truth}, **more}

    good = {"inputs": ["1"], "outputs": ["1"]}
    bad = {
        "no_tests": [
            prime("a", {"inputs": [], "outputs": []}),
            prime("b", ""),
            {**MBPP, "test_list": []},
            {**MBPP, "test_list": None},
            {**LIVECODEBENCH, "public_test_cases": "[]", "private_test_cases": None},
        ],
        "bad_tests": [
            prime("c", "{not json"),
            prime("d", {"inputs": ["1", "2"], "outputs": ["1"]}),
            prime("e", {"inputs": 3, "outputs": 4}),
            {**MBPP, "test_list": [1, 2]},
            {**LIVECODEBENCH, "private_test_cases": "!!! no base64"},
            {**LIVECODEBENCH, "public_test_cases": json.dumps(["x"])},
        ],
        "duplicate": [prime("PRINT the\n  double of ｎ.", good)],
        "not_coding": [prime("f", good, ability="math")],
        "bad_prompt": [{**PRIME, "prompt": []}, {**PRIME, "prompt": [{"role": "user"}]}],
        "no_statement": [prime("  ", good), {"test_list": ["assert f() == 1"]}],
        "bad_text": [prime("half \ud83d", good)],
        "unknown_format": [{"instruction": "x", "response": "y"}, {}],
        "not_utf8": [json.dumps({**MBPP, "text": "né"}, ensure_ascii=False).encode("latin-1")],
        "bad_json": [b"{'single': 'quotes'}", b"[" * 100_000],
        "no_object": [b"[1]", b"null", b'"text"'],
    }
    flat = [record for records in bad.values() for record in records]
    manifest = prepare(jsonl(tmp_path / "a.jsonl", PRIME, *flat), tmp_path / "out")
    assert manifest["dropped"] == {reason: len(records) for reason, records in bad.items()}
    assert manifest["kept"] == 1 and manifest["records"] == 1 + len(flat)
    kept_out = set_aside(tmp_path / "out")
    assert Counter(line["reason"] for line in kept_out) == manifest["dropped"]
    assert [line["where"] for line in kept_out] == [f"a.jsonl:{n}" for n in range(2, 2 + len(flat))]
    assert all(line["detail"] for line in kept_out)


def test_the_first_record_with_tests_wins_among_equal_statements(tmp_path):
    without = {**MBPP, "test_list": []}
    other = {**MBPP, "task_id": 12, "text": MBPP["text"].upper()}
    manifest = prepare(jsonl(tmp_path / "a.jsonl", without, MBPP, other), tmp_path / "out")
    assert manifest["dropped"] == {"duplicate": 1, "no_tests": 1}
    assert rows(tmp_path / "out")[0]["extra_info"]["id"] == "11"


def test_parquet_gzip_and_a_directory_of_both_read_like_jsonl(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist([PRIME]), tmp_path / "in" / "a.parquet")
    with gzip.open(tmp_path / "in" / "b.jsonl.gz", "wb") as stream:
        stream.write(json.dumps(MBPP).encode())
    manifest = prepare(str(tmp_path / "in"), tmp_path / "out")
    assert manifest["formats"] == {"assertions": 1, "prime": 1}


def test_a_byte_order_mark_and_blank_lines_do_not_matter(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(MBPP).encode() + b"\r\n\r\n   \n")
    assert prepare(str(tmp_path / "a.jsonl"), tmp_path / "out")["records"] == 1


def test_a_line_that_the_file_breaks_off_in_is_set_aside_as_cut_off(tmp_path):
    whole = json.dumps(MBPP).encode()
    (tmp_path / "a.jsonl").write_bytes(whole + b"\n" + whole[:50])
    assert prepare(str(tmp_path / "a.jsonl"), tmp_path / "out")["dropped"] == {"cut_off": 1}


def whole_parquet(path):
    pq.write_table(pa.Table.from_pylist([PRIME] * 300), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", lambda p: b"", "is empty"),
        ("a.jsonl", lambda p: b"\n\n", "not one line is a JSON object"),
        ("a.jsonl", lambda p: b"\x89PNG\r\n\x1a\n" + bytes(range(128, 256)), "not one line is a JSON object"),
        ("a.jsonl", lambda p: "{}\n".encode("utf-16"), "UTF-16.*iconv"),
        ("a.json", lambda p: b'[{"a": 1}, {"a": ', r"cut off"),
        ("a.parquet", lambda p: b'{"a": 1}\n', "is no Parquet file"),
        ("a.parquet", lambda p: whole_parquet(p)[:-40], "cut off"),
        ("a.jsonl.gz", lambda p: gzip.compress(json.dumps(MBPP).encode() * 500)[:200], "cut off or damaged"),
        ("a.zip", lambda p: b"PK\x03\x04rest", "Unpack it first"),
        (
            "a.jsonl",
            lambda p: b'{"instruction": "x"}\n',
            r"no usable training record \(unknown_format 1\)\. The first is \S*a\.jsonl:1: .",
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_leaves_nothing_behind(tmp_path, name, content, message):
    path = tmp_path / "in" / name
    path.parent.mkdir()
    path.write_bytes(content(path))
    with pytest.raises(ConfigError, match=message):
        prepare(str(path), tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_an_empty_parquet_a_missing_file_and_an_empty_directory_say_so(tmp_path):
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    for source, message in (("none.parquet", "no rows"), ("nowhere.jsonl", "There is no file"), ("empty", "holds no")):
        with pytest.raises(ConfigError, match=message):
            prepare(str(tmp_path / source), tmp_path / "out")


def test_a_name_that_is_no_file_is_looked_for_on_the_hub_and_the_error_says_both(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no file nobody/nothing-here, and the hub dataset of this name"):
        prepare("nobody/nothing-here", tmp_path / "out")


def test_held_out_problems_are_chosen_by_statement_and_never_shared(tmp_path):
    records = [{**MBPP, "task_id": i, "text": f"Problem number {i}."} for i in range(400)]
    first = prepare(jsonl(tmp_path / "a.jsonl", *records), tmp_path / "one", heldout_share=0.25)
    prepare(jsonl(tmp_path / "b.jsonl", *reversed(records)), tmp_path / "two", heldout_share=0.25)
    ids = {split: {r["extra_info"]["id"] for r in rows(tmp_path / "one", split)} for split in ("train", "heldout")}
    assert 70 < len(ids["heldout"]) < 130 and not ids["heldout"] & ids["train"]
    assert {r["extra_info"]["id"] for r in rows(tmp_path / "two", "heldout")} == ids["heldout"]
    assert first["files"]["heldout.parquet"]["rows"] == len(ids["heldout"])
    with pytest.raises(ConfigError, match="below 1"):
        prepare(str(tmp_path / "a.jsonl"), tmp_path / "three", heldout_share=1.0)


def test_the_same_input_gives_the_same_bytes_and_an_earlier_output_is_replaced_whole(tmp_path):
    source = jsonl(tmp_path / "a.jsonl", PRIME, MBPP)
    prepare(source, tmp_path / "out", heldout_share=0.5)
    first = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
    prepare(source, tmp_path / "out", heldout_share=0.5)
    assert {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()} == first
    prepare(source, tmp_path / "out")
    assert not (tmp_path / "out" / "heldout.parquet").exists()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.jsonl", "out"]


def test_an_output_directory_with_other_things_is_not_touched(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds other things"):
        prepare(jsonl(tmp_path / "a.jsonl", MBPP), tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine"


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    from rufus_plugins.recipes.coding_rl import prepare as module

    def interrupted(record):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "take_apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(jsonl(tmp_path / "a.jsonl", MBPP), tmp_path / "out")
    assert [f.name for f in tmp_path.iterdir()] == ["a.jsonl"]


def test_many_rows_are_written_in_several_row_groups_in_order(tmp_path):
    records = [{**MBPP, "task_id": i, "text": f"Problem number {i}."} for i in range(1100)]
    prepare(jsonl(tmp_path / "a.jsonl", *records), tmp_path / "out")
    file = pq.ParquetFile(tmp_path / "out" / "train.parquet")
    assert file.num_row_groups == 3
    assert [r["extra_info"]["id"] for r in rows(tmp_path / "out")] == [str(i) for i in range(1100)]


def test_the_command_prints_a_table_of_what_became_of_the_records(tmp_path, capsys):
    source = jsonl(tmp_path / "a.jsonl", PRIME, PRIME, {"x": 1})
    assert cli.main(["prepare", "coding_rl", "--input", source, "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "3 records read" in shown and "set aside: duplicate" in shown and "kept in train.parquet" in shown


def test_a_wrong_stage_or_input_is_explained_without_a_traceback(tmp_path, capsys):
    assert cli.main(["prepare", "codding_rl", "--input", "x", "--output", str(tmp_path / "o")]) == 1
    assert "Did you mean 'coding_rl'?" in capsys.readouterr().err
    assert cli.main(["prepare", "coding_rl", "--input", "nowhere.jsonl", "--output", str(tmp_path / "o")]) == 1
    error = capsys.readouterr().err
    assert "There is no file nowhere.jsonl" in error and "Traceback" not in error


@pytest.mark.parametrize("test", ["f(1)", "assert f(1 ==", "def helper():\n    assert f(1) == 1"])
def test_assertions_that_the_reward_could_not_score_are_set_aside(tmp_path, test):
    record = {"question": "Write f.", "test_list": ["assert f(1) == 1", test]}
    prepare(jsonl(tmp_path / "in.jsonl", MBPP, record), tmp_path / "out")
    assert [row["extra_info"]["format"] for row in rows(tmp_path / "out")] == ["assertions"]
    [aside] = map(json.loads, (tmp_path / "out" / "set_aside.jsonl").read_text().splitlines())
    assert aside["reason"] == "bad_tests" and "assert" in aside["detail"]


def test_a_test_file_and_an_assertion_that_is_no_list_are_kept(tmp_path):
    test = "from solution import twice\n\ndef test_two():\n    assert twice(2) == 4\n"
    records = [{"question": "Double it.", "test": test}, {"question": "Write f.", "test_list": "assert f(1) == 1"}]
    prepare(jsonl(tmp_path / "in.jsonl", *records), tmp_path / "out")
    file, line = rows(tmp_path / "out")
    assert json.loads(file["reward_model"]["ground_truth"]) == {"test": test}
    assert "Name the function `twice`." in file["prompt"][0]["content"]
    assert json.loads(line["reward_model"]["ground_truth"]) == ["assert f(1) == 1"]
