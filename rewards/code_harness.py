"""What runs inside the jail for coding_tests: calls, split assertions, and whole assertions from next door.

`call` and `evaluate` share their process with the program, which can therefore answer whatever it likes: that helps
it no more than returning it, since the expected value is not in there. A whole assertion is judged by `judge`, in a
process without the program; the program lives in the peer process (`serve`), and what the assertion calls or reads goes
over a socket as plain data. Objects that are no plain data stay where they are and are worked with by name: they can be
called, read and compared with each other, but never with a constant, since their `==` is the program's.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import struct
import sys
import types
from typing import Any

from rufus_plugins.rewards import code_nodes
from rufus_plugins.rewards.code_asserts import JUDGING, REPORT
from rufus_plugins.rollouts.sandboxes.plain import NotPlain, decode, encode
from rufus_plugins.rollouts.sandboxes.programs import answer, end, exit_code_of, run_source, shared_source

_LINK_FD = 4
_MODULE = "solution"
_MODULES = (
    "bisect cmath collections copy datetime fractions functools heapq io itertools json math operator random re "
    "statistics string sys time typing"
).split()


def _offer_usual_names() -> dict[str, Any]:
    """What judges import for everybody, as builtins: a program's own names and Python's stay what they are."""
    found: dict[str, Any] = {}
    for name in _MODULES:
        module = importlib.import_module(name)
        found[name] = module
        if name in ("json", "io", "sys", "time", "copy", "operator", "random", "statistics", "datetime", "cmath"):
            continue
        for public in getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]:
            found.setdefault(public, getattr(module, public))
    for name in ("deepcopy", "deque", "datetime", "reduce"):
        for module in ("copy", "collections", "functools"):
            if hasattr(sys.modules[module], name):
                found[name] = getattr(sys.modules[module], name)
    found |= {"ListNode": code_nodes.ListNode, "TreeNode": code_nodes.TreeNode}
    for name, value in found.items():
        if not hasattr(builtins, name):
            setattr(builtins, name, value)
    return found


_PYTHON_NAMES = frozenset(vars(builtins))
_offer_usual_names()
_VERDICTS = frozenset(
    "Counter OrderedDict defaultdict Decimal Fraction fabs isnan isinf isfinite floor ceil sqrt reduce chain "
    "zip_longest permutations combinations itemgetter".split()
)
"""Usual names that tests put around results: Python's, unless the test calls nothing else of the program. Ours."""


def call(body: bytes) -> int:
    """`{"function", "arguments"}`: answers `{"value": tree}` of the call in the shared source."""
    request = json.loads(body)
    code, module = run_source(shared_source(), _MODULE)
    if code is not None:
        return end(code, module)
    code = 0
    try:
        function = _find(vars(module), request["function"])
        arguments = code_nodes.arguments_for(function, decode(request["arguments"]), vars(module))
        result = code_nodes.plain_result(function, function(*arguments))
        answer(json.dumps({"value": encode(result)}).encode())
    except BaseException as error:
        code = exit_code_of(error)
    return end(code, module)


def _find(namespace: dict[str, Any], name: str) -> Any:
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if name in namespace:
        return namespace[name]
    raise NameError(f"the program defines no function {name!r}")


def evaluate(body: bytes) -> int:
    """`{"test"}`: runs the split test after the shared source; answers `{"index", "value": tree}` per report."""
    request = json.loads(body)
    code, module = run_source(shared_source(), _MODULE)
    if code is not None:
        return end(code, module)
    code = 0

    def report(index: int, value: Any) -> None:
        answer(json.dumps({"index": index, "value": encode(value)}).encode())

    vars(module)[REPORT] = report
    try:
        exec(compile(request["test"], "test.py", "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        code = exit_code_of(error)
    return end(code, module)


# -- whole assertions ------------------------------------------------------------------------------------------


class Link:
    """Synchronous calls both ways over one socket. Each side serves the other while it waits."""

    def __init__(self, serve_request):
        self.serve_request = serve_request

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        view = memoryview(struct.pack("!I", len(data)) + data)
        while len(view):
            view = view[os.write(_LINK_FD, view) :]

    def receive(self) -> Any:
        return json.loads(self._exactly(struct.unpack("!I", self._exactly(4))[0]))

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = os.read(_LINK_FD, min(count, 1 << 20))
            if not part:
                raise EOFError("the program ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def ask(self, **request: Any) -> Any:
        self.send({"ask": request})
        while True:
            message = self.receive()
            if "ask" not in message:
                return message
            self.send(self.serve_request(message["ask"]))


def serve(body: bytes) -> int:
    """The program's side: `{"source"}`."""
    code, module = run_source(json.loads(body)["source"], _MODULE)
    if code is not None:
        return end(code, module)
    objects: list[Any] = []

    def out(value: Any) -> Any:
        def opaque(value: Any) -> Any:
            objects.append(value)
            kind = type.mro(value) if isinstance(value, type) else ()
            return ["h", len(objects) - 1, [c.__name__ for c in kind] if BaseException in kind else []]

        return encode(value, opaque)

    def back(tree: Any) -> Any:
        if tree[0] == "h":
            return objects[tree[1]]
        if tree[0] == "callback":
            return lambda *args: back_value(link.ask(callback=tree[1], args=[out(a) for a in args]))
        raise NotPlain(str(tree[0]))

    def back_value(message: Any) -> Any:
        if "raised" in message:
            raise RuntimeError(message["text"])
        return decode(message["value"], back)

    def perform(request: dict[str, Any]) -> Any:
        try:
            if request["op"] == "names":
                return {"value": ["d", *[p for pair in _public(module).items() for p in (pair[0], out(pair[1]))]]}
            target = objects[request["of"]]
            args = [decode(tree, back) for tree in request["args"]]
            if request["op"] == "call":
                value = target(*args, **{k: decode(tree, back) for k, tree in request["named"].items()})
                return {"value": out(value), "args": [out(a) if type(a) in (list, dict, set) else None for a in args]}
            operation = {
                "get": getattr,
                "set": setattr,
                "item": lambda t, k: t[k],
                "set_item": lambda t, k, v: t.__setitem__(k, v),
                "len": len,
                "iter": lambda t: [*t],
                "contains": lambda t, k: k in t,
                "true": bool,
                "text": str,
                "equal": lambda t, o: bool(t == o),
            }[request["op"]]
            return {"value": out(operation(target, *args))}
        except BaseException as error:
            return {"raised": [c.__name__ for c in type.mro(type(error))], "text": str(error)[:2000]}

    link = Link(perform)
    try:
        while True:
            message = link.receive()
            link.send(perform(message["ask"]))
    except EOFError:
        return 0


def _public(module: types.ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("__") and not isinstance(value, types.ModuleType)
    }


class Remote:
    """An object of the program, seen from the judge."""

    __slots__ = ("_of", "_side")

    def __init__(self, side: JudgeSide, of: int):
        object.__setattr__(self, "_of", of)
        object.__setattr__(self, "_side", side)

    def _do(self, op: str, *args: Any) -> Any:
        return self._side.ask(op, self._of, args)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._side.ask("call", self._of, args, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._do("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("set_item", key, value)

    def __len__(self) -> int:
        return self._do("len")

    def __iter__(self):
        return iter(self._do("iter"))

    def __contains__(self, item: Any) -> bool:
        return self._do("contains", item) is True

    def __bool__(self) -> bool:
        return self._do("true") is True

    def __str__(self) -> str:
        return self._do("text")

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Remote) and self._do("equal", other) is True

    __hash__ = None


class JudgeSide:
    """The judge's end of the link: plain data in, `Remote` for the rest."""

    def __init__(self):
        self.callbacks: list[Any] = []
        self.stops = False
        """Whether the test itself speaks of StopIteration."""
        self.exceptions: dict[str, type[BaseException]] = {}
        self.link = Link(self.serve_callback)

    def serve_callback(self, request: Any) -> Any:
        """The only thing the program may ask for: to call a function that the test handed to it."""
        try:
            function = self.callbacks[request["callback"]]
            return {"value": self.out(function(*[decode(tree, self.back) for tree in request["args"]]))}
        except Exception as error:
            return {"raised": [type(error).__name__], "text": str(error)[:2000]}

    def out(self, value: Any) -> Any:
        def opaque(value: Any) -> Any:
            if type(value) is Remote:
                return ["h", value._of]
            if callable(value):
                self.callbacks.append(value)
                return ["callback", len(self.callbacks) - 1]
            raise NotPlain(f"a test hands over a {type(value).__name__}")

        return encode(value, opaque)

    def back(self, tree: Any) -> Any:
        if tree[0] == "h" and type(tree[1]) is int:
            return self.exception(tree[2]) if tree[2] else Remote(self, tree[1])
        raise NotPlain(str(tree[0]))

    def exception(self, mro: list[str]) -> type[BaseException]:
        """The exception class of that name: Python's, or one that stands for the program's."""
        name = str(mro[0])
        if name in ("StopIteration", "StopAsyncIteration") and not self.stops:
            return RuntimeError  # else `map` and `zip` in the test would take it for their end, and compare nothing
        known = getattr(builtins, name, None) if name in _PYTHON_NAMES else self.exceptions.get(name)
        if isinstance(known, type) and issubclass(known, Exception):
            return known
        base = self.exception(mro[1:]) if mro[1:] else Exception
        self.exceptions[name] = type(name, (base,), {})
        return self.exceptions[name]

    def ask(self, op: str, of: int = 0, args: Any = (), named: Any = None) -> Any:
        named = {name: self.out(value) for name, value in (named or {}).items()}
        message = self.link.ask(op=op, of=of, args=[self.out(a) for a in args], named=named)
        if "raised" in message:
            raise self.exception([*message["raised"], "Exception"])(message["text"])
        for given, after in zip(args, message.get("args") or (), strict=False):  # changed in place
            if after is None or type(given) not in (list, dict, set):
                continue
            after = decode(after, self.back)
            if type(after) is type(given):
                given.clear()
                (given.extend if type(given) is list else given.update)(after)
        return decode(message["value"], self.back)


def run_test(test: Any, *arguments: Any) -> None:
    """Calls a test function or the tests of a class, as pytest and unittest do."""
    if not isinstance(test, type):
        cases = [arguments]
        for mark in getattr(test, "pytestmark", []):
            if mark.name == "parametrize":
                names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
                values = [getattr(value, "values", value) for value in mark.args[1]]
                cases = [(*c, *(v if len(names) > 1 or hasattr(v, "values") else (v,))) for c in cases for v in values]
        for case in cases:
            test(*case)
        return
    import unittest

    if issubclass(test, unittest.TestCase):
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(test).run(result)
        if result.errors:
            raise RuntimeError(result.errors[0][1][-500:])
        if not result.wasSuccessful() or not result.testsRun:
            raise AssertionError("".join(text[-500:] for _, text in result.failures[:1]))
        return
    for name in [name for name in vars(test) if name.startswith("test")]:
        instance = test()
        if hasattr(instance, "setup_method"):
            instance.setup_method()
        run_test(getattr(instance, name))


def _program_names(names: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """What the test sees of the program, and what it uses without importing it, which is Python's own."""
    used = {node.id for node in ast.walk(ast.parse(request["test"])) if isinstance(node, ast.Name)}
    names = {n: v for n, v in names.items() if n not in _PYTHON_NAMES and n not in _MODULES and n not in JUDGING}
    under_test = {request["entry_point"]} if request["entry_point"] else (names.keys() & used) - _VERDICTS
    if under_test:
        names = {name: value for name, value in names.items() if name not in _VERDICTS - under_test}
    for name in used & _JUDGES.keys():
        module, _, attribute = _JUDGES[name].partition(":")
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            continue  # the test will say that the name is missing
        names[name] = getattr(loaded, attribute) if attribute else loaded
    return names


_JUDGES = {
    "np": "numpy",
    "numpy": "numpy",
    "allclose": "numpy:allclose",
    "array_equal": "numpy:array_equal",
    "pytest": "pytest",
    "approx": "pytest:approx",
}


def judge(body: bytes) -> int:
    """`{"test", "entry_point", "call"}`: runs the whole test here; answers `{"passed": ...}` at its end."""
    request = json.loads(body)
    side = JudgeSide()
    namespace: dict[str, Any] = {"__name__": "test"}
    try:
        side.stops = "StopIteration" in request["test"] or "StopAsyncIteration" in request["test"]
        public = side.ask("names")
        namespace |= _program_names(public, request)
        sys.modules[_MODULE] = types.ModuleType(_MODULE)  # `from solution import f`
        vars(sys.modules[_MODULE]).update({**public, **namespace, "__name__": _MODULE, "__all__": [*namespace]})
        code = compile(request["test"], "test.py", "exec", dont_inherit=True)
        exec(code, namespace)
        for name in request["call"]:
            run_test(namespace[name], *([namespace[request["entry_point"]]] if name == "check" else []))
        verdict = {"passed": True}
    except AssertionError:
        verdict = {"passed": False, "exception": "AssertionError"}
    except BaseException as error:
        verdict = {"passed": False, "exception": type(error).__name__, "text": str(error)[:500]}
    answer(json.dumps(verdict).encode())
    return 0
