"""From the records of public coding sets to (statement, tests): PRIME/Eurus, APPS, LiveCodeBench, assertion lists,
HumanEval, KodCode.

Only the *record* is taken apart here. What the tests themselves mean is `rewards/code_formats.py`, shared with the
reward, so that preparation and scoring cannot disagree.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.recipes.data.records import Refused


@dataclass(frozen=True)
class Coding:
    """One coding problem as a record gives it."""

    format: str
    id: str | None
    data_source: str | None
    statement: str
    """What the problem asks, as its author wrote it; statements are compared for duplicates."""
    messages: tuple[Mapping[str, str], ...] | None
    """A prompt that the record brings along; None = made from the statement."""
    tests: Any
    """In one of the formats of `rewards/code_formats.py`."""
    starter: str = ""
    function: str = ""
    """Name of the function that the tests call, "" for stdin/stdout programs."""


def take_apart(record: Mapping[str, Any]) -> Coding:
    """Raises `Refused` for a record in none of the formats, or with its parts missing."""
    if isinstance(record.get("reward_model"), Mapping) and "prompt" in record:
        return _verl(record)
    if "public_test_cases" in record or "private_test_cases" in record:
        return _livecodebench(record)
    if "input_output" in record:
        return _apps(record)
    if isinstance(record.get("test"), str) and isinstance(record.get("entry_point"), str):
        return _humaneval(record)
    for key in ("test_list", "assertions", "test_cases", "tests"):
        if key in record:
            return _assertions(record, key)
    if isinstance(record.get("test"), str):
        return _test_file(record)
    raise Refused("unknown_format", f"no known tests field among {', '.join(map(str, record)) or 'no fields'}")


def _verl(record: Mapping[str, Any]) -> Coding:
    """PRIME/Eurus: already in verl's shape, `reward_model.ground_truth` is a JSON text."""
    ability = record.get("ability")
    if isinstance(ability, str) and ability and not ability.lower().startswith("cod"):
        raise Refused("not_coding", f"ability is {ability!r}")
    prompt = record["prompt"]
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    messages = _messages(prompt)
    statement = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    extra = record.get("extra_info") if isinstance(record.get("extra_info"), Mapping) else {}
    tests = _json(record["reward_model"].get("ground_truth"))
    function = tests.get("fn_name") if isinstance(tests, Mapping) else None
    given = _first(extra, "id", "problem_id") or _first(record, "id", "problem_id")
    return Coding("prime", given, _text(record.get("data_source")), statement, messages, tests, function=function or "")


def _apps(record: Mapping[str, Any]) -> Coding:
    """APPS and TACO: PRIME's tests as a JSON text in `input_output`, the statement in `question`."""
    tests = _json(record["input_output"])
    function = tests.get("fn_name") if isinstance(tests, Mapping) else None
    return Coding(
        "prime",
        _first(record, "id", "problem_id", "task_id"),
        _text(record.get("data_source")),
        _statement(record),
        None,
        tests,
        starter=_text(record.get("starter_code")) or "",
        function=function or "",
    )


def _livecodebench(record: Mapping[str, Any]) -> Coding:
    metadata = _json(record.get("metadata") or "{}")
    function = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    cases = {key: _cases(record.get(key), key) for key in ("public_test_cases", "private_test_cases")}
    return Coding(
        "livecodebench",
        _first(record, "question_id", "id"),
        _text(record.get("data_source")) or "livecodebench",
        _statement(record),
        None,
        {**cases, "metadata": {"func_name": function} if function else {}} if any(cases.values()) else None,
        starter=_text(record.get("starter_code")) or "",
        function=function or "",
    )


def _humaneval(record: Mapping[str, Any]) -> Coding:
    function = record["entry_point"]
    return Coding(
        "humaneval",
        _first(record, "task_id", "id"),
        _text(record.get("data_source")),
        _statement(record),
        None,
        {"test": record["test"], "entry_point": function} if record["test"].strip() else None,
        function=function,
    )


def _test_file(record: Mapping[str, Any]) -> Coding:
    """KodCode: a file of `test_...` functions or classes that imports from `solution`."""
    return Coding(
        "test_file",
        _first(record, "question_id", "task_id", "id"),
        _text(record.get("data_source")),
        _statement(record),
        None,
        {"test": record["test"]} if record["test"].strip() else None,
        function=imported(record["test"]),
    )


def imported(test: str) -> str:
    """The only name that a test file imports from `solution`, "" if it is not one."""
    try:
        tree = ast.parse(test)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "solution"]
    names = {alias.name for line in lines for alias in line.names} - {"*"}
    return names.pop() if len(names) == 1 else ""


def _assertions(record: Mapping[str, Any], key: str) -> Coding:
    """MBPP and its like: a list of `assert f(x) == y` lines, perhaps with set-up code."""
    tests = record[key]
    if isinstance(tests, str):
        tests = [tests] if tests.lstrip()[:1] not in ("[", "{", '"') and "assert" in tests else _json(tests)
    if tests is None:
        tests = []
    if isinstance(tests, Mapping):  # PRIME's dictionary under another name
        return _apps({**record, "input_output": tests})
    if not isinstance(tests, Sequence) or not all(isinstance(test, str) for test in tests):
        raise Refused("bad_tests", f"{key} is no list of assertion lines")
    setup = "\n".join(
        part if isinstance(part, str) else "\n".join(map(str, part))
        for part in (record.get("test_imports"), record.get("test_setup_code"))
        if part
    ).strip()
    return Coding(
        "assertions",
        _first(record, "task_id", "id", "question_id", "problem_id"),
        _text(record.get("data_source")),
        _statement(record),
        None,
        [f"{setup}\n{test}" if setup else test for test in tests if test.strip()],
        function=called(tests[0]) if tests else "",
    )


def called(assertion: str) -> str:
    """Name of the first plain function that an assertion calls, "" if it calls none."""
    try:
        tree = ast.parse(assertion)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    skip = {"set", "sorted", "list", "tuple", "len", "abs", "round", "isinstance", "str", "dict", "all", "any", "sum"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in skip:
            return node.func.id
    return ""


def _statement(record: Mapping[str, Any]) -> str:
    for key in ("question_content", "question", "problem", "statement", "text", "prompt", "description"):
        if isinstance(record.get(key), str) and record[key].strip():
            return record[key]
        if key == "prompt" and isinstance(record.get(key), Sequence) and record[key]:
            messages = _messages(record[key])
            return next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    raise Refused("no_statement", "no question, problem, statement, text, prompt or description")


def _messages(prompt: Any) -> tuple[Mapping[str, str], ...]:
    if not isinstance(prompt, Sequence) or not prompt:
        raise Refused("bad_prompt", f"prompt is {type(prompt).__name__}, not a list of messages")
    for message in prompt:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise Refused("bad_prompt", "a message of the prompt has no text role and content")
    return tuple({"role": m["role"], "content": m["content"]} for m in prompt)


def _json(value: Any) -> Any:
    """Parsed when it is a JSON text, as it is otherwise."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_tests", f"the tests are no JSON: {error}") from error


def _cases(value: Any, key: str) -> list[Mapping[str, Any]]:
    """Private tests may be packed (base64 of zlib of a pickled JSON text): unpacked here, so that no rollout has to."""
    from rufus_plugins.rewards.code_formats import unpack_cases

    if value is None or value == "":
        return []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = unpack_cases(value, key)
    if not isinstance(value, Sequence) or not all(isinstance(case, Mapping) for case in value):
        raise Refused("bad_tests", f"{key} is no list of test cases")
    return list(value)


def _first(record: Mapping[str, Any], *keys: str) -> str | None:
    for key in keys:
        value = record.get(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value):
            return str(value)
    return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
