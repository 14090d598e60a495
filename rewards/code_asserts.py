"""Splits assertions, so that a program under test never sees what is expected of it.

`assert f(2) == [4]` becomes "run `f(2)`" inside and "is it [4]?" outside. What can be split:
comparisons by == != is (is not) with a constant on one side, `and` of such, and the bare truth of a call
(`assert f(x)`, `assert not f(x)`). A side that compares by itself, like `abs(f(x) - 0.5) < 1e-6`, or that leaves the
comparing to the result (code_results.py), would hand the program both the expected value and the verdict: such a test
stays whole and runs in a process without the program (code_harness.judge).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import DataError
from rufus_plugins.rewards.code_results import Results
from rufus_plugins.rollouts.sandboxes.plain import same

REPORT = "__report__"


@dataclass(frozen=True)
class Check:
    """What must hold for one reported value."""

    operator: str
    """== | != | is | is not | true | false"""
    expected: Any = None

    def holds(self, tree: Any, tolerance: float) -> bool:
        if self.operator in ("true", "false"):
            return tree is (self.operator == "true")  # what _reported sends
        if self.operator in ("is", "is not"):
            return (type(tree) is type(self.expected) and tree == self.expected) is (self.operator == "is")
        return same(tree, self.expected, tolerance=tolerance) is (self.operator == "==")


@dataclass(frozen=True)
class Split:
    source: str
    """The test with every assertion replaced by a report of its free side."""
    checks: Sequence[Check]


def split(code: str, entry_point: str | None = None) -> Split | None:
    """The split test, or None if it must stay whole. DataError if it is no Python or asserts nothing."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"an assertion test is no Python: {error}: {code[:80]!r}") from None
    if not any(_asserts(node) for node in ast.walk(tree)):
        raise DataError(f"an assertion test asserts nothing: {code[:80]!r}")
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    if all(isinstance(node, defined) for node in tree.body) and not to_call(code, entry_point):
        raise DataError(f"an assertion test never runs its assertions: {code[:80]!r}")
    statements = _flat(tree.body, entry_point)
    own = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else [node.name]
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            else []
        )
    }
    checks: list[Check] = []
    body: list[ast.stmt] = []
    results = Results(lambda node: _calls_the_program(node, own))
    for statement in statements:
        if results.judged_by_themselves(statement):
            return None
        if not isinstance(statement, ast.Assert):
            if any(_asserts(node) for node in ast.walk(statement)):
                return None
            results.note(statement)
            body.append(statement)
            continue
        found = _checks(statement.test, own)
        if found is None:
            return None
        for expression, check in found:
            call = ast.Call(ast.Name(REPORT, ast.Load()), [ast.Constant(len(checks)), _reported(expression, check)], [])
            body.append(ast.Expr(call))
            checks.append(check)
    if not checks or _constant_assigned(statements):
        return None
    module = ast.fix_missing_locations(ast.Module(body, []))
    return Split(ast.unparse(module), checks)


def _reported(expression: ast.expr, check: Check) -> ast.expr:
    """What is sent for a check: the value; for a bare truth only that, since an object without a plain form has one."""
    if check.operator not in ("true", "false"):
        return expression
    return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), expression))


def _asserts(node: ast.AST) -> bool:
    """An assertion; also unittest's, numpy's and pytest's, which are calls."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")).lower()
        return name.startswith(("assert", "fail")) or name in ("raises", "warns")
    return isinstance(node, ast.Assert | ast.Raise)


def to_call(code: str, entry_point: str | None = None) -> list[str]:
    """What the test defines for a test runner and does not call itself: HumanEval's `check`, `test_...`, `Test...`."""
    tree = ast.parse(code)
    called = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            wanted = node.name.startswith("test") or (node.name == "check" and entry_point is not None)
        else:
            wanted = isinstance(node, ast.ClassDef) and (
                node.name.startswith("Test") or any(ast.unparse(base).endswith("TestCase") for base in node.bases)
            )
        if wanted and node.name not in called:
            found.append(node.name)
    return found


def _flat(statements: list[ast.stmt], entry_point: str | None) -> list[ast.stmt]:
    """HumanEval's `def check(candidate)` as plain statements, where that is the same."""
    kept, inlined = [], []
    for statement in statements:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check" and entry_point:
            arguments = statement.args.args
            if len(arguments) != 1 or any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                return statements
            value = ast.Name(entry_point, ast.Load())
            inlined = [ast.Assign([ast.Name(arguments[0].arg, ast.Store())], value), *statement.body]
        elif not (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and getattr(statement.value.func, "id", "") == "check"
        ):
            kept.append(statement)
    return [*kept, *inlined] if inlined else statements


def _constant_assigned(statements: list[ast.stmt]) -> bool:
    """`expected = [1, 2]` before the assertion would show it to the program."""
    names = {
        target.id
        for statement in statements
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    return any(word in name.lower() for name in names for word in ("expect", "answer", "want", "result_should"))


def _checks(test: ast.expr, own: set[str]) -> list[tuple[ast.expr, Check]] | None:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = [_checks(value, own) for value in test.values]
        return None if None in parts else [pair for part in parts for pair in part]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return [(test.operand, Check("false"))] if _calls_the_program(test.operand, own) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator = {ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not"}.get(type(test.ops[0]))
        if operator is None:
            return None
        for free, fixed in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            try:
                expected = literal(fixed)
            except ValueError:
                continue
            if operator.startswith("is") and expected is not None and not isinstance(expected, bool):
                return None
            guessable = operator != "==" or expected is None or isinstance(expected, bool)
            if not (_calls_the_program(free, own) if guessable else _compares_nothing(free, own)):
                return None
            return [(free, Check(operator, expected))]
        return None
    return [(test, Check("true"))] if _calls_the_program(test, own) else None


def _calls_the_program(node: ast.expr, own: set[str]) -> bool:
    """A call of something that neither Python nor the test defines, or of a method of one."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    while isinstance(function, ast.Attribute | ast.Call | ast.Subscript):
        function = function.func if isinstance(function, ast.Call) else function.value
    if not isinstance(function, ast.Name) or hasattr(builtins, function.id):
        return False
    return function.id not in own and function.id not in JUDGING


JUDGING = {"isclose", "approx", "allclose", "array_equal", "math", "np", "numpy", "operator", "re", "pytest"}
"""Tests use these without importing them, where the solution does."""


def _compares_nothing(node: ast.expr, own: set[str]) -> bool:
    """No verdict is made inside. What the program gets as arguments does not matter: those are inputs."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp):
        return False
    if _calls_the_program(node, own):
        return _compares_nothing(node.func, own)
    return all(_compares_nothing(child, own) for child in ast.iter_child_nodes(node))


def literal(node: ast.expr) -> Any:
    """The value of a constant expression; ValueError if it is none."""
    if isinstance(node, ast.Constant):
        if node.value is ...:
            raise ValueError("...")
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _number(literal(node.operand))
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _number(literal(node.left)), _number(literal(node.right))
        return _arithmetic(node.op, left, right)
    if isinstance(node, ast.List):
        return [literal(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(literal(item) for item in node.elts)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return _hashing(dict, [(literal(k), literal(v)) for k, v in zip(node.keys, node.values, strict=True)])
    if isinstance(node, ast.Set):
        return _hashing(set, [literal(item) for item in node.elts])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords and len(node.args) < 2:
        kind = {"set": set, "frozenset": frozenset, "list": list, "tuple": tuple, "dict": dict}.get(node.func.id)
        values = [literal(argument) for argument in node.args]
        if kind is not None and all(isinstance(v, list | tuple | set | dict | str) for v in values):
            return _hashing(kind, *values)
        if node.func.id == "float" and len(values) == 1 and isinstance(values[0], str | int | float):
            return float(values[0])
    raise ValueError("not constant")


def _hashing(kind: type, *values: Any) -> Any:
    try:
        return kind(*values)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | complex):
        raise ValueError("no number")
    return value


def _arithmetic(operator: ast.operator, left: Any, right: Any) -> Any:
    try:
        if isinstance(operator, ast.Add):
            return left + right
        if isinstance(operator, ast.Sub):
            return left - right
        if isinstance(operator, ast.Mult) and abs(left) < 1 << 64 and abs(right) < 1 << 64:
            return left * right
        if isinstance(operator, ast.Div):
            return left / right
        if isinstance(operator, ast.Pow) and abs(left) <= 1000 and 0 <= abs(right) <= 1000:
            return left**right
    except (ArithmeticError, ValueError) as error:
        raise ValueError(str(error)) from None
    raise ValueError("not constant")
