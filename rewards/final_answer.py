"""Finds the final answer in a response: what the model committed to, not whatever number stands last.

In this order, on the text after the thinking:

1. the last non-empty `\\boxed{...}` or `\\fbox{...}` with balanced braces (`\\boxed 7` too); boxes joined only by
   "and", "or" or a comma are one list; a box inside a box gives the outer one;
2. `<answer>...</answer>`, the last one;
3. a line `#### 42`;
4. the last "final answer:", "answer is", "**Answer:**" and the like, to the end of its sentence;
5. a last line that is nothing but one expression (`42`, `$x = 3$`).

A number somewhere in prose is no answer: paying for it would pay for listing candidates. A response that is cut off
while thinking has no answer. Only linear scans and plain regular expressions; nothing is evaluated.
"""

from __future__ import annotations

import collections
import re

_OPEN = re.compile(r"<(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_CLOSE = re.compile(r"</(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BARE_NUMBER = re.compile(r"[-+]?\d[\d.,/]*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_JOINT = re.compile(r"[\s$.;]*(?:,|;|\band\b|\bor\b|,\s*and\b|,\s*or\b|\\text\{\s*(?:and|or)\s*\})[\s$]*")
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)
_HASHES = re.compile(r"^[ \t]*#{4}[ \t]*(\S.*)$", re.MULTILINE)
_ANCHOR = re.compile(
    r"(?:\bfinal\s+(?:answer|result|value)\b|\banswer\b|\b(?:correct|right|best)\s+(?:option|choice)\b)[*_`\s]*"
    r"(?:(?:is|are|equals|would\s+be|will\s+be|must\s+be|should\s+be|becomes)\b[*_`\s]*:?|[:=\uff1a])[*_`\s]*",
    re.IGNORECASE,
)
_JOINT_PLAIN = re.compile(r"\s*(?:,\s*(?:and|or)\b|,|;|\band\b|\bor\b)\s*")
_PERCENT = re.compile(r"\s*\\?%|\s+percent\b")
_UNIT_WORD = re.compile(
    r"\s+((?!and\b|or\b)[A-Za-z\u00b0\u00b5]{1,14}(?:[/^][A-Za-z0-9]+)?)(?=\s*(?:[.,;*]|$|\band\b|\bor\b))",
    re.MULTILINE,
)
MAX_CHARS = 10_000
"""A longer piece of text is no final answer; it also bounds what the clean-up may cost. Ours."""
_MATH_SPANS = (("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)"), ("$", "$"))
_BARE = re.compile(r"[-+]?[\d.,\s/^*()+\-=a-zA-Z%{}\\\[\]|<>!:°√π∞≤≥×]*$")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z]*\{)")


def without_thinking(text: str) -> str | None:
    """The text after the last closed thinking block; None if a block is still open at the end."""
    end = _last(_CLOSE, text)
    rest = text[end.end() :] if end else text
    start = _OPEN.search(rest)
    if start is None:
        return rest
    # a block opened after the last one was closed: cut off while thinking
    return rest[: start.start()] if rest[: start.start()].strip() and _has_answer(rest[: start.start()]) else None


def _has_answer(text: str) -> bool:
    return bool(_BOX.search(text) or _HASHES.search(text) or _TAGGED.search(text))


def final_answer(response: str, last_line: bool = True) -> str | None:
    """The final answer as written, without the delimiters around it; None if there is none.

    Without `last_line`, rule 5 is left out.
    """
    text = without_thinking(response)
    if text is None:
        return None
    for find in (_boxed, _tagged, _hashes, _anchored, *([_last_line] if last_line else [])):
        found = find(text)
        if found is None or (_BOX.search(found) and not boxes(found)):  # a box that was cut off
            continue
        if len(found) > MAX_CHARS:
            return None
        if found := _innermost(undress(found)):
            return found
    return None


def _innermost(text: str) -> str:
    """What a box that fills the whole text holds."""
    while (found := boxes(text)) and len(found) == 1 and found[0][:2] == (0, len(text)):
        text = undress(found[0][2])
    return text


def boxes(text: str) -> list[tuple[int, int, str]]:
    """All outermost complete boxes, as (start, end, content). A box that never closes is no box."""
    found: list[tuple[int, int, str]] = []
    ends = _brace_pairs(text) if _BOX.search(text) else {}
    at = 0
    while match := _BOX.search(text, at):
        at = match.end()
        if at < len(text) and text[at] == "{":
            end = ends.get(at)
            if end is None:
                continue
            found.append((match.start(), end + 1, text[at + 1 : end]))
            at = end + 1
        elif match.group().endswith((" ", "\t")) and (bare := _BARE_NUMBER.match(text, at)):
            found.append((match.start(), bare.end(), bare.group().rstrip(".,")))
            at = bare.end()
    return found


def _brace_pairs(text: str) -> dict[int, int]:
    """Opening brace -> the brace that closes it; escaped braces do not count."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            pairs[opened.pop()] = match.start()
    return pairs


def _boxed(text: str) -> str | None:
    found = [b for b in boxes(text) if b[2].strip()]
    if not found:
        return None
    parts = [found[-1]]
    for box in reversed(found[:-1]):
        between = text[box[1] : min(parts[0][0], box[1] + 100)]
        if len(parts) > 100 or not _JOINT.fullmatch(between):
            break
        parts.insert(0, box)
    return parts[0][2] if len(parts) == 1 else ", ".join(p[2].strip() for p in parts)


def _tagged(text: str) -> str | None:
    found = _last(_TAGGED, text)
    return found.group(1) if found else None


def _hashes(text: str) -> str | None:
    found = _last(_HASHES, text)
    return found.group(1) if found else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(collections.deque(pattern.finditer(text), maxlen=1)), None)


def _anchored(text: str) -> str | None:
    for anchor in reversed(collections.deque(_ANCHOR.finditer(text), maxlen=20)):
        rest = text[anchor.end() : anchor.end() + MAX_CHARS].lstrip()
        math = _leading_math(rest)
        if math is not None:
            return math
        line = rest.split("\n", 1)[0]
        # the end of the sentence: a full stop that is no decimal point
        line = re.split(r"(?<!\d)\.(?=\s|$)|(?<=\d)\.(?=\s|$)|(?<=[\w})])[!?](?=\s|$)", line, maxsplit=1)[0]
        line = re.sub(r",?\s+(?:which|because|since|as|so)\b.*$", "", line, flags=re.IGNORECASE)
        if line.strip(" *_`"):
            return line
    return None


def _leading_math(text: str) -> str | None:
    """The math spans a text begins with, joined by ", ", with the percent sign or the unit word that follows."""
    pieces: list[str] = []
    at = 0
    while span := _span_at(text, at):
        content, at = span
        pieces.append(content)
        if percent := _PERCENT.match(text, at):
            pieces[-1] += r"\%"
            at = percent.end()
        elif unit := _UNIT_WORD.match(text, at):
            pieces[-1] += rf" \text{{{unit.group(1)}}}"
            at = unit.end()
        joint = _JOINT_PLAIN.match(text, at)
        if not joint:
            break
        at = joint.end()
    return ", ".join(pieces) or None


def _span_at(text: str, at: int) -> tuple[str, int] | None:
    """The math span that starts at `at`: (content, end)."""
    for opener, closer in _MATH_SPANS:
        if text.startswith(opener, at):
            end = text.find(closer, at + len(opener))
            while end > 0 and closer.startswith("$") and text[end - 1] == "\\":
                end = text.find(closer, end + 1)
            return (text[at + len(opener) : end], end + len(closer)) if end >= 0 else None
    return None


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return None
    line = undress(lines[-1]) if len(lines[-1]) <= 300 else ""
    if len(line) > 200 or not line or _BOX.search(line):
        return None
    if line != lines[-1].strip(" *_`.") and lines[-1].strip(" *_`.").startswith(("$", r"\(", r"\[")):
        return line  # the line is one math span
    if _BARE.match(line) and not _WORD.search(line):
        return line
    return None


def undress(text: str) -> str:
    """Removes what is around an answer: markdown bold, math delimiters, a final full stop."""
    previous = None
    text = text.strip()
    while text != previous:
        previous = text
        text = text.strip().strip("`").strip()
        if text.endswith((".", "\u3002")) and not text.endswith((r"\.", "..")):
            text = text[:-1].rstrip()
        for mark in ("**", "__", "*"):
            if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
                text = text[len(mark) : -len(mark)].strip()
            elif text.endswith(mark) and text.count(mark) == 1 and mark != "*":
                text = text[: -len(mark)].strip()
        for opener, closer in _MATH_SPANS:
            if (
                len(text) > len(opener) + len(closer) - 1
                and text.startswith(opener)
                and text.endswith(closer)
                and closer not in text[len(opener) : -len(closer)].replace(r"\$", "")
                and not (closer == "$" and text.endswith(r"\$"))
            ):
                text = text[len(opener) : -len(closer)].strip()
                break
    return text
