"""Puzzles: reasoning-gym's own entries as oracle, checker code, and answers that try to execute."""

import asyncio
import json

import pytest

from rufus_plugins.errors import DataError
from rufus_plugins.rewards.puzzle import Puzzle, puzzle_answer
from rufus_plugins.rewards.puzzle_gym import EVALUATES_EXPRESSIONS, EVALUATES_LISTS, harmless
from rufus_plugins.types import Task, Trajectory

reasoning_gym = pytest.importorskip("reasoning_gym")


def score(truth, response, **config):
    trajectory = Trajectory(Task("1", "puzzle", [], truth), messages=[{"role": "assistant", "content": response}])
    return asyncio.run(Puzzle(**config)(trajectory))


def entry_of(name):
    return json.loads(json.dumps(reasoning_gym.create_dataset(name, size=1, seed=3)[0], default=str))


@pytest.mark.parametrize("name", sorted(EVALUATES_LISTS | EVALUATES_EXPRESSIONS | {"basic_arithmetic", "mini_sudoku"}))
def test_the_gold_answer_of_a_dataset_scores_1_and_a_wrong_one_0(name):
    entry = entry_of(name)
    gold = entry["answer"]
    if gold is None:
        pytest.skip("the dataset keeps no gold answer")
    assert score({"dataset": name, "entry": entry}, f"<answer>{gold}</answer>").value == 1.0
    assert score({"dataset": name, "entry": entry}, "<answer>no idea</answer>").value == 0.0


def test_an_entry_names_its_dataset_itself():
    entry = entry_of("basic_arithmetic")
    assert score(json.dumps(entry), f"<answer>{entry['answer']}</answer>").value == 1.0


@pytest.mark.parametrize("name", sorted(EVALUATES_LISTS | EVALUATES_EXPRESSIONS))
def test_an_answer_that_would_execute_scores_0_and_is_not_handed_over(name):
    attack = "__import__('os').write(3, b'\\x00\\x00\\x00\\x15{\"value\": {\"score\":1}}') or 24"
    found = score({"dataset": name, "entry": entry_of(name)}, f"<answer>{attack}</answer>")
    assert found.value == 0.0 and "not handed" in found.explanation


def test_names_that_reach_python_are_refused_and_mathematics_is_not():
    assert harmless("countdown", "(3 + 4) * 5 - 6/2")
    assert harmless("simple_integration", "x**3/3 + sin(x) + C")
    assert not harmless("countdown", "exit()")
    assert not harmless("countdown", "x.__class__")
    assert not harmless("simple_integration", "Symbol('x')")
    assert not harmless("n_queens", "[exit()]")
    assert harmless("n_queens", "_ Q _\n[['_', 'Q']]")


def test_a_tower_of_powers_costs_its_deadline_at_most():
    found = score({"dataset": "puzzle24", "entry": entry_of("puzzle24")}, "<answer>9**9**9**9</answer>", timeout_s=3)
    assert found.value == 0.0


def test_checker_code_decides_and_sees_its_data():
    truth = {
        "checker": "def check(answer, data):\n    return answer.split() == data['order']",
        "data": {"order": ["a", "b"]},
    }
    assert score(truth, "<answer>a b</answer>").value == 1.0
    assert score(truth, "<answer>b a</answer>").value == 0.0


def test_partial_credit_is_passed_on_only_when_asked_for():
    truth = {"checker": "def check(answer):\n    return 0.5"}
    assert score(truth, "x").value == 0.0
    assert score(truth, "x", binary=False).value == 0.5


@pytest.mark.parametrize(
    "body",
    ["raise ValueError('x')", "while True: pass", "import os; os._exit(0)", "print('1.0')\n    raise SystemExit"],
)
def test_a_checker_that_fails_on_an_answer_gives_0_and_is_counted(body):
    found = score({"checker": f"def check(answer):\n    {body}"}, "x", timeout_s=1)
    assert found.value == 0.0 and found.metrics["checker_failed"] is True


@pytest.mark.parametrize(
    "source",
    [
        "def check(",
        "x = 1",
        "def check(answer):\n    return 'yes'",
        "def check(answer):\n    return 7",
        "def check():\n    pass",
    ],
)
def test_a_checker_that_can_score_nothing_makes_the_record_unusable(source):
    with pytest.raises(DataError, match="checker"):
        score({"checker": source}, "x")


@pytest.mark.parametrize(
    "truth", [None, "{", {"entry": {}}, {"dataset": "no_such", "entry": {"answer": "1"}}, {"answer": "1"}]
)
def test_a_record_of_the_wrong_shape_says_what_is_wrong(truth):
    with pytest.raises(DataError):
        score(truth, "<answer>1</answer>")


def test_the_answer_is_the_last_tag_then_the_last_block_then_the_text():
    assert puzzle_answer("<answer>1</answer> no, <answer>2</answer>") == "2"
    assert puzzle_answer("so\n```\n1 2\n3 4\n```\n") == "1 2\n3 4"
    assert puzzle_answer("<think>5</think> 1 2 3") == "1 2 3"
    assert puzzle_answer("2 1\n4 3") == "2 1\n4 3" and puzzle_answer("Some words.\nAnswer: 24") == "24"
    assert puzzle_answer("<think>never ends") is None


def test_the_worker_serves_one_puzzle_after_another():
    from rufus_plugins.rollouts.sandboxes.zygote import shared

    entry = entry_of("mini_sudoku")
    pool = shared(["reasoning_gym", "rufus_plugins.rewards.puzzle_gym:score"], workers=1)
    before = pool.started
    for _ in range(3):
        assert score({"dataset": "mini_sudoku", "entry": entry}, entry["answer"], workers=1).value == 1.0
    assert pool.started <= before + 1
