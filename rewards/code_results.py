"""Follows through an assertion test what the program gave, to see where it would be judged by itself.

`f(2) - 4 == 0` and `f("x").count("a") == 2` look like comparisons with a constant, but an operator or a method of plain
data on a result is the result's own: it would see the 4 and may answer 0. Tests with such lines are run whole, in a
process that gets results as plain data (code_harness.judge). Reads the test's syntax tree alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

_METHODS = frozenset(
    name for kind in (str, bytes, list, tuple, dict, set, int, float) for name in dir(kind) if name[0] != "_"
)
_ORDERS = (ast.BinOp, ast.AugAssign, ast.Compare)


class Results:
    """Variables of a test so far. `calls(node)` says whether a node is a call of something the test does not define."""

    def __init__(self, calls: Callable[[ast.AST], bool]):
        self._calls = calls
        self._from_program: set[str] = set()
        self._from_test: set[str] = set()

    def note(self, statement: ast.stmt) -> None:
        """Remembers the variables that the statement sets."""
        names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        made, other = (self._from_program, self._from_test)[:: 1 if self._given(statement) else -1]
        made |= names
        other -= names

    def judged_by_themselves(self, statement: ast.stmt) -> bool:
        """Whether an operator, a comparison outside `assert`, or a method of plain data with arguments works on a
        result."""
        bound = self._bound(statement)
        orders = _ORDERS[:2] if isinstance(statement, ast.Assert) else _ORDERS
        for node in self._outside_calls(statement):
            if isinstance(node, orders) and self._given(node, bound):
                return True
            if isinstance(node, ast.Match) and self._given(node.subject, bound):
                return True
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
                if (node.args or node.keywords) and self._given(node.func.value, bound):
                    return True
        return False

    def _bound(self, statement: ast.stmt) -> set[str]:
        """Names that comprehensions and lambdas of the statement give to parts of results."""
        names: set[str] = set()
        for node in self._outside_calls(statement):
            if isinstance(node, ast.comprehension) and self._given(node.iter, names):
                names |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            elif isinstance(node, ast.Lambda) and self._given(statement, names):
                names |= {argument.arg for argument in node.args.args}
        return names

    def _given(self, node: ast.AST, bound: set[str] = frozenset()) -> bool:
        known = self._from_program | bound
        return any(
            part.id in known if isinstance(part, ast.Name) else self._is_call(part)
            for part in self._outside_calls(node)
        )

    def _is_call(self, node: ast.AST) -> bool:
        if not self._calls(node):
            return False
        while not isinstance(node, ast.Name):
            node = node.func if isinstance(node, ast.Call) else node.value
        return node.id not in self._from_test

    def _outside_calls(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node and those below, without the arguments of the program's calls: these are inputs."""
        yield node
        for child in [node.func] if self._is_call(node) else ast.iter_child_nodes(node):
            yield from self._outside_calls(child)
