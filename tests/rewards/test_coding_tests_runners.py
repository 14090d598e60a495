"""Tests written for pytest and unittest, and LeetCode's lists and trees: as their own judges run them."""

import asyncio

import pytest

from rufus_plugins import DataError, Task, Trajectory
from rufus_plugins.rewards.coding_tests import CodingTests

GOOD, BAD = "def add(a, b):\n    return a + b", "def add(a, b):\n    return a - b"


def score(code, tests):
    messages = [{"role": "assistant", "content": f"```python\n{code}\n```"}]
    return asyncio.run(CodingTests()(Trajectory(Task("1", "runners", [], tests), messages=messages))).value


@pytest.mark.parametrize(
    "test",
    [
        "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3",
        "import solution\ndef test_add():\n    assert solution.add(1, 2) == 3",
        "def test_zero():\n    assert add(0, 0) == 0\ndef test_add():\n    assert add(1, 2) == 3",
        "import pytest\n@pytest.mark.parametrize('a,b,c', [(0, 0, 0), (2, 2, 4)])\n"
        "def test_add(a, b, c):\n    assert add(a, b) == c",
        "class TestAdd:\n    def setup_method(self):\n        self.a = 1\n"
        "    def test_add(self):\n        assert add(self.a, 2) == 3",
        "import unittest\nclass Adding(unittest.TestCase):\n    def test_add(self):\n"
        "        self.assertEqual(add(1, 2), 3)\nif __name__ == '__main__':\n    unittest.main()",
        "import numpy as np\nnp.testing.assert_equal(add(1, 2), 3)",
    ],
)
def test_a_test_that_a_runner_would_call_is_called(test):
    assert score(GOOD, [test]) == 1.0 and score(BAD, [test]) == 0.0


def test_assertions_that_nobody_calls_are_no_evidence():
    with pytest.raises(DataError, match="never runs"):
        score(GOOD, ["def verify():\n    assert add(1, 2) == 3"])


INVERT = """class Solution:
    def f(self, root: Optional[TreeNode]) -> Optional[TreeNode]:
        if root:
            root.left, root.right = self.f(root.right), self.f(root.left)
        return root"""
REVERSE = """class Solution:
    def f(self, head: ListNode) -> ListNode:
        behind = None
        while head:
            head.next, behind, head = behind, head, head.next
        return behind"""
MERGE = """class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
class Solution:
    def f(self, lists: List[Optional[ListNode]]) -> Optional[ListNode]:
        values = []
        for node in lists:
            while node:
                values.append(node.val)
                node = node.next
        found = None
        for value in sorted(values, reverse=True):
            found = ListNode(value, found)
        return found"""


@pytest.mark.parametrize(
    "code, given, wanted, passes",
    [
        (REVERSE, "[1,2,3]", "[3,2,1]", True),
        (REVERSE, "[]", "[]", True),
        (REVERSE, "[1,2]", "[1,2]", False),
        (INVERT, "[1,2,3,4]", "[1,3,2,null,null,null,4]", True),
        (INVERT, "[1,2,3,4]", "[1,2,3,4]", False),
        (MERGE, "[[1,4],[2,3],[]]", "[1,2,3,4]", True),
        ("def f(head: ListNode):\n    head.next = head\n    return head", "[1]", "[1]", False),
        ("def f(values: list):\n    return values", "[1,2]", "[1,2]", True),
    ],
)
def test_lists_become_nodes_where_the_annotation_says_so(code, given, wanted, passes):
    assert score(code, {"fn_name": "f", "inputs": [given], "outputs": [wanted]}) == passes
