"""What the models are asked, and how their replies are read. Wordings are ours; the four operations are the paper's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from rufus_plugins.recipes.data.records import Refused

OPERATIONS: Mapping[str, str] = {
    "composition": "Compose: the quantity that the problem asks for becomes the input of a further step, of another "
    "kind, whose result is asked for instead.",
    "parameterisation": "Parameterise: replace a number by a parameter or a condition from which it must first be "
    "worked out.",
    "range_shift": "Shift the range: move the numbers, the domain or the size to where the way of the solution below "
    "no longer works as it stands and has to be changed.",
    "case_split": "Split into cases: change a condition so that several cases must be told apart and treated "
    "differently.",
}
"""The four operations (Axion 1.0): composition A, parameterisation B, range shift C, case split D."""

_RULES = (
    "The new problem must need more reasoning, not more digits. It must be complete, have exactly one answer, and the "
    "answer must be a number, an expression or a few words. Do not solve it, and do not give the answer away. Reply "
    'with JSON alone: {"question": "..."}'
)
BROKEN = "BROKEN"


def compose(question: str) -> list[dict[str, str]]:
    return _asked(f"Make this problem harder. {OPERATIONS['composition']} {_RULES}\n\nProblem:\n{question}")


def harden(question: str, solution: str, operation: str) -> list[dict[str, str]]:
    return _asked(
        f"A model solved this problem in the way shown. Make it harder for that very way. "
        f"{OPERATIONS[operation]} {_RULES}"
        f"\n\nProblem:\n{question}\n\nThe model's solution:\n{solution}"
    )


def solve(question: str) -> list[dict[str, str]]:
    return _asked(f"{question}\n\nReason step by step, and put the final answer in \\boxed{{}}.")


def referee(question: str) -> list[dict[str, str]]:
    return _asked(
        f"Solve the problem. If it contradicts itself, lacks something, or has no single answer, reply with "
        f"{BROKEN}: and why, instead.\n\n{question}\n\nPut the final answer in \\boxed{{}}."
    )


def _asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def read_question(reply: str) -> str:
    """The question of a rewriting reply. Raises `Refused` for anything else."""
    text = reply.strip()
    fenced = re.search(r"```(?:json)?\s*\n(.*?)\n?```", text, re.DOTALL)
    if fenced:
        text = fenced.group(1).strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_rewrite", f"the reply is no JSON: {error}: {reply[:120]!r}") from error
    question = found.get("question") if isinstance(found, dict) else None
    if not isinstance(question, str) or not 20 <= len(question.strip()) <= 6_000:
        raise Refused("bad_rewrite", f"the reply has no question of 20 to 6,000 characters: {reply[:120]!r}")
    return question.strip()
