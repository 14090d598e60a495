"""Reading tests from public formats, and programs from responses."""

import base64
import json
import pickle
import zlib

import pytest

from rufus_plugins import DataError
from rufus_plugins.rewards.code_asserts import literal, split
from rufus_plugins.rewards.code_extract import ends_with_block, last_python_block
from rufus_plugins.rewards.code_formats import AssertTest, CallTest, StdinTest, read_tests


def pack(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_prime_stdin_lists_and_texts():
    tests = read_tests({"inputs": ["1\n", ["2", "3"]], "outputs": ["1\n", ["2", "3"]]}, 50).tests
    assert tests == [StdinTest("1\n", "1\n"), StdinTest("2\n3", "2\n3")]


def test_prime_functions_take_lists_of_arguments_and_wrapped_results():
    tests = read_tests({"fn_name": "f", "inputs": [[[1, 2], "a"]], "outputs": [[3]]}, 50).tests
    assert tests == [CallTest("f", [[1, 2], "a"], (3, [3]))]


def test_livecodebench_functions_take_one_json_argument_a_line():
    record = {
        "public_test_cases": json.dumps([{"input": '[1, 2]\n"a"', "output": "[3]", "testtype": "functional"}]),
        "private_test_cases": pack(json.dumps([{"input": '[]\n"b"', "output": "null", "testtype": "functional"}])),
        "metadata": json.dumps({"func_name": "f"}),
    }
    assert read_tests(record, 50).tests == [
        CallTest("f", [[1, 2], "a"], ([3],)),
        CallTest("f", [[], "b"], (None,)),
    ]


def test_livecodebench_stdin_tests_need_no_function():
    record = {"public_test_cases": [{"input": "1", "output": "2", "testtype": "stdin"}], "private_test_cases": "[]"}
    assert read_tests(record, 50).tests == [StdinTest("1", "2")]


class Planted:
    def __reduce__(self):
        return (open, ("/tmp/rufus-planted", "w"))


@pytest.mark.parametrize("value", [Planted(), [Planted()], print, ValueError("x")])
def test_packed_tests_that_hold_more_than_text_are_refused_unexecuted(value, tmp_path):
    with pytest.raises(DataError):
        read_tests({"public_test_cases": "[]", "private_test_cases": pack(value)}, 50)
    import os

    assert not os.path.exists("/tmp/rufus-planted")


@pytest.mark.parametrize("text", ["not base64!", "AAAA", base64.b64encode(zlib.compress(b"no pickle")).decode()])
def test_packed_tests_that_do_not_unpack_are_an_error_of_the_data(text):
    with pytest.raises(DataError):
        read_tests({"public_test_cases": "[]", "private_test_cases": text}, 50)


@pytest.mark.parametrize("name", ["assert_case", "test_list", "assertions", "tests"])
def test_assertion_lists_go_by_several_names(name):
    assert read_tests({name: ["assert f(1) == 2"]}, 50).tests == [AssertTest("assert f(1) == 2")]


def test_json_text_and_plain_lists_and_plain_text_are_read():
    assert read_tests('["assert f(1)"]', 50).tests == [AssertTest("assert f(1)")]
    assert read_tests(["assert f(1)"], 50).tests == [AssertTest("assert f(1)")]
    assert read_tests("assert f(1)\nassert f(2)", 50).tests == [AssertTest("assert f(1)\nassert f(2)")]


def test_integer_keys_that_json_made_text_are_integers_again():
    assert read_tests({"fn_name": "f", "inputs": ['{"1": 2}'], "outputs": ["1"]}, 5).tests[0].arguments == [{1: 2}]


@pytest.mark.parametrize(
    "record",
    [
        {"inputs": ["1"], "outputs": []},
        {"inputs": "1", "outputs": 3},
        {"fn_name": "f", "inputs": ["no json"], "outputs": ["1"]},
        {"inputs": ["1"], "outputs": ["1"], "tolerance": "small"},
        {"inputs": ["1"], "outputs": ["1"], "time_limit_s": -1},
        [{"input": "1"}],
        [3],
    ],
)
def test_tests_that_do_not_fit_are_an_error_of_the_data(record):
    with pytest.raises(DataError):
        read_tests(record, 50)


def test_the_choice_depends_on_the_tests_and_keeps_their_order():
    def picked(tag):
        tests = read_tests({"inputs": [f"{tag}{i}" for i in range(200)], "outputs": [str(i) for i in range(200)]}, 50)
        return [int(test.stdout) for test in tests.tests]

    assert len(picked("a")) == 50
    assert picked("a") == sorted(picked("a")) == picked("a")
    assert picked("a") != picked("b")
    assert max(picked("a")) > 100, "not merely the first ones"


# -- programs in responses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("```python\na\n```\n```\noutput\n```", "a\n"),
        ("```python\na\n```\n```json\n{}\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```cpp\na\n```", None),
        ("```PY\na\n```", "a\n"),
        ("```Python3\na\n```", "a\n"),
        ("``` python\na\n```", "a\n"),
        ('```python title="x.py"\na\n```', "a\n"),
        ("```{.python}\na\n```", "a\n"),
        ("```python\r\na\r\n```\r\n", "a\n"),
        ("~~~python\na\n```\n~~~", "a\n```\n"),
        ("````python\na\n```\nb\n````", "a\n```\nb\n"),
        ("```python\na\n", "a\n\n"),
        ("1. so:\n   ```python\n   if a:\n       b\n   ```", "if a:\n    b\n"),
        ("```python\nx = '```'\n```", "x = '```'\n"),
        ("<think>```python\ndraft\n```</think>\n```python\nfinal\n```", "final\n"),
        ("<think>```python\ndraft\n```</think>\nno code", None),
        ("<think>```python\ndraft\n```", None),
        ("print(1)", None),
        ("", None),
        ("use `python` and ```inline``` code", None),
        ("```python\n```", "\n"),
        ("```pythonic\na\n```", None),
    ],
)
def test_the_last_python_block_is_the_program(response, code):
    found = last_python_block(response)
    assert (found and found.strip()) == (code and code.strip())
    if code and code.strip():
        assert found.splitlines()[0] == code.splitlines()[0]


# -- splitting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "assert (f(1) == 2) == True",
        "assert abs(f(1) - 2) == 0 if f(1) else True",
        "assert f(1) in [1, 2]",
        "assert f(1) == g(1)",
        "assert isinstance(f(1), int)",
        "assert f(1) == 1 or f(1) == 2",
        "def helper(x):\n    return x == 3\nassert helper(f(1))",
        "assert [f(1) == 5] == [True]",
    ],
)
def test_what_would_show_the_expected_value_or_hand_over_the_verdict_stays_whole(code):
    assert split(code) is None


def test_a_split_test_no_longer_holds_what_is_expected():
    parts = split("x = [1]\nassert f(x) == [815], 'should be 815'\nassert 4711 == g(x)")
    assert "815" not in parts.source and "4711" not in parts.source
    assert [check.expected for check in parts.checks] == [[815], 4711]


@pytest.mark.parametrize("code", ["f(1)", "assert f(", "x = 1"])
def test_assertions_that_assert_nothing_are_an_error_of_the_data(code):
    with pytest.raises(DataError):
        split(code)


@pytest.mark.parametrize(
    ("text", "value"),
    [("-1", -1), ("2**10", 1024), ("[1, (2,), {3}]", [1, (2,), {3}]), ("set()", set()), ("float('inf')", float("inf")),
     ("{'a': [None, True]}", {"a": [None, True]}), ("1 / 4", 0.25), ("1 + 2j", 1 + 2j), ("b'x'", b"x")],
)  # fmt: skip
def test_constant_expressions_are_computed_outside(text, value):
    import ast

    assert literal(ast.parse(text, mode="eval").body) == value


@pytest.mark.parametrize("text", ["10**10**10", "'x' * 10**9", "f(1)", "[x for x in y]", "1 / 0", "{[]: 1}", "..."])
def test_what_is_not_constant_or_too_costly_is_not(text):
    import ast

    with pytest.raises(ValueError):
        literal(ast.parse(text, mode="eval").body)


WORDS = "a = input()\nprint(a)\n"


@pytest.mark.parametrize(
    "response",
    [
        f"Here it is: ```python\n{WORDS}```",
        f"Use `input()`, as in ```Python3\n{WORDS}```",
        "> Thus:\n> ```python\n> a = input()\n> print(a)\n> ```\n",
        "> > ```py\n> > a = input()\n> > print(a)\n> > ```",
        "- ```python\n  a = input()\n  print(a)\n  ```",
        "1.\t```python\n\ta = input()\n\tprint(a)\n\t```",
        "```python\na = input()\nprint(a)```",
        "```python\na = input()\nprint(a)```\n\n",
    ],
)
def test_fences_behind_words_in_quotations_and_lists_and_without_a_last_line_break(response):
    assert last_python_block(response) == WORDS and ends_with_block(response)


def test_a_fence_within_a_line_of_code_ends_nothing():
    code = "x = 'see ```'\ny = 1\n"
    assert last_python_block(f"```python\n{code}```") == code
    assert last_python_block(f"```python\n{code}") == code + "\n"
    assert not ends_with_block(f"```python\n{WORDS}") and not ends_with_block(f"```python\n{WORDS}```\nDone.")
