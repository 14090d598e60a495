"""LeetCode's linked lists and binary trees: the classes its judge offers, and how JSON lists become them.

`[1,2,3]` is a linked list, `[1,null,2]` a tree level by level, where the function's annotation says so. A program's own
`ListNode` or `TreeNode` takes the place of ours. Runs in the jail, in the process of the program.
"""

from __future__ import annotations

from collections import deque
from typing import Any

_MAX_NODES = 1_000_000
"""A result with more is taken for a cycle. Ours."""


class ListNode:
    def __init__(self, val: Any = 0, next: ListNode | None = None):
        self.val, self.next = val, next


class TreeNode:
    def __init__(self, val: Any = 0, left: TreeNode | None = None, right: TreeNode | None = None):
        self.val, self.left, self.right = val, left, right


def arguments_for(function: Any, arguments: list[Any], namespace: dict[str, Any]) -> list[Any]:
    """The arguments, with nodes where the annotations ask for them."""
    annotations = dict(getattr(function, "__annotations__", None) or {})
    annotations.pop("return", None)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or not annotations:
        return arguments
    names = code.co_varnames[: code.co_argcount][-len(arguments) or None :] if arguments else ()
    built = [*arguments]
    for index, name in enumerate(names):
        kind = _kind(annotations.get(name))
        if kind and isinstance(built[index], list):
            node = namespace.get(kind) or globals()[kind]
            build = _linked if kind == "ListNode" else _tree
            several = "List[" in str(annotations[name]).replace("list[", "List[")
            built[index] = [build(v, node) for v in built[index]] if several else build(built[index], node)
    return built


def plain_result(function: Any, value: Any) -> Any:
    """The result with its nodes as lists; None is an empty list where a node was announced."""
    if value is None and _kind((getattr(function, "__annotations__", None) or {}).get("return")):
        return []
    return _plain(value)


def _kind(annotation: Any) -> str | None:
    text = str(annotation)
    return next((kind for kind in ("ListNode", "TreeNode") if kind in text), None)


def _linked(values: Any, node: Any) -> Any:
    head = None
    for value in reversed(values or []):
        made = node(value)
        made.next, head = head, made
    return head


def _tree(values: Any, node: Any) -> Any:
    if not values:
        return None
    root = node(values[0])
    parents, rest = deque([root]), deque(values[1:])
    while rest and parents:
        parent = parents.popleft()
        for side in ("left", "right"):
            if rest and (value := rest.popleft()) is not None:
                setattr(parent, side, node(value))
                parents.append(getattr(parent, side))
    return root


def _plain(value: Any) -> Any:
    name = type(value).__name__
    if name == "ListNode":
        found = []
        while value is not None:
            found.append(value.val)
            value = value.next
            if len(found) > _MAX_NODES:
                raise ValueError("the linked list has a cycle")
        return found
    if name == "TreeNode":
        found, level = [], deque([value])
        while level:
            node = level.popleft()
            found.append(None if node is None else node.val)
            if node is not None:
                level += (node.left, node.right)
            if len(found) > _MAX_NODES:
                raise ValueError("the tree has a cycle")
        while found and found[-1] is None:
            found.pop()
        return found
    if type(value) is list and any(type(v).__name__ in ("ListNode", "TreeNode") for v in value):
        return [[] if v is None else _plain(v) for v in value]
    return value
