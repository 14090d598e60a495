"""Markdown as far as the constraints need it: fences, headings, bullets, emphasis. Line by line, linear."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import regex

RULE = regex.compile(r"^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
"""A horizontal rule."""
HEADING = regex.compile(r"^ {0,3}#{1,6}(?:[ \t]|$)|^[ \t]*\*\*[^*\n]*[^*\n.!?…。！？]\*\*:?[ \t]*$|^[ \t]*<h[1-6]\b.*$")
"""A line that is a heading: `# Title`, a whole line in bold without a full stop, `<h2>`."""
_FENCE = regex.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_BULLET = regex.compile(r"^([ \t]*+)([-*+])([ \t]++)(?=\S)")
_QUOTED = regex.compile(r"^(?:>[ ]?)++")
_SPAN = regex.compile(r"(?<!`)(`+)(?!`)")


@dataclass(frozen=True)
class Bullet:
    marker: str
    depth: int
    """0 for a bullet that stands in no other bullet."""
    text: str


def fences(text: str) -> tuple[str, list[str]]:
    """The text outside fenced code blocks, and the contents of the closed blocks."""
    outside: list[str] = []
    blocks: list[str] = []
    lines = text.split("\n")
    ends = {index for index, line in enumerate(lines) if _FENCE.match(line)}
    index = 0
    remaining = sorted(ends)
    cursor = 0
    while index < len(lines):
        opened = _FENCE.match(lines[index]) if index in ends else None
        if opened:
            while cursor < len(remaining) and remaining[cursor] <= index:
                cursor += 1
            for position in range(cursor, len(remaining)):
                closing = _FENCE.match(lines[remaining[position]])
                if closing[1][0] == opened[1][0] and len(closing[1]) >= len(opened[1]) and not closing[2].strip():
                    blocks.append("\n".join(lines[index + 1 : remaining[position]]))
                    index, cursor = remaining[position] + 1, position + 1
                    break
            else:
                remaining, ends = [], set()  # never closed: what follows is text
                outside.append(lines[index])
                index += 1
            continue
        outside.append(lines[index])
        index += 1
    return "\n".join(outside), blocks


def unfenced(text: str) -> str:
    """The content of the one code block that makes up the whole text, else the text itself.

    The closing fence may stand at the end of the last line, as models sometimes write it.
    """
    text = text.strip()
    for mark in ("```", "~~~"):
        if text.startswith(mark) and text.endswith(mark) and text[-4:-3] not in ("\n", mark[0]):
            text = f"{text[:-3]}\n{mark}"
    outside, blocks = fences(text)
    return blocks[0] if len(blocks) == 1 and not outside.strip() else text


def bullets(text: str) -> list[Bullet]:
    """Bullets outside code blocks. A rule, a negative number and emphasis at the start of a line are none."""
    found: list[Bullet] = []
    open_at: list[int] = []  # columns at which the content of the enclosing bullets begins
    blank = False
    for raw in fences(text)[0].split("\n"):
        line = raw.expandtabs(4)
        line = _QUOTED.sub("", line)
        match = None if RULE.match(line) else _BULLET.match(line)
        if match is None:
            if blank and line.strip() and not line[0].isspace():
                open_at.clear()
            blank = not line.strip()
            continue
        indent = len(match[1])
        while open_at and indent < open_at[-1]:
            open_at.pop()
        found.append(Bullet(match[2], len(open_at), line[match.end() :]))
        open_at.append(indent + 2)
        blank = False
    return found


def without_code_spans(line: str) -> str:
    """The line with its inline code blanked out."""
    out: list[str] = []
    runs = [(m.start(), m.end()) for m in _SPAN.finditer(line)]
    lengths = {end - start for start, end in runs}
    if not lengths:
        return line
    following: dict[int, deque[int]] = {n: deque() for n in lengths}
    for number, (start, end) in enumerate(runs):
        following[end - start].append(number)
    position = index = 0
    while index < len(runs):
        start, end = runs[index]
        same = following[end - start]
        while same and same[0] <= index:
            same.popleft()
        if same:
            out.append(line[position:start])
            index = same[0]
            position = runs[index][1]
        index += 1
    return "".join(out) + line[position:]


def emphasised(text: str) -> list[str]:
    """What is set between `*...*`, `**...**` or `***...***` on one line, outside code: the outermost spans.

    Runs of stars pair up as in CommonMark, up to its rules about punctuation next to them.
    """
    found: list[str] = []
    for line in fences(text)[0].split("\n"):
        if "*" not in line or RULE.match(line):
            continue
        line = without_code_spans(line.replace("\\*", "\\"))
        opened: list[list[int]] = []  # stars left, where the content begins
        spans: list[tuple[int, int]] = []
        for match in regex.finditer(r"\*+", line):
            before, after = line[match.start() - 1 : match.start()], line[match.end() : match.end() + 1]
            left = len(match[0])
            while left and opened and before and not before.isspace():
                used = min(2, left, opened[-1][0])
                begin = opened[-1][1]
                while spans and spans[-1][0] >= begin:
                    spans.pop()
                spans.append((begin, match.start()))
                left -= used
                opened[-1][0] -= used
                if not opened[-1][0]:
                    opened.pop()
            if left and after and not after.isspace():
                opened.append([left, match.end()])
        found += [line[begin:end] for begin, end in spans]
    return found
