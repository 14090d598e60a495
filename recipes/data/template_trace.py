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

from rufus_plugins.errors import ConfigError
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
        self.read: set[tuple[int, int]] = set()
        """(message being written, other message whose content was read meanwhile)."""
        self._stack: list[tuple[int, int]] = []  # (loop, message): a template may write a tool's result within a call
        self._start = 0

    def enter(self, loop: int, value: Any) -> None:
        self.leave(loop)
        self.assigned(loop, value)

    def assigned(self, loop: int, value: Any) -> None:
        """Also `{% set message = messages[i] %}` in a loop over numbers; the first message of a pass is the one."""
        message = self.index.get(id(value))
        if message is not None and all(loop != number for number, _ in self._stack):
            self._close()
            self._stack.append((loop, message))

    def leave(self, loop: int) -> None:
        for depth, (number, _) in enumerate(self._stack):
            if number == loop:
                self._close()
                del self._stack[depth:]
                return

    def content_read(self, message: int) -> None:
        if self._stack and self._stack[-1][1] != message:
            self.read.add((self._stack[-1][1], message))

    def _close(self) -> None:
        if self._stack and self.at > self._start:
            owner = self._stack[-1][1]
            if self.found and self.found[-1][0] == owner and self.found[-1][2] == self._start:
                self.found[-1] = (owner, self.found[-1][1], self.at)
            else:
                self.found.append((owner, self._start, self.at))
        self._start = self.at


class _Watched(dict):
    """A message that tells when its content is read."""

    __slots__ = ("told",)

    def __getitem__(self, key: Any) -> Any:
        if key == "content":
            self.told()
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        if key == "content":
            self.told()
        return super().get(key, default)


def render(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> tuple[str, list[tuple[int, int, int]]]:
    """The text and its spans `(message, start, end)`.

    Raises `Refused`: "template_refuses" with the template's own words, "untraceable" where an assistant's turn is
    written with the text of another message in it. `ConfigError` for a template that is no Jinja.
    """
    compiled = _compiled(template)
    watched = [_Watched(message) for message in messages]
    spans = Spans(watched)
    for i, message in enumerate(watched):
        message.told = functools.partial(spans.content_read, i)
    calls = {ENTER: spans.enter, ASSIGNED: spans.assigned, LEAVE: spans.leave}
    pieces: list[str] = []
    try:
        context = compiled.new_context({**variables, **calls, "messages": watched})
        for piece in compiled.root_render_func(context):
            pieces.append(piece)
            spans.at += len(piece)
    except Exception as error:  # a template may divide by zero: whatever it raises, it does not write this conversation
        raise Refused("template_refuses", f"{type(error).__name__}: {error}") from error
    text = "".join(pieces)
    _check_reads(text, messages, spans)
    return text, spans.found


def _check_reads(text: str, messages: Sequence[Mapping[str, Any]], spans: Spans) -> None:
    """A turn whose pass read the content of another message may look at it, but not write it."""
    for writer, other in sorted(spans.read):
        said, own = messages[other].get("content"), messages[writer]
        if own.get("role") != "assistant" or not isinstance(said, str) or not said.strip():
            continue
        if said.strip() in str(own.get("content")) or said.strip() in str(own.get("reasoning_content")):
            continue
        if any(said.strip() in text[start:end] for owner, start, end in spans.found if owner == writer):
            raise Refused("untraceable", f"the template writes message {other} within the turn of message {writer}")


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    from jinja2 import TemplateError, nodes
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        environment = _compile_jinja_template(template).environment
    except TemplateError as error:
        where = f"line {error.lineno}: " if getattr(error, "lineno", None) else ""
        raise ConfigError(f"The chat template cannot be read: {where}{error.message}") from error
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
