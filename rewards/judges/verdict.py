"""Reads a judge's verdict, strictly: a score in 0..1, or None when the text holds no verdict.

None is not a score. A refusal, an empty text, a number off the scale, a text that says both "correct" and
"incorrect" without a final line: each is a failed judgement, which the client reports as an infrastructure fault.
What counts is the *last* verdict in the judge's own words; thinking and quotations do not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.rewards.final_answer import without_thinking


@dataclass(frozen=True)
class Protocol:
    """How a verdict is asked for and read."""

    ask: str
    """The closing instruction of the prompt."""
    read: Callable[[str], float | None]
    """Verdict text (no thinking) -> score in 0..1, or None."""
    schema: dict[str, Any] | None = None
    """JSON schema for servers with structured output."""


_MAX_CHARS = 20_000
"""A verdict stands at the end; the bound is for texts that no judge writes. Ours."""
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_REFUSAL = re.compile(
    r"^\W*(?:i['\u2019]?m sorry|i am sorry|sorry\b|i can(?:no|['\u2019])t|i cannot|\[error\]|error\b)", re.I
)
_VERDICT_LABEL = (
    r"(?:(?:my|the|your)\s+)?(?:final\s+|overall\s+)?"
    r"(?:verdict|judge?ment|decision|answer|conclusion|result|grade|evaluation|assessment|correct(?:ness)?)"
)


def read_verdict(protocol: str, text: str) -> float | None:
    """The score in 0..1 that a judge's text states under a protocol; None if it states none."""
    rest = without_thinking(text)
    return None if rest is None or not rest.strip() else protocol_named(protocol).read(rest.strip()[-_MAX_CHARS:])


def protocol_named(name: str) -> Protocol:
    try:
        return PROTOCOLS[name]
    except KeyError:
        raise ConfigError(f"There is no judge protocol {name!r}. Known: {', '.join(sorted(PROTOCOLS))}.") from None


def _unquoted(text: str) -> str:
    """Without code fences, quotations and quoted lines, which repeat somebody else's words."""
    text = re.sub(r"```.*?(?:```|\Z)", " ", text, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*>.*$", " ", text, flags=re.MULTILINE)
    return re.sub(
        r"\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb|`[^`\n]*`|(?<!\w)'[^'\n]*'(?!\w)", " ", text
    )


def _scaled(value: str, low: float, high: float) -> float | None:
    number = float(value)
    return (number - low) / (high - low) if low <= number <= high else None


def _score_of_ten(text: str) -> float | None:
    """`[[n]]`, else `Score: n`, `n/10` or a lone number; n in 0..10; the last one counts."""
    text = re.sub(r"(\]\]\s*(?:/|out\s+of)\s*)\[\[\s*10\s*\]\]", r"\1 10", _unquoted(text))  # [[7]] out of [[10]]
    bracketed = re.findall(rf"\[\[\s*({_NUMBER})\s*(?:/\s*10)?\s*\]\]", text)
    if bracketed:
        return _scaled(bracketed[-1], 0, 10)
    if "[[" in text or _REFUSAL.match(text):
        return None
    plain = re.sub(r"[*_]", "", text)
    found = [
        (m.start(), m.group(1) or m.group(2), m.group(3))
        for m in re.finditer(
            rf"(?:\b(?:score|rating|grade)\b\s*(?:is|of|[:=])\s*({_NUMBER})|(?<![\w./])({_NUMBER}))"
            rf"(?:\s*(?:/|out\s+of)\s*(\d+(?:\.\d+)?))?(?![\w%]|[./]\d)",
            plain,
            re.I,
        )
        if m.group(1) or m.group(3) or plain.strip().rstrip(".") == m.group(0)
    ]
    spans = r"\d\s*(?:/\s*10\s*)?(?:-|\u2013|\bto\b|\band\b)\s*\d+(?:\.\d+)?\s*(?:/\s*10)?\W*$"
    if not found or re.search(spans, plain, re.I):  # "5-6", "between 6/10 and 8/10"
        return None
    _, value, out_of = found[-1]
    return _scaled(value, 0, 10) if out_of is None or float(out_of) == 10 else None


def _rating_of_five(text: str) -> float | None:
    """The last line `Rating: n` of its own, n in 1..5, scaled (n-1)/4."""
    lines = re.findall(
        rf"^[ \t*_#-]*rating[ \t*_]*[:=][ \t*_]*\[*({_NUMBER})\]*(?:[ \t]*(?:/|out of)[ \t]*5)?[ \t*_.]*$",
        re.sub(r"```.*?```", " ", text, flags=re.DOTALL),
        re.IGNORECASE | re.MULTILINE,
    )
    return _scaled(lines[-1], 1, 5) if lines else None


_POSITIVE, _NEGATIVE = ("yes", "true", "correct", "right"), ("no", "false", "incorrect", "wrong", "not correct")


def _polarity(word: str) -> float | None:
    word = re.sub(r"[\s*_]+", " ", word).strip(" .!*_[]()<>").casefold()
    return 1.0 if word in _POSITIVE else 0.0 if word in _NEGATIVE else None


def _yes_no(text: str) -> float | None:
    """A final line or label that says yes or no, else the only such word of the text."""
    return _worded(text, r"yes|no")


def _correct(text: str) -> float | None:
    """A final line or label that says (in)correct, "Correct: no", else the verdict that all mentions agree on."""
    return _worded(text, r"not\s+correct|incorrect|correct|yes|no|true|false|wrong|right")


def _worded(text: str, words: str) -> float | None:
    if _REFUSAL.match(text):
        return None
    plain = re.sub(r"</?[A-Za-z_]{1,20}>", " ", re.sub(r"[*_#]", "", _unquoted(text)))  # <answer>No</answer>
    plain = _REFERENCE.sub(" ", plain)
    plain = re.sub(r"[^.!?\n]*\?", "", plain)  # a question states nothing
    plain = _REPORT.sub(" ", _BOTH.sub(" ", plain))
    labelled = list(
        re.finditer(rf"(?:^|(?<=[.!?;\n]))\s*{_VERDICT_LABEL}\s*(?:is\b\s*:?|[:=]|-)\s*\[*({words})\b", plain, re.I)
    )
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    last = re.fullmatch(rf"[\[(<\W]*({words})[\])>\W]*", lines[-1], re.I) if lines else None
    if last:
        return _polarity(last.group(1))
    if labelled:
        return None if _LIMITED.match(plain, labelled[-1].end()) else _polarity(labelled[-1].group(1))
    final = re.search(rf"(?:[:.\n]|^)\s*({words})\W*$", plain, re.I)
    mentions = _mentions(plain)
    if final and (not mentions or _polarity(final.group(1)) == mentions[-1]):
        return _polarity(final.group(1))
    return mentions[0] if mentions and len(set(mentions)) == 1 and mentions[0] != _UNCLEAR else None


_BOTH = re.compile(r"\b(?:yes|correct|true|right)\s*(?:and|or|/)\s*(?:no|incorrect|false|wrong)\b", re.I)
_REPORT = re.compile(
    r"\b(?:(?:claim|say|state|assert|insist|write|believe|think|pretend|declare)s|claimed|said|stated|asserted|insisted|"
    r"wrote|believed|thought|pretended|declared)\b"
    r"(?:\s+(?!which|and|but|so)[\w']+){0,4}?\s+(?:correct|incorrect|right|wrong|yes|no)\b",
    re.I,
)
"""What somebody says of it: "the candidate claims it is correct"."""
_REFERENCE = re.compile(
    r"\b(?:reference|gold|ground\s+truth|expected|premise|question|first\s+part|second\s+part|reasoning|approach|method|"
    r"formula|format|units?)(?:\s+(?:answer|solution|value|part))?\s+(?:is|are|was|looks|seems)\s+"
    r"(?:also\s+|indeed\s+|not\s+)?(?:correct|incorrect|right|wrong)\b",
    re.I,
)
"""What is said of something else than the candidate's answer: "the reference is correct"."""
_UNCLEAR = -1.0
_DOUBT = re.compile(
    r"\b(?:cannot|\w+n['\u2019]t|not|never|no|neither|nor|without|fails?|hardly|barely|far|if|unless|whether|would|could|"
    r"might|may|should|almost|nearly|partially|partly|mostly|largely|somewhat|half|semi|only)\b[^.,;:!\n]*$",
    re.I,
)
_LIMITED = re.compile(
    r"\W+(?:(?:but|though|although)\W+)?(?:only\b|if\b|except|apart\b|part(?:ly|ially)\b|in\s+part|to\s+some|"
    r"up\s+to\b)",
    re.I,
)
"""Before and after a word that it makes unclear: "hardly correct", "correct only in part"."""


def _mentions(plain: str) -> list[float]:
    """The polarity of each statement about correctness; "the correct answer is 4" states nothing."""
    found = []
    for m in re.finditer(
        r"\b(?:(not|isn't|is\s+not|never|n't)\s+(?:\w+\s+)?)?(incorrect|correct|wrong|right|yes|no)\b(?!\s*-?\s*"
        r"(?:answer|value|result|response|solution|option|choice|one|reference|number|side|hand|angle|triangle|way)\b)",
        plain,
        re.I,
    ):
        word = m.group(2).casefold()
        if word in ("yes", "no") and not re.match(r"\s*(?:[.,;:!\n]|$)", plain[m.end() :]):
            continue
        polarity = 1.0 if word in _POSITIVE else 0.0
        unclear = _DOUBT.search(plain, max(0, m.start() - 200), m.start()) or _LIMITED.match(plain, m.end())
        found.append(_UNCLEAR if unclear else 1.0 - polarity if m.group(1) else polarity)
    return found


_QUOTES_JSON = re.compile(
    r"\b(?:candidate|student|response|answer|submission|it|they)(?:\W+\w+){0,3}?\W+(?:claim(?:s|ed)|says?|said|states?|stated|"
    r"asserts?|asserted|writes?|wrote|contains?|contained|includes?|included|prints?|printed|outputs?|ends?\s+with)"
    r"(?:\s+(?:the|a|this|following|text|words?|string|json|object|line|verdict))*[^\w{}]*\Z",
    re.I,
)
"""What stands before somebody else's JSON: "the candidate says: "."""


def _json(text: str) -> float | None:
    """The last JSON object with a verdict key: `score` in 0..1, or `correct`/`verdict` true or false."""
    decoder = json.JSONDecoder(parse_constant=lambda _: None, object_pairs_hook=_object)
    verdict: float | None = None
    at = 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        start, at = at, end
        if _QUOTES_JSON.search(text[max(0, start - 200) : start]):
            continue
        if isinstance(value, dict) and any(key in value for key in ("score", "correct", "verdict")):
            verdict = _json_value(value)
    return verdict


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that is given twice with different values has none."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = value if key not in found or found[key] == value else None
    return found


def _json_value(value: dict[str, Any]) -> float | None:
    found = {_one_value(value[key]) for key in ("score", "correct", "verdict") if key in value}
    if "correct" in value and not isinstance(value["correct"], str) and value["correct"] not in (0, 1):
        return None  # half correct is not what was asked
    return found.pop() if len(found) == 1 else None


def _one_value(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        return float(value) if 0 <= value <= 1 else None
    return _polarity(value) if isinstance(value, str) else None


def _json_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


PROTOCOLS: dict[str, Protocol] = {
    "score_0_10": Protocol(
        "Explain briefly, then end with a line that holds only the score from 0 (worst) to 10 (best) in double "
        "brackets, for example [[6]].",
        _score_of_ten,
    ),
    "correct_incorrect": Protocol(
        "Explain briefly, then end with a line that holds only one word: CORRECT or INCORRECT.", _correct
    ),
    "yes_no": Protocol("Explain briefly, then end with a line that holds only one word: Yes or No.", _yes_no),
    "rating_1_5": Protocol(
        'Explain briefly, then end with a line "Rating: n", n from 1 (worst) to 5 (best).', _rating_of_five
    ),
    "json_score": Protocol(
        'Answer with one JSON object {"reason": string, "score": number from 0 to 1} and nothing else.',
        _json,
        _json_schema({"reason": {"type": "string"}, "score": {"type": "number", "minimum": 0, "maximum": 1}}),
    ),
    "json_correct": Protocol(
        'Answer with one JSON object {"reason": string, "correct": true or false} and nothing else.',
        _json,
        _json_schema({"reason": {"type": "string"}, "correct": {"type": "boolean"}}),
    ),
}
"""Verdict protocols by name."""
