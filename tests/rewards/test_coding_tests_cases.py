"""Real cases that broke other scorers (coding_tests_cases.jsonl), in both sandbox backends."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from rufus_plugins import DataError, Task, Trajectory
from rufus_plugins.rewards.coding_tests import CodingTests
from rufus_plugins.rollouts.sandboxes.zygote import available

CASES = [json.loads(line) for line in Path(__file__).with_name("coding_tests_cases.jsonl").read_text().splitlines()]
DECIDED = {
    "code-01-ext-demo-last": False,  # the last Python block is the submission, whatever it holds
    "code-11-io-float-multi": False,  # exact unless a tolerance is given: see the test below
}
NO_CHILDREN = {"code-24-orphan"}  # landlock alone cannot count processes, so it allows no child


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request):
    found, why = available(request.param)
    if not found:
        pytest.skip(why)
    return request.param


def score(case, **config):
    tests = dict(case["input"]["tests"])
    if "time_limit_s" in case["input"]:
        tests["time_limit_s"] = case["input"]["time_limit_s"]
    messages = [{"role": "assistant", "content": case["input"]["response"]}]
    return asyncio.run(CodingTests(**config)(Trajectory(Task(case["id"], "cases", [], tests), messages=messages)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_case_is_scored_as_expected(case, backend):
    began = time.monotonic()
    if not case["input"]["tests"].get("inputs", True):
        with pytest.raises(DataError, match="no tests"):
            score(case, backend=backend)
        return
    expected = DECIDED.get(case["id"], case["expected"]["pass"])
    if backend == "landlock" and case["id"] in NO_CHILDREN:
        expected = False
    result = score(case, backend=backend)
    assert result.value == float(expected), result
    assert time.monotonic() - began < case["expected"].get("max_seconds", 30)


def test_with_a_tolerance_the_decimal_case_passes():
    case = next(case for case in CASES if case["id"] == "code-11-io-float-multi")
    assert score(case, tolerance=1e-6).value == 1.0
    case["input"]["tests"]["tolerance"] = 1e-6
    assert score(case).value == 1.0
