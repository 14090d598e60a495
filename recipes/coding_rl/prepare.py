"""`rufus prepare coding_rl`: public coding sets to the Parquet that verl trains on.

Records without tests are dropped, equal statements are kept once, whatever cannot be used is set aside with its
reason. Streams: only one row group and the statements' digests are in memory.
"""

from __future__ import annotations

import hashlib
import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rufus_plugins.errors import ConfigError, DataError
from rufus_plugins.recipes.coding_rl.raw_formats import Coding, Refused, take_apart
from rufus_plugins.recipes.data.records import Raw, read
from rufus_plugins.recipes.data.rl_parquet import RLParquet

FENCE = "Write the solution in Python and give it as one block:\n```python\n# your code\n```"
"""What the reward demands, told to the model; added to prompts made from a bare statement. Ours."""

ABILITY = "code"


def prepare(
    input: str,
    output_dir: Path,
    *,
    split: str = "train",
    subset: str | None = None,
    data_source: str | None = None,
    heldout_share: float = 0.0,
) -> dict[str, Any]:
    """Writes `train.parquet`, perhaps `heldout.parquet`, `set_aside.jsonl` and `manifest.json`; returns the manifest.

    `data_source` names the origin where a record does not; `heldout_share` of the statements, chosen by their digest,
    go to the held-out file. Raises `ConfigError` if the input cannot be read or nothing usable is in it.
    """
    if not 0.0 <= heldout_share < 1.0:
        raise ConfigError(f"--heldout-share is {heldout_share}; it is a share, at least 0 and below 1.")
    items = read(input, split, subset)
    named = data_source or _name_of(input)
    seen: set[bytes] = set()
    formats: Counter[str] = Counter()
    tests: list[int] = []
    with RLParquet(output_dir) as output:
        for item in items:
            if not isinstance(item, Raw):
                output.set_aside(item.where, item.reason, item.detail)
                continue
            try:
                problem = take_apart(item.record)
                ground_truth, count = checked_tests(problem)
                prompt = messages(problem)
                digest = statement_digest(problem.statement)
                if digest in seen:
                    raise Refused("duplicate", "the statement was seen before")
            except DataError as error:
                output.set_aside(item.where, getattr(error, "reason", "bad_tests"), str(error), item.record)
                continue
            seen.add(digest)
            formats[problem.format] += 1
            tests.append(count)
            held_out = int.from_bytes(digest[:8], "big") < heldout_share * 2**64
            output.add(
                "heldout" if held_out else "train",
                prompt,
                ground_truth,
                problem.data_source or named,
                ABILITY,
                {"id": problem.id or digest.hex(), "format": problem.format, "where": item.where},
            )
        return output.commit(
            {
                "stage": "coding_rl",
                "input": input,
                "formats": dict(sorted(formats.items())),
                "tests": {"total": sum(tests), "fewest": min(tests, default=0), "most": max(tests, default=0)},
                "heldout_share": heldout_share,
            }
        )


def statement_digest(statement: str) -> bytes:
    """16 bytes that are equal for statements that differ in case, white space or Unicode form only."""
    plain = " ".join(unicodedata.normalize("NFKC", statement).casefold().split())
    return hashlib.sha256(plain.encode("utf-8")).digest()[:16]


def checked_tests(problem: Coding) -> tuple[str, int]:
    """The tests as JSON text, and how many there are. Raises `DataError` as the reward would."""
    from rufus_plugins.rewards.code_asserts import split
    from rufus_plugins.rewards.code_formats import AssertTest, read_tests

    if _empty(problem.tests):
        raise Refused("no_tests", "the record has no tests")
    text = dumped(problem.tests)
    try:
        tests = read_tests(text, limit=sys.maxsize).tests
        for test in tests:
            if isinstance(test, AssertTest):
                split(test.code, test.entry_point)
    except DataError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise Refused("bad_tests", f"the tests do not read: {type(error).__name__}: {error}") from error
    return text, len(tests)


def _empty(tests: Any) -> bool:
    if isinstance(tests, Mapping):
        return not any(tests.get(key) for key in tests if key not in ("fn_name", "metadata", "entry_point"))
    return not tests


def messages(problem: Coding) -> list[dict[str, str]]:
    """The prompt: the record's own, else the statement and what the answer must look like."""
    if not problem.statement.strip():
        raise Refused("no_statement", "the statement is empty")
    given = problem.messages
    if given is None:
        parts = [problem.statement.strip()]
        if problem.starter.strip():
            parts.append(f"Start from this code:\n```python\n{problem.starter.strip()}\n```")
        elif problem.function:
            parts.append(f"Name the function `{problem.function}`.")
        given = [{"role": "user", "content": "\n\n".join([*parts, FENCE])}]
    try:
        for message in given:
            message["content"].encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused("bad_text", f"the prompt holds half a surrogate pair: {error.reason}") from error
    return [dict(message) for message in given]


def _name_of(input: str) -> str:
    path = Path(input)
    return path.name.split(".")[0] if path.exists() else input


def dumped(tests: Any) -> str:
    try:
        text = json.dumps(tests, ensure_ascii=False)
        text.encode("utf-8")
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
        raise Refused("bad_tests", f"the tests cannot be written as JSON: {error}") from error
    return text
