"""reasoning-gym's scorers, called in the jail.

Nine of them execute the answer: four call `eval` on it, five SymPy's `parse_expr`, which is `eval` too. Text that is
executed beside the scorer could write the verdict itself, so those nine see an answer only if it cannot call anything:
no parenthesis at all for the four, and no name but variables and common functions for the five.
"""

from __future__ import annotations

import functools
import re
from typing import Any

EVALUATES_LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
EVALUATES_EXPRESSIONS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc asin acos atan arcsin arccos arctan sinh cosh tanh exp log ln sqrt pi E I Abs abs".split()
)


def harmless(dataset: str, answer: str) -> bool:
    """Whether an answer can be handed to a scorer that executes it."""
    if dataset in EVALUATES_LISTS:
        return "(" not in answer
    if dataset in EVALUATES_EXPRESSIONS:
        if not re.fullmatch(r"[\w\s+\-*/^().,!]*", answer, re.ASCII) or "__" in answer:
            return False
        if re.search(r"\.\s*[A-Za-z_]|[A-Za-z_)]\s*\.|\*\*[^a-zA-Z]*\*\*", answer):
            return False  # attributes, power towers
        return all(len(name) == 1 or name in _FUNCTIONS for name in re.findall(r"[A-Za-z_]\w*", answer))
    return True


def score(item: dict[str, Any]) -> dict[str, Any]:
    """Jail entry: `{"dataset", "config", "entry", "answer"}` -> `{"score"}` or `{"problem"}` (of the record)."""
    try:
        scorer = _scorer(item["dataset"], repr(sorted(item["config"].items())), _Frozen(item["config"]))
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"}
    try:
        value = float(scorer(item["answer"], item["entry"]))
    except KeyError as error:
        return {"problem": f"the entry has no {error}"}
    except (ArithmeticError, ValueError, TypeError, AttributeError, SyntaxError, IndexError, NameError) as error:
        return {"score": 0.0, "why": f"the scorer could not read the answer: {type(error).__name__}: {error}"[:500]}
    return {"score": value}


class _Frozen(dict):
    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=64)
def _scorer(name: str, key: str, config: _Frozen) -> Any:
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise LookupError(f"reasoning-gym has no dataset {name!r}; it has {', '.join(sorted(DATASETS))}")
    dataset, settings = DATASETS[name]
    return dataset(config=settings(**config)).score_answer
