"""`rufus score` and `rufus audit` through the command line, and the runner below them."""

import asyncio
import json

import pytest

from rufus_plugins.cli import main
from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.cheats import CHEATS, gold_of
from rufus_plugins.rewards.offline import score_records, trajectory_of
from rufus_plugins.types import CallStatus, Score, Termination


def write(path, *records):
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n")
    return str(path)


def test_a_file_is_scored_and_what_cannot_be_scored_is_null_with_its_reason(tmp_path, capsys):
    given = write(
        tmp_path / "in.jsonl",
        {"id": "right", "response": "\\boxed{4}", "ground_truth": "4"},
        {"id": "wrong", "response": "\\boxed{5}", "ground_truth": "4"},
        {"id": "goldless", "response": "\\boxed{5}"},
        "{broken",
    )
    out = tmp_path / "out.jsonl"
    assert main(["score", "--reward", "math_answer", "--input", given, "--output", str(out)]) == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [set(f) for f in found] == [{"id", "value", "metrics", "explanation"}] * 4
    assert [(f["id"], f["value"]) for f in found] == [("right", 1.0), ("wrong", 0.0), ("goldless", None), ("4", None)]
    assert found[2]["metrics"]["reason"] == "data" and "ground_truth" in found[2]["explanation"]
    said = capsys.readouterr().out
    assert "2 of 4 scored: mean 0.5" in said and "2 not scorable (data)" in said


def test_a_line_that_is_broken_in_any_way_costs_itself_only(tmp_path, capsys):
    right = {"response": "\\boxed{4}", "ground_truth": "4"}
    lines = [
        b"\xef\xbb\xbf" + json.dumps(right | {"id": "after a BOM"}).encode(),
        json.dumps(right | {"id": "lines", "response": "a\u2028b\x85c\x0b \\boxed{4}"}, ensure_ascii=False).encode(),
        b'{"id": "latin-1", "response": "caf\xe9 \\\\boxed{4}", "ground_truth": "4"}',
        b"[" * 100_000,
        b'{"id": "cut", "response": "\\\\boxed{4}", "grou',
        json.dumps(right | {"id": "half a pair", "response": "\ud800 \\boxed{5\ud800}"}).encode(),
        json.dumps(right | {"id": None}).encode() + b"\r",
        json.dumps(right | {"id": "twice"}).encode(),
        json.dumps(right | {"id": "twice", "response": "\\boxed{5}"}).encode(),
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    out = tmp_path / "out.jsonl"
    assert main(["score", "--reward", "math_answer", "--input", str(tmp_path / "in.jsonl"), "--output", str(out)]) == 0
    found = [json.loads(line) for line in out.read_text("utf-8").split("\n") if line]
    assert [(f["id"], f["value"]) for f in found] == [
        ("after a BOM", 1), ("lines", 1), ("3", None), ("4", None), ("5", None), ("half a pair", 0), ("7", 1),
        ("twice", 1), ("twice", 0),
    ]  # fmt: skip
    assert "6 of 9 scored" in capsys.readouterr().out


def test_fields_reach_the_reward(tmp_path, capsys):
    given = write(tmp_path / "in.jsonl", {"id": 1, "response": "10.4", "ground_truth": "10"})
    assert main(["score", "--reward", "science_answer", "--input", given]) == 0
    assert "mean 0," in capsys.readouterr().out
    assert main(["score", "--reward", "science_answer", "--input", given, "relative_tolerance=0.05"]) == 0
    assert "mean 1," in capsys.readouterr().out


def test_nested_fields_compose_rewards(tmp_path, capsys):
    given = write(tmp_path / "in.jsonl", {"id": 1, "response": "\\boxed{4}", "ground_truth": "4", "data_source": "m"})
    assert main(["score", "--reward", "by_data_source", "--input", given, "routes.m=math_answer"]) == 0
    assert "mean 1," in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--reward", "math_anser", "--input", "IN"], "math_answer"),
        (["--reward", "math_answer", "--input", "/no/such"], "is no file"),
        (["--reward", "math_answer", "--input", "IN", "nonsense"], "field=value"),
        (["--reward", "math_answer", "--input", "IN", "no_such=1"], "no_such"),
        (["--reward", "math_answer", "--input", "IN", "--concurrency", "0"], "concurrency"),
        (["--reward", "math_answer", "--input", "IN", "--output", "/no/such/out"], "does not exist"),
        (["--reward", "math_answer", "--input", "IN", "--output", "/"], "is a folder"),
        (["--reward", "math_answer", "--input", "IN", "--output", "IN"], "is the --input file"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(tmp_path, capsys, arguments, said):
    given = write(tmp_path / "in.jsonl", {"id": 1, "response": "4", "ground_truth": "4"})
    assert main(["score", *(given if a == "IN" else a for a in arguments)]) == 1
    assert said in capsys.readouterr().err


def test_a_file_where_nothing_is_scorable_ends_with_1(tmp_path, capsys):
    assert main(["score", "--reward", "math_answer", "--input", write(tmp_path / "in.jsonl", {"response": "4"})]) == 1


class Scripted:
    """A reward that does what the record's gold says."""

    async def __call__(self, trajectory):
        what = trajectory.task.ground_truth
        if what == "slow":
            await asyncio.sleep(60)
        if what == "broken":
            raise TypeError("a bug")
        if what == "judge":
            raise InfrastructureError("no verdict", Termination.JUDGE_FAILED)
        if what == "data":
            raise DataError("no tests")
        if what == "config":
            raise ConfigError("no key")
        return Score(float(what))


def outcomes(*golds, **options):
    records = [{"id": g, "response": "x", "ground_truth": g} for g in golds]
    return asyncio.run(score_records(Scripted(), records, **options))


@pytest.mark.timeout(60)
def test_a_slow_item_costs_its_own_deadline_only():
    found = outcomes("slow", *["1"] * 20, "slow", concurrency=4, deadline_s=0.3)
    assert [o.reason for o in found] == ["deadline", *[""] * 20, "deadline"]


def test_each_failure_has_its_type_and_no_value():
    found = outcomes("broken", "judge", "data", "nan", "1")
    assert [o.reason for o in found] == ["crashed", "judge_failed", "data", "crashed", ""]
    assert [o.as_json()["value"] for o in found] == [None, None, None, None, 1.0]
    assert "a bug" in found[0].message and "TypeError" in found[0].trace


def test_a_wrong_set_up_ends_everything():
    with pytest.raises(ConfigError, match="no key"):
        outcomes("1", "config", "slow")


def test_a_record_may_be_a_whole_trajectory():
    found = trajectory_of(
        {
            "id": 7,
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "call"},
                {"role": "tool", "content": "r"},
                {"role": "assistant", "content": "a"},
            ],
            "tool_calls": [{"name": "f", "arguments": {}, "status": "malformed"}],
            "termination": "tool_budget",
            "artifacts": {"db_after": "x"},
            "extra": {"k": 1},
        },
        1,
    )
    assert [m["content"] for m in found.task.prompt] == ["q"] and len(found.messages) == 3
    assert found.tool_calls[0].status is CallStatus.MALFORMED and found.turns == 2 and found.response == "a"
    assert (
        found.termination is Termination.TOOL_BUDGET and found.artifacts == {"db_after": "x"} and found.task.id == "7"
    )


@pytest.mark.parametrize(
    "record",
    ["text", {}, {"response": 1}, {"response": "a", "messages": []}, {"response": "a", "gold": 1}, {"messages": ["a"]},
     {"response": "a", "termination": "no"}, {"response": "a", "tool_calls": [{"name": "f"}]}],
)  # fmt: skip
def test_a_record_of_the_wrong_shape_is_set_aside(record):
    with pytest.raises(DataError):
        trajectory_of(record, 1)


def test_an_audit_shows_which_cheats_pay(tmp_path, capsys):
    given = write(
        tmp_path / "in.jsonl", {"id": 1, "response": "\\boxed{\\sqrt{2}}", "ground_truth": "\\sqrt{2}", "prompt": "?"}
    )
    assert main(["audit", "--reward", "math_answer", "--input", given, "--strict"]) == 0
    assert "no cheat pays" in capsys.readouterr().out


def test_an_audit_finds_a_reward_that_can_be_fooled(tmp_path, capsys, monkeypatch):
    class Echo:
        async def __call__(self, trajectory):
            return Score(float(trajectory.task.ground_truth in trajectory.response))

    monkeypatch.setattr("rufus_plugins.cli_audit.build_reward", lambda args: Echo())
    given = write(tmp_path / "in.jsonl", {"id": 1, "response": "no", "ground_truth": "blue whale"})
    assert main(["audit", "--reward", "echo", "--input", given]) == 0
    said = capsys.readouterr().out
    assert "gold echoed in prose" in said and "cheats pay" in said
    assert main(["audit", "--reward", "echo", "--input", given, "--strict"]) == 1


def test_an_audit_that_could_try_nothing_says_so(tmp_path, capsys):
    given = write(tmp_path / "in.jsonl", {"id": 1, "response": "a"})
    assert main(["audit", "--reward", "math_answer", "--input", given]) == 1
    assert "none of these records" in capsys.readouterr().err


GOLDS = {
    "math_answer": ["7", "\\frac{\\pi}{6}", "(1,2]", "B", "\\{1,2\\}", "x=5"],
    "science_answer": ["B", "9.8 m/s^2", "photosynthesis", "sodium chloride"],
}


@pytest.mark.parametrize("reward", sorted(GOLDS))
def test_no_cheat_pays(reward):
    from rufus_plugins.plugins import registry

    tries = [
        (name, gold, {"id": 1, "response": response, "ground_truth": gold})
        for gold in GOLDS[reward]
        for name, cheat in CHEATS.items()
        if (response := cheat({"ground_truth": gold})) is not None
    ]
    found = asyncio.run(score_records(registry().build("reward", reward), [record for *_, record in tries]))
    paid = [(n, g) for (n, g, _), o in zip(tries, found, strict=True) if o.score is None or o.score.value != 0.0]
    # repeating a one-line ground truth is giving the answer
    assert [p for p in paid if p[0] != "ground truth repeated"] == []


def test_the_gold_of_a_record_is_found_in_the_shapes_that_rewards_use():
    assert gold_of({"ground_truth": ["4", "5"]}) == "4"
    assert gold_of({"ground_truth": {"entry": {"answer": "x"}}}) == "x"
    assert gold_of({"ground_truth": {"answer": 3}}) == "3"
    assert gold_of({"ground_truth": '{"inputs": []}'}) is None and gold_of({}) is None


def test_an_output_is_whole_or_not_there(tmp_path, monkeypatch):
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text('{"id": "a", "response": "\\\\boxed{1}", "ground_truth": "1"}\n')
    out.write_text("of before\n")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("rufus_plugins.cli_score._write", full)
        assert main(["score", "--reward", "math_answer", "--input", str(given), "--output", str(out)]) != 0
    assert out.read_text() == "of before\n" and sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert main(["score", "--reward", "math_answer", "--input", str(given), "--output", str(out)]) == 0
    assert json.loads(out.read_text())["value"] == 1.0 and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("gold", ["NaN", "Infinity", '"\\ud800"', '"\\\\frac{1}{2"', '["1", ""]', "null", "true"])
def test_a_gold_that_is_no_answer_makes_the_record_unusable(gold, tmp_path):
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text(f'{{"id": "a", "response": "\\\\boxed{{1}}", "ground_truth": {gold}}}\n')
    assert main(["score", "--reward", "math_answer", "--input", str(given), "--output", str(out)]) == 1
    line = json.loads(out.read_text())
    assert line["value"] is None and line["metrics"]["reason"] == "data" and line["explanation"]


def test_artifacts_that_are_no_object_are_a_fault_of_the_record():
    with pytest.raises(DataError, match="artifacts must be an object"):
        trajectory_of({"response": "x", "artifacts": [1]}, 1)


def test_the_cheats_of_an_audit_have_changed_no_database():
    from rufus_plugins.cli_audit import _with_response

    record = {"response": "x", "artifacts": {"db_before": "b", "db_after": "a", "more": 1}}
    assert _with_response(record, "y", 1)["artifacts"] == {"db_before": "b", "db_after": "b", "more": 1}
    assert _with_response({"response": "x"}, "y", 1) == {"id": 1, "response": "y"}
