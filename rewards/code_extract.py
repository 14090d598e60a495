"""The program in a response: the last fenced Python block.

Fences are CommonMark's: three or more backticks or tildes, closed by at least as many of the same. Decided here (ours):
- Python is what the info string's first word says, in any case: python, py, python3, py3, pypy, pypy3, cpython.
- A block without any tag counts only when the response has no tagged Python block. Text outside fences never counts.
- An unclosed last block counts up to the end of the response: a truncated program fails by itself.
- Only what follows the last `</think>` is the answer; a `<think>` that never ends leaves none.
- A fence inside a list item may be indented; the block loses that indentation.
"""

from __future__ import annotations

import re

_OPEN = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*(.*)$")
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
    head, _, last = response.rstrip().rpartition("\n")
    match = _OPEN.match(last)
    if not match or match[3].strip():
        return False
    blocks = fenced_blocks(head)
    # A fence that closes leaves the blocks as they were (an unclosed one counts); one that opens adds a block.
    return bool(blocks) and fenced_blocks(f"{head}\n{last}") == blocks


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(info string, content) of each fenced code block, in order."""
    blocks: list[tuple[str, str]] = []
    fence = indent = info = ""
    lines: list[str] = []
    for line in re.split(r"\r\n|\n|\r", text):
        match = _OPEN.match(line)
        if not fence:
            if match and not (match[2][0] == "`" and "`" in match[3]):
                indent, fence, info, lines = match[1], match[2], match[3], []
        elif match and match[2][0] == fence[0] and len(match[2]) >= len(fence) and not match[3].strip():
            blocks.append((info, "\n".join(lines) + "\n"))
            fence = ""
        else:
            common = 0
            while common < len(indent) and common < len(line) and line[common] in " \t":
                common += 1
            lines.append(line[common:])
    if fence:
        blocks.append((info, "\n".join(lines) + "\n"))
    return blocks
