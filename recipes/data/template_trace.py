"""Renders a chat template once and says which message wrote which characters.

Rendering every prefix of a conversation costs turns squared and is wrong for templates that treat the last turn in
another way (dropped thinking). Here the template's own syntax tree gets calls that write nothing: at the start of
each pass of a `for` loop they tell which message is being written, at its end that it is over. The text stays the
template's, character by character.

Compiled in the environment that transformers compiles in (utils/chat_template_utils.py, 5.10), so filters, extensions
and the sandbox are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rufus_plugins.recipes.data.records import Refused

ENTER, ASSIGNED, LEAVE = "rufus_enter_", "rufus_assigned_", "rufus_leave_"


class Spans:
    """Whose turn it is to write, while the template runs."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]):
        self.index = {id(message): i for i, message in enumerate(messages)}
        self.at = 0
        """Characters written so far."""
        self.found: list[tuple[int, int, int]] = []
        """(message, start, end), nothing empty, in the order of writing."""
        self._loop: int | None = None
        self._message = self._start = 0

    def enter(self, loop: int, value: Any) -> None:
        if self._loop is not None and self._loop != loop:
            return  # a loop within the writing of a message: over its calls, or searching for another message
        self._close()
        self._open(loop, value)

    def assigned(self, loop: int, value: Any) -> None:
        """`{% set message = messages[i] %}` in a loop over numbers; the first message of a pass is the one written."""
        if self._loop is None:
            self._open(loop, value)

    def leave(self, loop: int) -> None:
        if self._loop == loop:
            self._close()

    def _open(self, loop: int, value: Any) -> None:
        message = self.index.get(id(value))
        if message is not None:
            self._loop, self._message, self._start = loop, message, self.at

    def _close(self) -> None:
        if self._loop is not None and self.at > self._start:
            self.found.append((self._message, self._start, self.at))
        self._loop = None


def render(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> tuple[str, list[tuple[int, int, int]]]:
    """The text and its spans `(message, start, end)`. Each message must be an object of its own.

    Raises `Refused("template_refuses")` with the template's own words.
    """
    compiled = _compiled(template)
    spans = Spans(messages)
    calls = {ENTER: spans.enter, ASSIGNED: spans.assigned, LEAVE: spans.leave}
    pieces: list[str] = []
    try:
        context = compiled.new_context({**variables, **calls, "messages": list(messages)})
        for piece in compiled.root_render_func(context):
            pieces.append(piece)
            spans.at += len(piece)
    except Exception as error:  # a template may divide by zero: whatever it raises, it does not write this conversation
        raise Refused("template_refuses", f"{type(error).__name__}: {error}") from error
    return "".join(pieces), spans.found


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    from jinja2 import nodes
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment = _compile_jinja_template(template).environment
    tree = environment.parse(template)
    for number, loop in enumerate(list(tree.find_all(nodes.For))):
        _instrument(nodes, tree, loop, number)
    tree.set_environment(environment)
    code = environment.compile(tree, name=None, filename="<traced chat template>")
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


def _instrument(nodes: Any, tree: Any, loop: Any, number: int) -> None:
    def call(name: str, *arguments: Any) -> Any:
        made = nodes.Call(nodes.Name(name, "load"), [nodes.Const(number), *arguments], [], None, None)
        return nodes.ExprStmt(made, lineno=loop.lineno)

    _after_assignments(nodes, loop.body, call)
    if isinstance(loop.target, nodes.Name):
        loop.body.insert(0, call(ENTER, nodes.Name(loop.target.name, "load")))
    else:
        loop.body.insert(0, call(LEAVE))
    loop.body.append(call(LEAVE))
    for body in _bodies(tree):  # after the loop too: `continue` and `break` jump over the end of its body
        places = [i for i, node in enumerate(body) if node is loop]
        for i in places:
            body.insert(i + 1, call(LEAVE))


def _after_assignments(nodes: Any, body: list[Any], call: Any) -> None:
    """In the loop's body and its branches, but not in loops within it, which have their own number."""
    for i in reversed(range(len(body))):
        node = body[i]
        if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
            body.insert(i + 1, call(ASSIGNED, nodes.Name(node.target.name, "load")))
        elif isinstance(node, nodes.If):
            for branch in (node.body, node.else_, *(n.body for n in node.elif_)):
                _after_assignments(nodes, branch, call)


def _bodies(tree: Any) -> list[list[Any]]:
    """Every list of statements in the tree."""
    found, todo = [], [tree]
    while todo:
        node = todo.pop()
        for _, value in node.iter_fields():
            if isinstance(value, list) and value and not isinstance(value[0], (str, int, tuple)):
                found.append(value)
        todo.extend(node.iter_child_nodes())
    return found
