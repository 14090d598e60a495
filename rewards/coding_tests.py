"""Coding reward: 1 if the last fenced Python block passes all selected tests, else 0. No format bonus.

Tests come from `task.ground_truth` in the formats of code_formats.py; at most `max_tests` of them, the same ones for
every rollout of a problem. Each runs in its own process of the jail (rollouts/sandboxes/zygote.py), one after another
up to the first that fails. What is expected stays outside: the program's output, the value of a call or of an
assertion's free side comes out as plain data and is compared here. Assertions that cannot be split run in a second
jailed process next to the program's (code_harness.judge) and are counted in `n_unsplit`.

A program passes a stdin test when it ends by itself with status 0 and prints what is expected: exactly, after trimming
white space at the end of each line and at the end. With `tolerance`, words that are decimal numbers may differ by that
much, absolutely or relatively.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.rewards.code_asserts import split, to_call
from rufus_plugins.rewards.code_extract import ends_with_block, last_python_block
from rufus_plugins.rewards.code_formats import AssertTest, CallTest, StdinTest, Test, TestSet, read_tests
from rufus_plugins.rollouts.sandboxes import zygote
from rufus_plugins.rollouts.sandboxes.launch import BACKENDS
from rufus_plugins.rollouts.sandboxes.plain import close, encode, same
from rufus_plugins.types import Score, Termination, Trajectory

_HARNESS = "rufus_plugins.rewards.code_harness"
_CALL, _EVALUATE, _JUDGE, _SERVE = (f"{_HARNESS}:{name}" for name in ("call", "evaluate", "judge", "serve"))
PRELOAD = (_CALL, _EVALUATE, _JUDGE, _SERVE)
_AHEAD = 64
"""Tests sent to the sandbox at a time, once the first one has passed: most wrong programs fail that. Ours."""
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class CodingTests:
    """1 if the last fenced Python block passes all selected tests in the sandbox, else 0."""

    max_tests: int = 50
    """S: "at most 50 tests", picked by a hash of the tests."""
    timeout_s: float = 6.0
    """Per test, from the moment it runs. LiveCodeBench's limit; a record's `time_limit_s` beats it."""
    memory_mb: int = 1024
    """Per test process, beyond the interpreter's own. Ours."""
    tolerance: float = 0.0
    """Allowed difference of decimal numbers; 0 = exact. A record's `tolerance` beats it."""
    require_clean_ending: bool = False
    """Score 0 unless the answer ended by itself, right after the block: a model that runs on is not rewarded. Ours."""
    workers: int | None = None
    """Tests that run at a time in this process; None = one per CPU."""
    backend: str = "auto"
    """auto | bubblewrap | landlock"""

    def __post_init__(self):
        for name, low in (("max_tests", 1), ("timeout_s", 0.01), ("memory_mb", 16), ("tolerance", 0.0)):
            if not getattr(self, name) >= low:
                raise ConfigError(f"coding_tests: {name} is {getattr(self, name)!r}, must be at least {low}")
        if self.backend not in ("auto", *BACKENDS):
            raise ConfigError(
                f"coding_tests: no sandbox backend {self.backend!r}; there are auto, {', '.join(BACKENDS)}"
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"coding_tests: workers is {self.workers!r}, must be at least 1 (or null)")

    async def __call__(self, trajectory: Trajectory) -> Score:
        tests = _read(trajectory.task.ground_truth, self.max_tests)
        source = last_python_block(trajectory.response)
        if source is None:
            return _score(tests, "no_code", explanation="the response holds no fenced Python block")
        run_on = not ends_with_block(trajectory.response)
        if self.require_clean_ending and (run_on or trajectory.termination is Termination.RESPONSE_LENGTH):
            explanation = "text follows the block" if run_on else "the response hit its length cap"
            return _score(tests, "unclean_ending", explanation=explanation, run_on=run_on)
        runner = _Runner(self, tests, source)
        index, ahead = 0, 1
        while index < len(tests.tests):
            for reason, detail in await runner.judge(tests.tests[index : index + ahead]):
                if reason != "passed":
                    return _score(tests, reason, index, runner, f"test {index}: {reason}: {detail}", run_on)
                index += 1
            ahead = _AHEAD
        return _score(tests, "passed", -1, runner, run_on=run_on)


def _score(
    tests: TestSet,
    reason: str,
    failed: int = -1,
    runner: _Runner | None = None,
    explanation: str = "",
    run_on: bool = False,
) -> Score:
    passed = reason == "passed"
    run = len(tests.tests) if passed else failed + 1
    return Score(
        float(passed),
        {
            "reason": reason,
            "first_failed": failed,
            "n_tests": len(tests.tests),
            "n_run": run,
            "run_on": int(run_on),
            "n_unsplit": runner.unsplit if runner else 0,
            "time_s": runner.time_s if runner else 0.0,
            "sandbox_retries": runner.retries if runner else 0,
        },
        explanation,
    )


def _read(ground_truth: Any, limit: int) -> TestSet:
    tests = _read_text(ground_truth, limit) if isinstance(ground_truth, str) else read_tests(ground_truth, limit)
    for test in tests.tests:
        if isinstance(test, AssertTest):
            _split(test.code, test.entry_point)  # a broken record is one whatever the program does
    return tests


_split = lru_cache(maxsize=4096)(split)
_read_text = lru_cache(maxsize=32)(read_tests)


@lru_cache
def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


class _Runner:
    """One program and what its tests have cost so far."""

    def __init__(self, config: CodingTests, tests: TestSet, source: str):
        self.zygotes = zygote.shared(PRELOAD, workers=config.workers, backend=config.backend)
        wall_s = config.timeout_s if tests.time_limit_s is None else tests.time_limit_s
        self.limits = zygote.Limits(wall_s=wall_s, memory_mb=config.memory_mb)
        self.tolerance = config.tolerance if tests.tolerance is None else tests.tolerance
        self.source = source
        wants_numpy = re.search(r"^\s*(import|from)\s+.*\bnumpy\b", source, re.M) and _installed("numpy")
        self.imports = ("numpy",) if wants_numpy else ()
        self.unsplit = 0
        self.time_s = 0.0
        self.retries = 0

    async def judge(self, tests: Sequence[Test]) -> list[tuple[str, str]]:
        """("passed", "") or (reason, detail) of the first of these tests: at least one, up to the first failure."""
        entry = self._entry(tests[0])
        if entry == _JUDGE:
            return [await self._whole(tests[0])]
        alike = list(takewhile(lambda test: self._entry(test) == entry, tests))
        outcomes = await self.zygotes.request_each(
            entry,
            [self._item(test) for test in alike],
            source=self.source.encode("utf-8", "surrogatepass"),
            limits=self.limits,
            imports=self.imports,
            retry=True,
        )
        judges = {zygote.RUN_PROGRAM: self._printed, _CALL: self._returned, _EVALUATE: self._reported}
        verdicts = []
        for test, outcome in zip(alike, outcomes, strict=False):
            verdicts.append(judges[entry](test, outcome, self._problem(outcome)))
            if verdicts[-1][0] != "passed":
                break
        self.retries += outcomes[0].retries
        return verdicts

    def _entry(self, test: Test) -> str:
        if isinstance(test, StdinTest):
            return zygote.RUN_PROGRAM
        if isinstance(test, CallTest):
            return _CALL
        return _EVALUATE if _split(test.code, test.entry_point) else _JUDGE

    def _item(self, test: Test) -> tuple[bytes, bytes]:
        """(standard input, body)"""
        if isinstance(test, StdinTest):
            return test.stdin.encode("utf-8", "surrogateescape"), b""
        if isinstance(test, CallTest):
            call = {"function": test.function, "arguments": encode([*test.arguments])}
            return b"", json.dumps(call).encode()
        parts = _split(test.code, test.entry_point)
        return b"", json.dumps({"test": parts.source}).encode()

    def _problem(self, outcome: zygote.Outcome) -> str:
        """The reason for which the outcome cannot count, if there is one."""
        self.time_s += outcome.wall_s
        if outcome.timed_out:
            return "timeout"
        if outcome.memory_exceeded:
            return "memory"
        if outcome.status != "exited":
            return f"{outcome.status}_limit"
        return "" if outcome.exit_code == 0 else "runtime_error"

    def _printed(self, test: StdinTest, outcome: zygote.Outcome, problem: str) -> tuple[str, str]:
        if problem:
            return problem, _tail(outcome)
        printed = outcome.stdout.decode("utf-8", "surrogateescape")
        if same_text(printed, test.stdout, self.tolerance):
            return "passed", ""
        return "wrong_answer", f"printed {printed[:200]!r}, expected {test.stdout[:200]!r}"

    def _returned(self, test: CallTest, outcome: zygote.Outcome, problem: str) -> tuple[str, str]:
        if problem:
            return problem, _tail(outcome)
        for frame in _claims(outcome):
            if "value" in frame:
                value = frame["value"]
                if any(same(value, wanted, as_json=True, tolerance=self.tolerance) for wanted in test.accepted):
                    return "passed", ""
                return "wrong_answer", f"returned {str(value)[:200]}, expected {str(test.accepted[0])[:200]}"
        return "runtime_error", "the program ended before the call returned"

    def _reported(self, test: AssertTest, outcome: zygote.Outcome, problem: str) -> tuple[str, str]:
        checks = _split(test.code, test.entry_point).checks
        claims = _claims(outcome, len(checks) + 16)
        values = {frame["index"]: frame.get("value") for frame in claims if type(frame.get("index")) is int}
        for index, check in enumerate(checks):
            if index not in values:
                break
            if not check.holds(values[index], self.tolerance):
                return "wrong_answer", f"{str(values[index])[:200]} {check.operator} {str(check.expected)[:200]} fails"
        if problem:
            return problem, _tail(outcome)
        if len(values) < len(checks):
            return "runtime_error", "the program ended before all assertions were reached"
        return "passed", ""

    async def _whole(self, test: AssertTest) -> tuple[str, str]:
        self.unsplit += 1
        call = to_call(test.code, test.entry_point)
        body = {"test": test.code, "entry_point": test.entry_point, "call": call}
        program = json.dumps({"source": self.source}).encode()
        outcome = await self.zygotes.request(
            _JUDGE,
            json.dumps(body).encode(),
            peer=_SERVE,
            peer_body=program,
            limits=self.limits,
            imports=self.imports,
            retry=True,
        )
        self.retries += outcome.retries
        problem = self._problem(outcome)
        if problem:
            return problem, _tail(outcome)
        for frame in _claims(outcome):  # the judge's own: the program has no way to this channel
            if frame.get("passed") is True:
                return "passed", ""
            name = frame.get("exception", "")
            reason = {"AssertionError": "wrong_answer", "MemoryError": "memory"}.get(name, "runtime_error")
            return reason, f"{name} {frame.get('text', '')}"
        return "runtime_error", _tail(outcome)


def _claims(outcome: zygote.Outcome, most: int = 16) -> Iterator[dict]:
    """What came back; of more than `most` frames the first: only a forger sends more, and reading a million takes
    seconds of the caller's."""
    for frame in outcome.frames[:most]:
        try:
            claim = json.loads(frame)
        except (ValueError, RecursionError):
            continue
        if isinstance(claim, dict):
            yield claim


def _tail(outcome: zygote.Outcome) -> str:
    return outcome.stderr.decode("utf-8", "replace").strip()[-500:]


def same_text(printed: str, expected: str, tolerance: float = 0.0) -> bool:
    """Equal after trimming white space at line ends and at the end; decimal words within `tolerance`."""
    ours, theirs = _lines(printed), _lines(expected)
    if ours == theirs:
        return True
    if not tolerance or len(ours) != len(theirs):
        return False
    for line, wanted in zip(ours, theirs, strict=True):
        words, wanted_words = line.split(), wanted.split()
        if len(words) != len(wanted_words):
            return False
        for word, goal in zip(words, wanted_words, strict=True):
            if word != goal and not (
                _DECIMAL.fullmatch(word) and _DECIMAL.fullmatch(goal) and close(float(word), float(goal), tolerance)
            ):
                return False
    return True


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


__all__ = ["CodingTests", "DataError", "same_text"]
