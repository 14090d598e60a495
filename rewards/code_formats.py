"""Test formats of public coding data, read into three kinds of tests.

| format | shape of `ground_truth` (a dict, a list, or JSON text of one) |
|---|---|
| PRIME, Eurus, APPS, TACO | `{"inputs": [...], "outputs": [...], "fn_name"?: str}` |
| LiveCodeBench | `{"public_test_cases", "private_test_cases", "metadata"?: {"func_name"}}` |
| pairs | `[{"input", "output", "fn_name"?}, ...]` |
| assertion lists (MBPP, KodCode) | `["assert f(1) == 2", ...]`, or `assert_case`, `test_list`, `assertions`, `tests` |
| HumanEval | `{"test": "def check(candidate): ...", "entry_point": str}` |

`tolerance` and `time_limit_s` may stand beside the tests; they beat the reward's own.
A record without tests, or with tests that do not read, is a `DataError`: no evidence is never a pass.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import DataError

_UNPACKED_BYTES = 512 << 20
"""A compressed test set that unpacks to more is refused. Ours."""


@dataclass(frozen=True)
class StdinTest:
    stdin: str
    stdout: str


@dataclass(frozen=True)
class CallTest:
    function: str
    arguments: Sequence[Any]
    accepted: Sequence[Any]
    """The results that count: APPS wraps a result in a list of one, so that both readings are tried."""


@dataclass(frozen=True)
class AssertTest:
    code: str
    entry_point: str | None = None
    """Function handed to `check(candidate)`, if the test defines one."""


Test = StdinTest | CallTest | AssertTest


@dataclass(frozen=True)
class TestSet:
    tests: Sequence[Test]
    tolerance: float | None = None
    time_limit_s: float | None = None


def read_tests(ground_truth: Any, limit: int) -> TestSet:
    """At most `limit` tests, in their order; which ones depends on the tests alone, so that all rollouts of a
    problem meet the same."""
    record = _from_json(ground_truth)
    tests = [*_tests_of(record)]
    if not tests:
        raise DataError("the record has no tests")
    if len(tests) > limit:
        seed = hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode("utf-8", "replace")).digest()
        order = sorted(range(len(tests)), key=lambda i: hashlib.sha256(seed + i.to_bytes(8, "big")).digest())
        tests = [tests[i] for i in sorted(order[:limit])]
    options = record if isinstance(record, Mapping) else {}
    return TestSet(tests, _number(options, "tolerance"), _number(options, "time_limit_s"))


def _number(record: Mapping, name: str) -> float | None:
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise DataError(f"{name} is {value!r}, not a number from 0 on")
    return float(value)


def _from_json(value: Any) -> Any:
    if isinstance(value, str | bytes):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if "assert" in text:
                return [text]
            raise DataError(f"ground_truth is text but neither JSON nor assertions: {text[:80]!r}") from None
    return value.tolist() if hasattr(value, "tolist") else value


def _tests_of(record: Any):
    if isinstance(record, Mapping):
        if "public_test_cases" in record or "private_test_cases" in record:
            yield from _livecodebench(record)
            return
        if record.get("test") and isinstance(record["test"], str):
            yield AssertTest(record["test"], record.get("entry_point"))
            return
        for name in ("assert_case", "test_list", "assertions", "tests"):
            if record.get(name) is not None and len(record[name]):
                yield from _tests_of(record[name] if not isinstance(record[name], str) else _from_json(record[name]))
                return
        if "inputs" in record or "outputs" in record:
            yield from _prime(record)
            return
        raise DataError(f"no tests in a record with the keys {', '.join(map(str, record)) or '(none)'}")
    if isinstance(record, Sequence) and not isinstance(record, str):
        for item in record:
            item = item.tolist() if hasattr(item, "tolist") else item
            if isinstance(item, str):
                if item.strip():
                    yield AssertTest(item)
            elif isinstance(item, Mapping):
                yield _single(item, None)
            else:
                raise DataError(f"a test is a {type(item).__name__}, neither text nor a mapping")
        return
    raise DataError(f"ground_truth is a {type(record).__name__}, no tests")


def _prime(record: Mapping):
    inputs, outputs = record.get("inputs"), record.get("outputs")
    inputs = inputs.tolist() if hasattr(inputs, "tolist") else inputs
    outputs = outputs.tolist() if hasattr(outputs, "tolist") else outputs
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence):
        raise DataError("`inputs` and `outputs` must both be lists")
    if len(inputs) != len(outputs):
        raise DataError(f"{len(inputs)} inputs, but {len(outputs)} outputs")
    for given, wanted in zip(inputs, outputs, strict=True):
        yield _single({"input": given, "output": wanted}, record.get("fn_name"))


def _single(item: Mapping, function: str | None) -> Test:
    given, wanted = item.get("input", ""), item.get("output")
    function = function or item.get("fn_name") or item.get("func_name")
    if wanted is None and "output" not in item:
        raise DataError(f"a test has no `output`, only {', '.join(map(str, item))}")
    if item.get("testtype") == "functional" and not function:
        raise DataError("a functional test without a function name (LiveCodeBench keeps it in metadata.func_name)")
    if function and item.get("testtype") != "stdin":
        return CallTest(function, _arguments(given), _results(wanted))
    return StdinTest(_text(given), _text(wanted))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return "\n".join(map(_text, value))
    return "" if value is None else str(value)


def _arguments(given: Any) -> Sequence[Any]:
    """A list of arguments, or one JSON argument a line."""
    if isinstance(given, str):
        lines = [line for line in given.split("\n") if line.strip()]
        arguments = [_literal(line, strict=True) for line in lines]
    elif isinstance(given, Sequence):
        arguments = [*given]
    else:
        arguments = [given]
    # JSON turns integer keys into strings; the function was written for integers
    return [
        {int(k): v for k, v in value.items()}
        if isinstance(value, dict) and value and all(isinstance(k, str) and k.lstrip("-").isdecimal() for k in value)
        else value
        for value in arguments
    ]


def _results(wanted: Any) -> Sequence[Any]:
    if isinstance(wanted, str):
        return (_literal(wanted, strict=False),)
    if isinstance(wanted, Sequence) and len(wanted) == 1:
        return (wanted[0], wanted)
    return (wanted,)


def _literal(text: str, *, strict: bool) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    if strict:
        raise DataError(f"an argument is neither JSON nor a Python literal: {text[:80]!r}")
    return text


def _livecodebench(record: Mapping):
    metadata = record.get("metadata") or {}
    metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    function = metadata.get("func_name") or record.get("fn_name")
    for name in ("public_test_cases", "private_test_cases"):
        cases = record.get(name) or []
        if isinstance(cases, str):
            try:
                cases = json.loads(cases)
            except ValueError:
                cases = unpack_cases(cases, name)
        for case in cases:
            yield _single(case, None if case.get("testtype") == "stdin" else function)


class _TextOnly(pickle.Unpickler):
    """Unpickles plain values; a pickle that names any class or function is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        raise DataError(f"the packed tests ask for {module}.{name}: only text may be in there")


def unpack_cases(packed: str, name: str) -> Any:
    """LiveCodeBench's base64(zlib(pickle(JSON text)))."""
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(packed, validate=True), _UNPACKED_BYTES)
        if inflater.unconsumed_tail:
            raise DataError(f"{name} unpacks to more than {_UNPACKED_BYTES >> 20} MiB")
        value = _TextOnly(io.BytesIO(data)).load()
        return json.loads(value) if isinstance(value, str | bytes) else value
    except DataError:
        raise
    except Exception as error:  # a pickle that is none fails in many ways
        raise DataError(f"{name} is neither JSON nor packed JSON: {error}") from None
