"""User checker code of a rubric: Python that says whether a response passes. It runs only in the sandbox.

    def check(response):            # or check(response, prompt)
        return len(response.split()) < 50

The function is called `check` or `evaluate`, or is the only one at the top level, or is named by the kwarg `function`.
It returns True or False (0 and 1 count). Each call runs in a fresh process of the jail with its own limits, without
network and files; the response comes in as data. A checker that executes the response (`eval`) hands it the verdict.

- Code that does not compile, raises while it is loaded, misses a name or a module, or returns something else:
  `DataError`, for the record can never be scored.
- Code that raises, exits, runs out of time or memory on one response: that response does not pass, and the reward's
  metric `checker_errors` counts it.
"""

from __future__ import annotations

import ast
import json
import secrets
from typing import Any

from rufus_plugins.errors import DataError

_DRIVER = """
import json, os, sys
given = json.load(sys.stdin)
out = os.dup(1)
def say(**verdict):
    sys.stdout.flush()
    os.write(out, ("\\n" + given["mark"] + json.dumps(verdict)).encode())
    os._exit(0)
def describe(error):
    return (type(error).__name__ + ": " + str(error))[:500]
space = {"__name__": "checker", "__file__": "checker.py"}
try:
    exec(compile(given["source"], "checker.py", "exec"), space)
    function = space[given["function"]]
except BaseException as error:
    say(broken="raises while it is loaded: " + describe(error))
try:
    value = function(*given["arguments"])
except (NameError, ImportError) as error:
    say(broken=describe(error))
except BaseException as error:
    say(raised=describe(error))
if type(value).__name__ in ("bool", "bool_") or type(value) is int and value in (0, 1):
    say(passed=bool(value))
say(broken="returns " + repr(value)[:200] + ", which is neither true nor false")
"""


def function_of(source: str, wanted: str | None) -> tuple[str, bool]:
    """Name of the function to call and whether it takes the prompt too. Raises `DataError`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"checker code does not compile: {error}") from None
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    name = wanted or next((name for name in ("check", "evaluate") if name in found), None)
    if name is None and len(found) == 1:
        name = next(iter(found))
    if name is None or name not in found:
        asked = f"no function {wanted!r}" if wanted else "neither check nor evaluate, nor one single function"
        raise DataError(f"checker code has {asked} at its top level; it has {', '.join(found) or 'none'}")
    arguments = found[name].args
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = len(positional) - len(arguments.defaults)
    named_prompt = len(positional) > 1 and positional[1].arg in ("prompt", "question", "instruction")
    if not positional and arguments.vararg is None or needed > 2 or any(d is None for d in arguments.kw_defaults):
        raise DataError(f"checker function {name} must take (response) or (response, prompt)")
    return name, needed == 2 or named_prompt


class CheckerRun:
    """What one call said: `passed`, and `error` if the code failed on this response."""

    def __init__(self, passed: bool, error: str = ""):
        self.passed = passed
        self.error = error


async def run_checker(pool: Any, limits: Any, kwargs: Any, response: str, prompt: str) -> CheckerRun:
    """Raises `DataError` for code that can score nothing, `InfrastructureError` if the sandbox is lost."""
    mark = secrets.token_hex(16)
    given = {
        "mark": mark,
        "source": kwargs["source"],
        "function": kwargs["function"],
        "arguments": [response, prompt] if kwargs["takes_prompt"] else [response],
    }
    outcome = await pool.run(_DRIVER, json.dumps(given), limits)
    text = outcome.stdout.decode("utf-8", "replace")
    _, found, verdict = text.rpartition("\n" + mark)
    if not found:
        why = (
            f"no verdict within {limits.wall_s:g} s"
            if outcome.timed_out
            else f"more memory than {limits.memory_mb} MiB"
            if outcome.memory_exceeded
            else f"ended without a verdict ({outcome.status}, exit code {outcome.exit_code})"
        )
        return CheckerRun(False, why)
    said = json.loads(verdict)
    if "broken" in said:
        raise DataError(f"checker code {said['broken']}")
    if "raised" in said:
        return CheckerRun(False, f"raised {said['raised']}")
    return CheckerRun(said["passed"])
