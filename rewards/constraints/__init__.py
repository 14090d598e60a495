"""Mechanical constraints on one response: 25 ids of IFEval (arXiv 2311.07911) and 58 of IFBench (arXiv 2507.02833).

One file per family, that is, per part of the id before the colon. Rules that hold for all of them:

- an empty response (nothing but blanks) follows nothing;
- a rule about *every* X, or about one X and the next, needs at least one X, or two: nothing follows vacuously, so
  that a policy cannot earn a reward by leaving out what the rule is about;
- a verdict depends on the response and the kwargs alone and is the same every time;
- the time is linear in the length of the response, whatever it holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from rufus_plugins.rewards.constraints import declare, reading

FAMILIES = {
    "ifeval": (
        "keywords", "language", "length_constraints", "detectable_content", "detectable_format", "combination",
        "startend", "change_case", "punctuation",
    ),
    "ifbench": ("count", "ratio", "words", "sentence", "format", "custom", "repeat"),
}  # fmt: skip


def bound(name: str, kwargs: Mapping[str, Any] | None) -> Callable[[str], str | None]:
    """The constraint with its kwargs: a function of a response that returns None, or the reason why it is not followed.

    Raises `DataError` for an unknown id and for kwargs that do not fit.
    """
    if name not in _constraints():
        raise declare.unknown(name)
    found = _constraints()[name]
    converted = found.convert(kwargs)

    def check(response: str) -> str | None:
        response = reading.clean(response)
        if not response.strip():
            return "the response is empty"
        return found.check(response, **converted)

    return check


def follows(name: str, kwargs: Mapping[str, Any] | None, response: str) -> bool:
    return bound(name, kwargs)(response) is None


def ids() -> list[str]:
    return list(_constraints())


def kwargs_of(name: str) -> list[str]:
    """The names of the kwargs that an id needs."""
    return list(_constraints()[name].kwargs)


def _constraints() -> Mapping[str, declare.Constraint]:
    for families in FAMILIES.values():
        for family in families:
            importlib.import_module(f"{__name__}.{family}")
    return declare.CONSTRAINTS
