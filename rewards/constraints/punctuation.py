"""IFEval `punctuation:`."""

from __future__ import annotations

from rufus_plugins.rewards.constraints.declare import constraint
from rufus_plugins.rewards.constraints.reading import only_punctuation

COMMAS = frozenset(
    "\u002c\u055d\u060c\u07f8\u1363\u1802\u1808\u2e32\u2e34\u2e41\u2e49\u2e4c\u3001\ua4fe\ua60d\ua6f5\ufe10\ufe11\ufe50\ufe51\uff0c\uff64"
    "\U0001144d\U0001145a\U00016e97\U0001da87"
)
"""Every punctuation mark of Unicode that is a comma by name, among them the Arabic and the full-width one."""


@constraint("punctuation:no_comma")
def no_comma(response: str) -> str | None:
    if only_punctuation(response):
        return "nothing but punctuation"
    found = COMMAS.intersection(response)
    return f"comma: {' '.join(sorted(found))}" if found else None
