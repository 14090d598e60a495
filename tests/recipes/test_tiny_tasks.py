"""The generated problems: what a held-out pass rate on them can and cannot mean."""

import subprocess
import sys

import pytest

from rufus_plugins.recipes.tiny import tasks


@pytest.fixture(scope="module")
def splits():
    return tasks.splits(0)


def names(split):
    return {tasks.name(kind, parts) for kind, parts in split}


def test_no_combination_is_in_two_splits_and_none_is_lost(splits):
    sft, rl, heldout = (names(splits[name]) for name in ("sft", "rl", "heldout"))
    assert not sft & rl and not sft & heldout and not rl & heldout
    total = len(sft) + len(rl) + len(heldout)
    assert total == sum(map(len, splits.values())) and 1500 < total <= len(tasks.combinations())
    assert len(heldout) > 300


def test_every_part_is_in_every_split_so_that_only_combinations_are_new(splits):
    parts = {name: {(kind, i, p[0]) for kind, ps in split for i, p in enumerate(ps)} for name, split in splits.items()}
    assert parts["heldout"] <= parts["sft"] and parts["heldout"] <= parts["rl"]


def test_another_seed_splits_otherwise(splits):
    assert names(tasks.splits(1)["heldout"]) != names(splits["heldout"])


@pytest.mark.parametrize(
    ("combination", "text", "printed"),
    [
        ("ints/prod/mod 7", "6 5", "2"),  # 30 = 4*7 + 2
        ("ints/gap/floor 4", "10 9", "4"),
        ("ints/diff/div 2", "-3 4", "-4"),  # -7 / 2 rounded down
        ("list/even/square/sum", "3 -4 2 9", "20"),
        ("list/above 3/times 5/first", "1 3 7 4", "35"),
        ("list/negative/abs/range", "-8 3 -1", "7"),
        ("word/reverse/tail/bang", "flame", "malf!"),
        ("word/sort/last3/dashes", "bread", "d-e-r"),
        ("word/twice/upper/length", "night", "10"),
    ],
)
def test_the_reference_solution_does_what_the_combination_says(combination, text, printed):
    kind, parts = next((k, p) for k, p in tasks.combinations() if tasks.name(k, p) == combination)
    program = tasks._program(kind, [p[1] for p in parts])
    done = subprocess.run([sys.executable, "-I", "-c", program], input=text, capture_output=True, text=True, timeout=20)
    assert done.stdout == printed + "\n", done.stderr


def test_tests_agree_with_a_real_interpreter_and_no_constant_passes_them():
    problems = tasks.problems(0, "heldout")
    for problem in problems:
        assert len(problem.inputs) == len(set(problem.inputs)) == tasks.TESTS
        assert len(set(problem.outputs)) > 1, problem.combination
    for problem in problems[::60]:
        for text, expected in zip(problem.inputs, problem.outputs, strict=True):
            command = [sys.executable, "-I", "-S", "-c", problem.program]
            done = subprocess.run(command, input=text + "\n", capture_output=True, text=True, timeout=20)
            assert done.stdout.rstrip("\n") == expected


def test_a_faulty_demonstration_fails_its_problem_and_the_teacher_errs_as_often_as_asked():
    pairs = tasks.demonstrations(0, rows=2000, faulty_share=0.6)
    faulty = [(problem, program) for problem, program in pairs if program != problem.program]
    for problem, program in faulty[:100]:
        printed = tuple(tasks.run(program, problem.kind, text) for text in problem.inputs)
        assert printed != problem.outputs
    can_err = sum(problem.faulty != problem.program for problem, _ in pairs)
    assert 0.55 < len(faulty) / can_err < 0.65
    assert {problem.combination for problem, _ in pairs} <= names(tasks.splits(0)["sft"])


def test_a_clean_teacher_makes_no_mistake():
    assert all(program == problem.program for problem, program in tasks.demonstrations(3, 300, faulty_share=0.0))


def test_one_problem_is_worded_in_several_ways():
    kind, parts = tasks.combinations()[0]
    import random

    statements = {tasks.problem(kind, parts, random.Random(i)).statement for i in range(40)}
    assert len(statements) == 8  # two openings x two wordings of each of two parts
