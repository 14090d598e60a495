"""`rufus data harden` against a server whose models solve sums by rule."""

import json
import re

import pytest

from rufus_plugins.errors import ConfigError, InfrastructureError
from rufus_plugins.recipes.data.run import execute
from rufus_plugins.recipes.difficulty.harden import Harden
from rufus_plugins.recipes.difficulty.wording import OPERATIONS, read_question

# A problem is a chain of additions, "Add up 3 and 4 and 5 for me, please."; harder = one more number.


def numbers(text):
    return [int(n) for n in re.findall(r"\d+", text.split("Add up")[1].split("for me")[0])]


def asked(problem):
    return f"Add up {' and '.join(map(str, problem))} for me, please."


class Models:
    """The base model adds at most `reach` numbers; writer and referee do everything. `say` overrides by role."""

    def __init__(self, reach, **say):
        self.reach, self.say, self.steps = reach, say, []

    def __call__(self, body):
        text, name = body["messages"][-1]["content"], body["model"]
        rewriting = "Reply with JSON alone" in text
        role = "writer" if rewriting else name
        self.steps.append(role)
        if role in self.say:
            return self.say[role](body)
        if rewriting:
            problem = numbers(text[text.index("Problem:") :])
            return json.dumps({"question": asked([*problem, problem[-1] + 1])})
        problem = numbers(text)
        right = sum(problem) if role == "referee" or len(problem) <= self.reach else sum(problem) + 1
        return f"<think>hm</think>The sum is \\boxed{{{right}}}."


def run(tmp_path, server, seeds, **fields):
    source = tmp_path / "seeds.jsonl"
    source.write_text("".join(json.dumps(s) + "\n" for s in seeds))
    tool = Harden(server.url, "base", server.url, "referee", **fields)
    manifest = execute(tool, source, tmp_path / "out.jsonl", workers=1)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    audit = [json.loads(line) for line in (tmp_path / "out.jsonl.audit.jsonl").read_text().splitlines()]
    return manifest, rows, audit


def test_what_the_base_model_fails_after_composing_is_kept_at_once(tmp_path, serve):
    _, rows, _ = run(tmp_path, serve(Models(reach=2)), [{"question": asked([3, 4])}])
    assert rows[0]["problem"] == asked([3, 4, 5]) and rows[0]["answer"] == "12"
    assert rows[0]["operations"] == ["composition"]


def test_what_it_solves_is_hardened_along_its_own_solution_until_it_fails(tmp_path, serve):
    server = serve(Models(reach=4))
    _, rows, audit = run(tmp_path, server, [{"question": asked([1, 2])}])
    assert rows[0]["problem"] == asked([1, 2, 3, 4, 5]) and rows[0]["answer"] == "15"
    assert len(rows[0]["operations"]) == 3 and set(rows[0]["operations"][1:]) <= set(OPERATIONS)
    said = [b["messages"][0]["content"] for b in server.bodies]
    written = [text for text in said if "The model's solution" in text]
    assert len(written) == 2 and "The sum is \\boxed{6}." in written[0] and "\\boxed{10}" in written[1]
    assert "hm" not in written[0]  # the thinking is no solution
    steps = [line["step"] for line in audit]
    assert steps.count("reference") == 3 and steps.count("base") == 3 and steps[-1] == "kept"


def test_a_problem_that_stays_easy_is_set_aside(tmp_path, serve):
    manifest, rows, _ = run(tmp_path, serve(Models(reach=99)), [{"question": asked([1, 2])}], rounds=2)
    assert rows == [] and manifest["set_aside"] == {"still_solved": 1}


def test_one_dissenting_solve_of_three_discards_the_problem(tmp_path, serve):
    def referee(body):
        return f"\\boxed{{{7 if body['seed'] == 2 else 12}}}"

    manifest, rows, audit = run(tmp_path, serve(Models(2, referee=referee)), [{"question": asked([3, 4])}])
    assert rows == [] and manifest["set_aside"] == {"no_agreement": 1}
    assert next(a for a in audit if a["step"] == "reference")["answers"] == ["12", "12", "7"]


def test_equal_answers_in_different_forms_agree(tmp_path, serve):
    forms = ["\\boxed{0.5}", "\\boxed{\\frac{1}{2}}", "\\boxed{1/2}"]
    server = serve(Models(2, referee=lambda body: forms[body["seed"]]))
    _, rows, _ = run(tmp_path, server, [{"question": asked([3, 4])}])
    assert rows[0]["answer"] == "0.5"


@pytest.mark.parametrize(
    ("role", "said", "reason"),
    [
        ("referee", "BROKEN: the sum is not defined", "broken"),
        ("referee", "I do not know.", "no_agreement"),
        ("writer", "Sure! Here is a harder problem.", "bad_rewrite"),
        ("writer", '{"question": 7}', "bad_rewrite"),
        ("writer", "[" * 100_000, "bad_rewrite"),
        ("writer", json.dumps({"question": asked([3, 4])}), "unchanged"),
    ],
)
def test_nonsense_is_set_aside_with_its_reason(tmp_path, serve, role, said, reason):
    manifest, rows, _ = run(tmp_path, serve(Models(2, **{role: lambda body: said})), [{"question": asked([3, 4])}])
    assert rows == [] and manifest["set_aside"] == {reason: 1}


def test_a_base_model_that_is_cut_off_has_not_solved_the_problem(tmp_path, serve):
    cut = b'{"choices": [{"message": {"content": "The sum"}, "finish_reason": "length"}]}'
    _, rows, _ = run(tmp_path, serve(Models(99, base=lambda body: (200, cut))), [{"question": asked([3, 4])}])
    assert rows[0]["answer"] == "12"


def test_records_without_a_question_are_set_aside(tmp_path, serve):
    seeds = [{"text": "x"}, {"question": 5}, {"problem": asked([3, 4])}, {"question": "half a pair \ud800"}]
    manifest, rows, _ = run(tmp_path, serve(Models(2)), seeds)
    assert len(rows) == 1 and manifest["set_aside"] == {"no_question": 2, "bad_text": 1}


def test_text_that_utf8_cannot_hold_is_harmless_in_an_answer(tmp_path, serve):
    _, rows, _ = run(tmp_path, serve(Models(99, base=lambda body: "\ud800 \\boxed{1}")), [{"question": asked([3, 4])}])
    assert rows[0]["answer"] == "12"


def test_a_dead_server_ends_the_run_and_the_same_command_goes_on_without_asking_twice(tmp_path, serve):
    models = Models(2)
    dead = {"now": True}

    def rule(body):
        if dead["now"] and body["model"] == "base":
            return 401, b"no"
        return models(body)

    server = serve(rule)
    with pytest.raises(InfrastructureError, match="401"):
        run(tmp_path, server, [{"question": asked([3, 4])}])
    before = len(server.bodies)
    dead["now"] = False
    _, rows, _ = run(tmp_path, server, [{"question": asked([3, 4])}])
    assert rows[0]["answer"] == "12"
    later = [b["model"] for b in server.bodies[before:]]
    assert later == ["base"]  # writer and referee answered already


@pytest.mark.parametrize("said", [None, (200, b"<html>restarting</html>"), (200, b'{"object": "error"}')])
def test_a_server_that_fails_each_question_once_changes_nothing(tmp_path, serve, monkeypatch, said):
    monkeypatch.setattr("rufus_plugins.recipes.teacher.BACKOFF_S", 0.0)
    seen, models = set(), Models(reach=3)

    def flaky(body):  # each question fails the first time
        key = json.dumps(body)
        if key in seen:
            return models(body)
        seen.add(key)
        return said

    (tmp_path / "whole").mkdir()
    seeds = [{"question": asked([n, n + 1])} for n in range(8)]
    _, rows, _ = run(tmp_path / "whole", serve(models), seeds)
    assert len(rows) == 8
    assert run(tmp_path, serve(flaky), seeds)[1] == rows


def test_a_server_that_answers_nothing_but_hanging_up_ends_the_run(tmp_path, serve, monkeypatch):
    monkeypatch.setattr("rufus_plugins.recipes.teacher.BACKOFF_S", 0.0)
    with pytest.raises(InfrastructureError, match="connection_lost"):
        run(tmp_path, serve(lambda body: None), [{"question": asked([1, 2])}])


def test_the_same_seed_draws_the_same_operations(tmp_path, serve):
    made = []
    for at in range(2):
        folder = tmp_path / str(at)
        folder.mkdir()
        seeds = [{"question": asked([n, n + 1])} for n in range(1, 5)]
        made.append(run(folder, serve(Models(4)), seeds)[1])
    assert made[0] == made[1]
    assert len({op for row in made[0] for op in row["operations"]}) >= 3


def test_what_cannot_be_is_refused_beforehand():
    with pytest.raises(ConfigError, match="solves"):
        Harden("http://127.0.0.1/v1", "a", "http://127.0.0.1/v1", "b", solves=1)
    with pytest.raises(ConfigError, match="reward"):
        Harden("http://127.0.0.1/v1", "a", "http://127.0.0.1/v1", "b", reward="judge")


def test_an_answer_of_no_tokens_is_refused_before_anything_is_asked(tmp_path, serve):
    server = serve(Models(reach=2))
    with pytest.raises(ConfigError, match="max-tokens is 0"):
        run(tmp_path, server, [{"question": asked([1, 2])}], max_tokens=0)
    assert not server.bodies


def test_a_fenced_reply_is_read_too():
    assert read_question('Here:\n```json\n{"question": "What is the sum of 1 and 2?"}\n```') == (
        "What is the sum of 1 and 2?"
    )


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path, serve):
    import os
    import signal
    import subprocess
    import sys
    import time

    seeds = [{"question": asked([n, n + 1])} for n in range(40)]
    outputs, counts = [], []
    for name, kill in (("whole", False), ("killed", True)):
        models = Models(3)

        def rule(body, models=models, kill=kill):
            time.sleep(0.005 if kill else 0)
            return models(body)

        server = serve(rule)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "seeds.jsonl").write_text("".join(json.dumps(s) + "\n" for s in seeds))
        # the same address in both, so that manifests may be compared too: the outputs do not hold it
        command = [sys.executable, "-m", "rufus_plugins.cli", "data", "harden"]
        command += ["--input", str(folder / "seeds.jsonl"), "--output", str(folder / "out.jsonl"), "--workers", "1"]
        command += ["--base-url", server.url, "--base-model", "base"]
        command += ["--referee-url", server.url, "--referee-model", "referee"]
        if kill:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while len(server.bodies) < 60:
                assert process.poll() is None
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert not (folder / "out.jsonl").exists()
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        outputs.append((folder / "out.jsonl").read_bytes())
        counts.append(len(server.bodies))
        lines = (folder / "out.jsonl.audit.jsonl").read_text().splitlines()
        assert all(json.loads(line) for line in lines)
    assert outputs[0] == outputs[1] and outputs[0].count(b"\n") == 40
    assert counts[1] <= counts[0] + 16 * 5  # what was in flight when it was killed
