# ruff: noqa: E501  (programs as one-line texts)
"""The contract of coding_tests, and about fifty hostile and odd programs, in both sandbox backends."""

import asyncio
import json

import pytest

from rufus_plugins import ConfigError, DataError, Task, Trajectory
from rufus_plugins.rewards.coding_tests import CodingTests, same_text
from rufus_plugins.rollouts.sandboxes.zygote import available

ADD = {"inputs": ["2 3\n", "10 -4\n"], "outputs": ["5\n", "6\n"]}
CALL = {"fn_name": "add", "inputs": ["2\n3", "10\n-4"], "outputs": ["5", "6"]}
ASSERTS = ["assert add(2, 3) == 5", "assert add(10, -4) == 6"]
KEYS = {"reason", "first_failed", "n_tests", "n_run", "n_unsplit", "time_s", "sandbox_retries", "run_on"}


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request):
    found, why = available(request.param)
    if not found:
        pytest.skip(why)
    return request.param


def score(code, tests, fenced=True, **config):
    response = f"Here it is.\n\n```python\n{code}\n```\n" if fenced else code
    trajectory = Trajectory(Task("id", "test", [], tests), messages=[{"role": "assistant", "content": response}])
    return asyncio.run(CodingTests(**config)(trajectory))


# -- the contract -------------------------------------------------------------------------------------------------


def test_the_reward_is_1_only_if_every_test_passes():
    good = score("a, b = map(int, input().split())\nprint(a + b)", ADD)
    assert (good.value, good.metrics["reason"], good.metrics["first_failed"], good.metrics["n_run"]) == (
        1.0,
        "passed",
        -1,
        2,
    )
    half = score("a, b = map(int, input().split())\nprint(abs(a) + b)\nif b < 0: print('x')", ADD)
    assert (half.value, half.metrics["reason"], half.metrics["first_failed"]) == (0.0, "wrong_answer", 1)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print(0)", "wrong_answer"),
        ("1/0", "runtime_error"),
        ("def f(:", "runtime_error"),
        ("while True: pass", "timeout"),
        ("x = [0] * 10**10", "memory"),
        ("while True: print('x' * 1000)", "output_limit"),
    ],
)
def test_the_reason_of_the_first_failure_is_a_metric(code, reason):
    result = score(code, ADD, timeout_s=2 if reason != "timeout" else 0.3)
    assert (result.value, result.metrics["reason"], result.metrics["first_failed"]) == (0.0, reason, 0)
    assert set(result.metrics) == KEYS


def test_every_score_has_the_same_metrics():
    assert set(score("no code", ADD, fenced=False).metrics) == KEYS
    assert set(score("def add(a, b): return a + b", ASSERTS).metrics) == KEYS


def test_a_response_without_code_scores_0_without_running_anything():
    result = score("The answer is 5.", ADD, fenced=False)
    assert (result.value, result.metrics["reason"], result.metrics["n_run"]) == (0.0, "no_code", 0)


@pytest.mark.parametrize("tests", [{"inputs": [], "outputs": []}, [], {}, "[]", None, {"assert_case": []}, 7, "x"])
def test_a_record_without_tests_is_an_error_of_the_data_never_a_pass(tests):
    with pytest.raises(DataError):
        score("print(5)", tests)


def test_a_record_may_bring_its_own_time_limit():
    result = score(
        "import time; time.sleep(0.6)\na, b = map(int, input().split())\nprint(a + b)", ADD | {"time_limit_s": 0.2}
    )
    assert result.metrics["reason"] == "timeout"


def test_fifty_of_many_tests_are_picked_the_same_for_every_rollout():
    tests = {"inputs": [f"{i}\n" for i in range(120)], "outputs": [f"{i}\n" for i in range(120)]}
    result = score("print(int(input()))", tests)
    assert (result.value, result.metrics["n_tests"]) == (1.0, 50)
    # a program that is wrong on one input only either always or never meets it
    for wrong in (3, 77):
        values = {score(f"n = int(input())\nprint(n + (n == {wrong}))", tests).value for _ in range(2)}
        assert len(values) == 1


@pytest.mark.parametrize(
    ("field", "value"), [("max_tests", 0), ("timeout_s", 0), ("workers", 0), ("backend", "docker")]
)
def test_a_wrong_setting_says_so(field, value):
    with pytest.raises(ConfigError, match=field if field != "backend" else "bubblewrap"):
        CodingTests(**{field: value})


def test_sixty_four_scorers_at_a_time_do_not_use_up_each_others_time():
    async def main():
        reward = CodingTests(timeout_s=4, workers=2)
        code = "import time; time.sleep(0.2)\na, b = map(int, input().split())\nprint(a + b)"
        message = [{"role": "assistant", "content": f"```python\n{code}\n```"}]
        trajectory = Trajectory(Task("id", "test", [], ADD), messages=message)
        return await asyncio.gather(*[reward(trajectory) for _ in range(64)])

    assert {result.value for result in asyncio.run(main())} == {1.0}


# -- odd but right ------------------------------------------------------------------------------------------------

READ = "a, b = map(int, input().split())\n"
RIGHT = {
    "reads through sys.stdin.buffer": "import sys\na, b = map(int, sys.stdin.buffer.read().split())\nprint(a + b)",
    "reads descriptor 0": "import os\na, b = map(int, os.read(0, 1000).split())\nos.write(1, b'%d' % (a + b))",
    "guards its main": f"def main():\n    {READ}    print(a + b)\nif __name__ == '__main__':\n    main()",
    "replaces stdout by a buffer": "import io, sys\nreal = sys.stdout\nsys.stdout = io.StringIO()\n"
    + READ
    + "print(a + b)\nreal.write(sys.stdout.getvalue())",
    "ends by os._exit after a flush": "import os\n" + READ + "print(a + b, flush=True)\nos._exit(0)",
    "works in a thread with a big stack": "import sys, threading\nsys.setrecursionlimit(10**7)\n"
    "threading.stack_size(1 << 27)\ndef f(n): return n and f(n - 1)\ndef main():\n    "
    + READ
    + "    f(20000)\n    print(a + b)\nt = threading.Thread(target=main)\nt.start()\nt.join()",
    "uses names that judges import": READ + "print(reduce(lambda x, y: x + y, deque([a, b])))",
    "annotates with unimported names": "def f(x: List[int]) -> Optional[int]:\n    return sum(x)\n"
    + READ
    + "print(f([a, b]))",
    "shadows a usual name": "def gcd(a, b): return a + b\n" + READ + "print(gcd(a, b))",
    "prints noise on standard error": "import sys\nprint('debug', file=sys.stderr)\n" + READ + "print(a + b)",
    "starts a daemon thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    + READ
    + "print(a + b)",
    "has a future import": "from __future__ import annotations\n" + READ + "print(a + b)",
    "is written with CRLF": READ.replace("\n", "\r\n") + "print(a + b)\r\n",
    "prints CRLF": READ + "print(a + b, end='\\r\\n')",
    "catches its own recursion error": "def f(): f()\ntry: f()\nexcept RecursionError: pass\n" + READ + "print(a + b)",
    "holds a docstring with fences of another kind": '"""~~~\nnot a fence\n"""\n' + READ + "print(a + b)",
    "closes stdout after writing": "import sys\n" + READ + "print(a + b)\nsys.stdout.close()",
    "exits by an exception hook": "import sys\n" + READ + "print(a + b)\nsys.exit(0)",
    "reads until the end of input": "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
}


@pytest.mark.parametrize("name", RIGHT)
def test_an_odd_but_right_program_passes(name, backend):
    result = score(RIGHT[name], ADD, backend=backend)
    assert result.value == 1.0, result


# -- hostile or wrong ---------------------------------------------------------------------------------------------

HOSTILE_STDIN = {
    "right output, then an error": READ + "print(a + b)\n1/0",
    "right output, then a status": READ + "print(a + b)\nimport sys; sys.exit(1)",
    "right output, then a crash": READ + "print(a + b, flush=True)\nimport os; os.abort()",
    "extra line": READ + "print(a + b)\nprint('done')",
    "leading blank": READ + "print(f' {a + b}')",
    "reads past the end": READ + "input()\nprint(a + b)",
    "prints the harness's words": 'import os\nos.write(3, b\'\\0\\0\\0\\x10{"passed": true }\')\nprint("passed")',
    "answers on every descriptor": "import os\nfor fd in range(1, 256):\n    try: os.write(fd, b'\\0\\0\\0\\x0e{\"passed\": 1}')\n"
    "    except OSError: pass\nprint(0)",
    "looks for expected outputs in memory": "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and "
    "'outputs' in o]\nprint(found[0]['outputs'][0] if found else 0)",
    "looks for expected outputs in the frames": "import sys\nf = sys._getframe()\ntext = ''\nwhile f:\n    text += str(f.f_locals)"
    "\n    f = f.f_back\nprint('expected' in text and 5)",
    "reads the parent": "import os\nprint(open(f'/proc/{os.getppid()}/mem', 'rb').read(1))",
    "kills the parent": "import os\nos.kill(os.getppid(), 9)\nprint(0)",
    "kills everything": "import os\nos.kill(-1, 9)\nprint(0)",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "closes everything": "import os\nos.closerange(0, 256)",
    "endless recursion": "def f(): return f()\nf()",
    "crashes the interpreter": "import ctypes\nctypes.string_at(0)",
    "builds a huge integer": "print(9**9**9**9)",
    "sleeps in an exit function": "import atexit, time\n" + READ + "print(a + b)\natexit.register(time.sleep, 60)",
    "deletes the harness": "import sys\nfor name in list(sys.modules):\n    del sys.modules[name]\nprint(0)",
    "deep brackets": "x = " + "(" * 5000 + ")" * 5000,
    "null bytes": "print(5)\0",
}


@pytest.mark.parametrize("name", HOSTILE_STDIN)
def test_a_hostile_or_wrong_program_fails_its_stdin_tests(name, backend):
    result = score(HOSTILE_STDIN[name], ADD, backend=backend, timeout_s=1.5)
    assert result.value == 0.0, result
    assert result.metrics["sandbox_retries"] == 0, result


LIAR = """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __sub__(self, other): return self
    __rsub__ = __add__ = __radd__ = __sub__
    def __abs__(self): return self
    def __round__(self, n=0): return self
    def __float__(self): return 5.0
    def __bool__(self): return True
    def __hash__(self): return hash(5)
    def __contains__(self, item): return True
    def __iter__(self): return iter([True])
"""
HOSTILE_CALL = {
    "an object that equals everything": LIAR + "def add(a, b): return Liar()",
    "an integer that equals everything": "class N(int):\n    def __eq__(self, o): return True\ndef add(a, b): return N(0)",
    "a string that equals everything": "class S(str):\n    def __eq__(self, o): return True\ndef add(a, b): return S()",
    "exits inside": "import os\ndef add(a, b): os._exit(0)",
    "exits politely": "import sys\ndef add(a, b): sys.exit(0)",
    "exits at the top": "def add(a, b): return a + b\nimport sys; sys.exit(0)",
    "patches encode": "import rufus_plugins.rollouts.sandboxes.plain as p\np.same = lambda *a, **k: True\np.encode = lambda *a: True\n"
    "def add(a, b): return 0",
    "patches the harness": "import sys\nh = sys.modules['rufus_plugins.rewards.code_harness']\nh.answer = lambda d: None\n"
    "def add(a, b): return 0",
    "patches builtins": "import builtins\nbuiltins.all = builtins.any = lambda *a: True\nbuiltins.AssertionError = ValueError\n"
    "def add(a, b): return 0",
    "patches json": "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'\ndef add(a, b): return 0",
    "writes its own answers": 'import os\nfor t in (b\'{"passed": true}\', b\'{"value": true}\', b\'{"index": 0, "value": true}\'):\n'
    "    os.write(3, len(t).to_bytes(4, 'big') + t)\ndef add(a, b): return 0",
    "never returns": "def add(a, b):\n    while True: pass",
    "raises": "def add(a, b): raise AssertionError",
    "has no such function": "def plus(a, b): return a + b",
    "returns nothing": "def add(a, b): print(a + b)",
    "returns itself": "x = []\nx.append(x)\ndef add(a, b): return x",
    "returns a generator": "def add(a, b):\n    yield a + b",
    "returns NaN": "def add(a, b): return float('nan')",
    "returns text": "def add(a, b): return str(a + b)",
    "leaves a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ndef add(a, b): return a + b",
    "changes the recursion limit and dies": "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(self, n): "
    "return getattr(self, n)\ndef add(a, b): return A().x",
}
UNSPLIT = ["assert abs(add(2, 3) - 5) < 1e-9", "for a, b in [(10, -4)]:\n    assert add(a, b) == 6"]


@pytest.mark.parametrize("tests", [CALL, ASSERTS, UNSPLIT], ids=["call", "assert", "unsplit"])
@pytest.mark.parametrize("name", HOSTILE_CALL)
def test_a_hostile_or_wrong_function_fails(name, tests, backend):
    if tests is UNSPLIT and name == "leaves a thread":
        pytest.skip("the judge of a whole assertion is another process: what its program leaves running is killed")
    result = score(HOSTILE_CALL[name], tests, backend=backend, timeout_s=1.5)
    assert result.value == 0.0, result
    assert result.metrics["sandbox_retries"] == 0, result


@pytest.mark.parametrize("tests", [CALL, ASSERTS, UNSPLIT], ids=["call", "assert", "unsplit"])
def test_a_right_function_passes(tests, backend):
    result = score("def add(a, b): return a + b", tests, backend=backend)
    assert result.value == 1.0, result
    assert result.metrics["n_unsplit"] == (2 if tests is UNSPLIT else 0)
    in_a_class = score(
        "class Solution:\n    def add(self, a, b): return a + b\nadd = Solution().add", tests, backend=backend
    )
    assert in_a_class.value == 1.0, in_a_class


# -- calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "inputs", "output", "passes"),
    [
        ("return (1, [2, (3,)])", "[]", "[1, [2, [3]]]", True),
        ("return {1: 'a', None: 'b'}", "[]", '{"1": "a", "null": "b"}', True),
        ("return {'1': 'a'}", "[]", '{"1": "b"}', False),
        ("return 10**30", "[]", "1" + "0" * 30, True),
        ("return 10**5000", "[]", "1", False),
        ("return 0.1 + 0.2", "[]", "0.3", False),
        ("return 5.0", "[]", "5", True),
        ("return True", "[]", "true", True),
        ("return 1", "[]", "true", False),
        ("return None", "[]", "null", True),
        ("return None", "[]", "", False),
        ("return 'a\\ud800'", "[]", '"a\\ud800"', True),
        ("return float('nan')", "[]", "NaN", True),
        ("return float('inf')", "[]", "Infinity", True),
        ("return {1, 2}", "[]", "[1, 2]", False),
        ("return x[0]['k'][1]", '[{"k": [1, 2]}]', "2", True),
        ("return x", '"plain text"', '"plain text"', True),
        ("return x.pop() if isinstance(x, list) else 0", "[1, 2]", "2", True),
    ],
)
def test_results_are_compared_as_json_values(body, inputs, output, passes):
    result = score(f"def f(x):\n    {body}", {"fn_name": "f", "inputs": [inputs], "outputs": [output]})
    assert result.value == float(passes), result


def test_a_numpy_result_counts_as_plain_data():
    pytest.importorskip("numpy")
    code = "import numpy as np\ndef f(x):\n    return np.array(x) * np.int64(2)"
    assert score(code, {"fn_name": "f", "inputs": ["[1, 2]"], "outputs": ["[2, 4]"]}).value == 1.0


def test_tolerance_applies_to_results():
    tests = {"fn_name": "f", "inputs": ["1"], "outputs": ["[0.3]"]}
    assert score("def f(x): return [0.1 + 0.2]", tests, tolerance=1e-9).value == 1.0
    assert score("def f(x): return [0.31]", tests, tolerance=1e-9).value == 0.0


# -- assertions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "test", "value", "unsplit"),
    [
        ("def f(x): return [x]", "assert f(1) == [1]", 1, 0),
        ("def f(x): return (x,)", "assert f(1) == [1]", 0, 0),
        ("def f(x): return {x: 1}", "assert {2: 1} == f(2), 'message'", 1, 0),
        ("def f(x): return x", "assert f(1) == 1 and f(2) == 2", 1, 0),
        ("def f(x): return x > 1", "assert f(2)\nassert not f(1)\nassert f(2) is True", 1, 0),
        ("def f(x): return None", "assert f(2) is None", 1, 0),
        ("def f(x): return 0", "assert f(2) is None", 0, 0),
        ("def f(x): return {1, 2}", "assert f(2) == set([2, 1])", 1, 0),
        ("def f(x): return x", "from math import inf\nassert f(2) == 2", 1, 0),
        ("def f(x): return 1 / 3", "import math\nassert math.isclose(f(2), 0.3333333, rel_tol=1e-6)", 1, 1),
        ("def f(x): return 1 / 2", "import math\nassert math.isclose(f(2), 0.3333333, rel_tol=1e-6)", 0, 1),
        ("def f(x): raise ValueError", "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False", 1, 1),
        ("def f(x): return x", "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False", 0, 1),
        (
            "class Bad(Exception): pass\ndef f(x): raise Bad('no')",
            "try:\n    f(1)\n    assert False\nexcept Bad as error:\n    assert str(error) == 'no'",
            1,
            1,
        ),
        ("def f(g, x): return g(x)", "assert abs(f(lambda v: v + 0.5, 1) - 1.5) < 1e-9", 1, 1),
        ("def f(x): x.sort()", "x = [2, 1]\nf(x)\nassert x == [1, 2]", 1, 0),
        ("def f(x): x.sort()", "for x in [[2, 1]]:\n    f(x)\n    assert x == [1, 2]", 1, 1),
        (
            "class P:\n    def __init__(self, x): self.x = x\n    def twice(self): return 2 * self.x",
            "p = P(3)\np.x = 4\nassert p.twice() == 8\nassert p.x == 4",
            1,
            0,
        ),
        (
            "class P:\n    def __init__(self, x): self.x = x\n    def twice(self): return 2 * self.x",
            "for n in (3, 4):\n    p = P(n)\n    p.x = n\n    assert p.twice() == 2 * n and p.x == n",
            1,
            1,
        ),
        (
            "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\ndef f(x): return P(x)",
            "assert f(3) == P(3)",
            1,
            1,
        ),
        ("def isclose(*a, **k): return True\ndef f(x): return 0", "assert isclose(f(1), 5)", 0, 1),
        ("def abs(x): return 0\ndef f(x): return 0", "assert abs(f(1) - 5) < 1e-6", 0, 1),
        ("def f(x): return 0", "expected = [1]\nassert f(1) == expected", 0, 1),
        ("def f(x): return x", "assert f(1) < f(2) < f(3)", 1, 1),
        ("def f(x): return x", "assert all(f(i) == i for i in range(5))", 1, 1),
        ("def all(x): return True\ndef f(x): return 0", "assert all(f(i) == i for i in range(5))", 0, 1),
        ("import re\ndef f(x): return re.match('a', x)", "assert f('a')\nassert not f('b')", 1, 0),
        ("def f(x): return f", "assert not f(1)", 0, 0),
        ("class A:\n    def __bool__(s): return False\ndef f(x): return A()", "assert not f(1)", 1, 0),
        ("def f(x): raise ValueError", "import pytest\nwith pytest.raises(ValueError):\n    f(1)", 1, 1),
        ("def f(x): return 1", "import pytest\nwith pytest.raises(ValueError):\n    f(1)", 0, 1),
        ("import numpy as np\ndef f(x): return [x / 3]", "assert np.allclose(f(1), [1 / 3])", 1, 1),
        ("def f(x): return x / 3", "assert f(1) == pytest.approx(1 / 3)", 1, 1),
        ("def f(x): raise StopIteration", "try:\n    f(1)\n    assert 0\nexcept StopIteration:\n    pass", 1, 1),
        ("from collections import Counter\ndef f(x): return [x, 1]", "assert Counter(f(2)) == Counter([1, 2])", 1, 1),
        ("def gcd(a, b): return 3", "for a, b in [(6, 4)]:\n    assert gcd(a, b) == 2", 0, 1),
        ("class Counter:\n    def top(self): return 4", "for n in [4]:\n    assert Counter().top() == n", 1, 1),
        (
            "class Counter:\n    n = 4\ndef f(x): return x",
            "from solution import Counter\nassert Counter.n + 1 == f(5)",
            1,
            1,
        ),
        ("def f(x): return x + 4", "assert f(2) - 6 == 0\nassert sorted(f(i) - i for i in (1, 2)) == [4, 4]", 1, 1),
        ("def f(x): return 'aab'", "assert f(2).count('a') == 2", 1, 1),
        ("def f(x): return ' a '", "y = f(2)\nassert y.strip() == 'a'\nassert f(1).strip() == 'a'", 1, 0),
        ("class C(dict):\n    pass", "c = C()\nc[3] = 4\nassert c.get(3, 0) == 4", 1, 1),
        ("def f(x): return x", "x = [0] * 3\ny = x.copy() + [1]\nassert f(y) == [0, 0, 0, 1]", 1, 0),
        ("def f(x): return x", "y = f(3)\nz = y - 1\nassert z == 2", 1, 1),
    ],
)
def test_assertions_mean_what_python_means(code, test, value, unsplit, backend):
    result = score(code, [test], backend=backend)
    assert (result.value, result.metrics["n_unsplit"]) == (value, unsplit), result


ALIKE = "class A:\n    def __eq__(s, o): return True\n    __hash__ = None\n"
ZERO = "class A:\n    def __sub__(s, o): return 0\n    count = __rsub__ = difference = __sub__\ndef f(x): return A()"


@pytest.mark.parametrize(
    ("code", "test"),
    [
        (ZERO, "assert f(1) - 73519 == 0"),
        (ZERO, "assert 73519 - f(1) == 0"),
        (ZERO, "y = f(1)\ny -= 73519\nassert y == 0"),
        (ZERO, "y = f(1)\nz = y - 73519\nassert z == 0"),
        (ZERO.replace("A()", "[A()]"), "assert [v - 73519 for v in f(1)] == [0]"),
        (ZERO.replace("A()", "[A()]"), "assert list(map(lambda v: v - 73519, f(1))) == [0]"),
        (ZERO.replace("A:", "A(str):").replace("A()", "A('a')"), "assert f(1).count('a') == 0"),
        (ZERO.replace("A:", "A(set):").replace("A()", "A([2])"), "assert f(1).difference({1}) == 0"),
        (ZERO.replace("A:", "A(str):").replace("A()", "A('a')"), "y = f(1)\nz = y.count('a')\nassert z == 0"),
        (
            "class A(list):\n    def remove(s, o): pass\ndef f(x): return A()",
            "y = f(4)\ny.remove(73519)\nassert y == []",
        ),
        (
            "class A(int):\n    def __eq__(s, o): return True\ndef f(x): return A(1)",
            "match f(4):\n    case 73519: ok = 1\n    case _: ok = 0\nassert ok == 1",
        ),
        (ALIKE + "def f(x): return A()", "y = f(1) == 73519\nassert y is True"),
        (
            "import numpy.testing as t\nt.assert_allclose = print\ndef f(x): return 1",
            "import numpy as np\nnp.testing.assert_allclose(f(1), 73519)\nassert f(2) == 1",
        ),
        (
            "import pytest, contextlib\npytest.raises = contextlib.suppress\ndef f(x): return 1",
            "import pytest\nwith pytest.raises(ValueError):\n    f(-1)\nassert f(2) == 1",
        ),
        ("def f(x): raise StopIteration", "for got, want in zip(map(f, [4]), [1]):\n    assert got == want"),
        ("def f(x): raise StopIteration", "assert all(map(lambda c: f(c[0]) == c[1], [(4, 1)]))"),
        ("class S(StopIteration): pass\ndef f(x): raise S", "assert all(map(lambda c: f(c[0]) == c[1], [(4, 1)]))"),
        (ALIKE + "Counter = lambda x: A()\ndef f(x): return [1]", "assert Counter(f(4)) == Counter([1, 2])"),
        (
            "def Counter(x): return 0\ndef f(x): return [1]",
            "from solution import *\nassert Counter(f(4)) == Counter([2])",
        ),
        ("def fabs(x): return 0\ndef f(x): return 1", "assert fabs(f(4) - 73519.25) < 1e-6"),
    ],
)
def test_an_assertion_is_not_judged_by_what_the_program_returns(code, test, backend):
    result = score(code, [test], backend=backend)
    assert result.value == 0.0, result


@pytest.mark.parametrize(
    "tree", ["[]", "['l', {}]", "['i']", "['i', 'zz']", "['q', '0x1', '0x0']", "['D', 'x']", "1", "['o']"]
)
@pytest.mark.parametrize("operator", ["", "not ", "None is ", "1 == "])
def test_a_forged_report_is_a_wrong_answer_and_no_fault(tree, operator):
    code = (
        "import json, os, struct\ndef f(x):\n"
        f"    data = json.dumps({{'index': 0, 'value': {tree}}}).encode()\n"
        "    os.write(3, struct.pack('!I', len(data)) + data)\n    os._exit(0)"
    )
    result = score(code, [f"assert {operator}f(4)"])
    assert result.value == float(tree == "1" and operator == "1 == "), result


HUMANEVAL = {
    "entry_point": "f",
    "test": "METADATA = {'author': 'x'}\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 4\n",
}


def test_humaneval_checks_run_whether_split_or_not(backend):
    loop = {
        "entry_point": "f",
        "test": "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == 2 * i\n",
    }
    for tests, unsplit in ((HUMANEVAL, 0), (loop, 1)):
        good = score("def f(x): return 2 * x", tests, backend=backend)
        assert (good.value, good.metrics["n_unsplit"]) == (1.0, unsplit), good
        assert score("def f(x): return x", tests, backend=backend).value == 0.0
        assert score("def check(c): pass\ndef f(x): return x", tests, backend=backend).value == 0.0


def test_the_program_does_not_see_what_a_split_assertion_expects(backend):
    spy = (
        "import gc, sys, os\ndef f(x):\n    seen = []\n    frame = sys._getframe()\n    while frame:\n"
        "        seen.append(str(frame.f_locals) + str(frame.f_globals.keys()))\n        frame = frame.f_back\n"
        "    seen += [repr(o) for o in gc.get_objects() if type(o) in (dict, list, tuple)]\n"
        "    return ''.join(['815', '4711']) in ''.join(seen)"
    )
    # True would mean that the number was found; the program's own text holds it in two pieces
    for tests in (["assert f(1) == 8154711"], ["assert abs(f(1) - 8154711) < 2"]):
        result = score(spy, tests, backend=backend, timeout_s=10)
        assert result.metrics["reason"] == "wrong_answer", result
        assert "True" not in result.explanation, result


# -- outputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "expected", "tolerance", "equal"),
    [
        ("5\n", "5", 0, True),
        ("5 \t\n\n\n", "5\n", 0, True),
        (" 5", "5", 0, False),
        ("5\n\n6", "5\n6", 0, False),
        ("Yes", "YES", 0, False),
        ("5.0", "5", 0, False),
        ("0.3333333", "0.3333334", 0, False),
        ("0.3333333", "0.3333334", 1e-6, True),
        ("x 1e-7", "x 0", 1e-6, True),
        ("1000001", "1000000", 1e-6, True),
        ("nan", "0.5", 1e9, False),
        ("inf", "1", 1e9, False),
        ("1_0", "10", 1e-6, False),
        ("", "", 0, True),
        ("a\r\nb", "a\nb", 0, True),
    ],
)
def test_outputs_are_compared_after_trimming_only(printed, expected, tolerance, equal):
    assert same_text(printed, expected, tolerance) is equal


def test_ground_truth_may_be_json_text():
    assert score(READ + "print(a + b)", json.dumps(ADD)).value == 1.0


def test_a_broken_test_is_an_error_of_the_data_even_if_an_earlier_one_fails():
    with pytest.raises(DataError):
        score("def f(x): return 0", ["assert f(1) == 1", "assert f("])
