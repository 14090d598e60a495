"""The program in a response: the last fenced Python block.

Fences are CommonMark's: three or more backticks or tildes, closed by at least as many of the same. Decided here (ours):
- Python is what the info string's first word says, in any case: python, py, python3, py3, pypy, pypy3, cpython.
- A block without any tag counts only when the response has no tagged Python block. Text outside fences never counts.
- An unclosed last block counts up to the end of the response (a truncated program fails by itself), or up to a fence at
  the end of a line of code, where the model forgot the line break.
- A fence tagged as Python may stand behind words on its line (`Here it is: ```python`).
- Only what follows the last `</think>` is the answer; a `<think>` that never ends leaves none.
- A fence may stand in a list item or a quotation; the block loses that indentation, or the quotation's marks.
"""

from __future__ import annotations

import re

_OPEN = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*(.*)$")
_CONTAINER = re.compile(r"[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])(?=[ \t]))[ \t]?")
"""A mark of a quotation or of a list item, before a fence on the same line."""
_BEHIND_WORDS = re.compile(r"^(?:[^`]|`[^`]+`)*(?<!`)(`{3,})[ \t]*((?:python|py)3?)[ \t]*$", re.IGNORECASE)
_TAGS = {"python", "py", "python3", "py3", "pypy", "pypy3", "cpython"}


def last_python_block(response: str) -> str | None:
    """The program, or None if the response holds none."""
    if "</think>" in response:
        response = response.rpartition("</think>")[2]
    elif response.lstrip().startswith("<think>"):
        return None
    tagged, untagged = None, None
    for info, code in fenced_blocks(response):
        word = re.match(r"[{.\s]*([\w+#-]*)", info.lower()).group(1)
        if word in _TAGS:
            tagged = code
        elif not info.strip():
            untagged = code
    return tagged if tagged is not None else untagged


def ends_with_block(response: str) -> bool:
    """Whether the last line that is not empty closes a fenced block."""
    return _scan(response)[1]


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(info string, content) of each fenced code block, in order."""
    return _scan(text)[0]


def _scan(text: str) -> tuple[list[tuple[str, str]], bool]:
    """The blocks, and whether the last of them is closed by the last line that is not empty."""
    closed = False
    blocks: list[tuple[str, str]] = []
    fence = info = ""
    quotes = indent = 0
    lines: list[str] = []
    for line in re.split(r"\r\n|\n|\r", text):
        if not fence:
            if opened := _opening(line):
                quotes, indent, fence, info = opened
                lines = []
            closed = closed and not line.strip()
            continue
        line = _unquoted(line, quotes)
        match = _OPEN.match(line)
        if match and match[2][0] == fence[0] and len(match[2]) >= len(fence) and not match[3].strip():
            blocks.append((info, "\n".join(lines) + "\n"))
            fence, closed = "", True
        else:
            lines.append(_outdented(line, indent))
    if fence:
        ends = [i for i, line in enumerate(lines) if line.endswith(fence) and line.count(fence[0]) == len(fence)]
        if ends:
            closed = not any(line.strip() for line in lines[ends[0] + 1 :])
            lines = [*lines[: ends[0]], lines[ends[0]].removesuffix(fence)]
        blocks.append((info, "\n".join(lines) + "\n"))
    return blocks, closed


def _opening(line: str) -> tuple[int, int, str, str] | None:
    """(marks of quotations, columns of indentation, fence, info string) where the line opens a block."""
    at = quotes = 0
    while mark := _CONTAINER.match(line, at):
        at = mark.end()
        quotes += ">" in mark.group()
    match = _OPEN.match(line[at:])
    if match and not (match[2][0] == "`" and "`" in match[3]):
        before = line[: at + len(match[1])]
        columns = len(before.rpartition(">")[2].expandtabs(4)) - (quotes > 0 and before.rpartition(">")[2][:1] == " ")
        return quotes, columns, match[2], match[3]
    if behind := _BEHIND_WORDS.match(line):
        return 0, 0, behind[1], behind[2]
    return None


def _unquoted(line: str, quotes: int) -> str:
    for _ in range(quotes):
        mark = re.match(r"[ \t]{0,3}> ?", line)
        if not mark:
            break
        line = line[mark.end() :]
    return line


def _outdented(line: str, columns: int) -> str:
    """Without up to that many columns of white space; a tab goes to the next multiple of four."""
    at = column = 0
    while at < len(line) and column < columns and line[at] in " \t":
        column = column + 1 if line[at] == " " else (column // 4 + 1) * 4
        at += 1
    return " " * max(0, column - columns) + line[at:]
