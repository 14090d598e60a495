"""IFEval `detectable_format:`: bullets, highlights, sections, JSON, titles, fixed answers."""

from __future__ import annotations

import json

import regex

from rufus_plugins.rewards.constraints.declare import constraint, count, phrase
from rufus_plugins.rewards.constraints.markup import bullets, emphasised, fences, unfenced

_WORDLIKE = regex.compile(r"[\p{L}\p{N}]")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@constraint("detectable_format:number_bullet_lists", num_bullets=count)
def number_bullet_lists(response: str, num_bullets: int) -> str | None:
    """Exactly so many Markdown bullets that stand in no other bullet."""
    found = sum(1 for bullet in bullets(response) if bullet.depth == 0)
    return None if found == num_bullets else f"{found} bullets, {num_bullets} are asked for"


@constraint("detectable_format:constrained_response")
def constrained_response(response: str) -> str | None:
    """One of the three fixed answers, and only one of them; more text may stand around it."""
    text = " ".join(response.split())
    found = [answer for answer in _ANSWERS if answer in text]
    if len(found) == 1:
        return None
    return f"{len(found)} of the options are given, not one" if found else f"none of {', '.join(_ANSWERS)}"


@constraint("detectable_format:number_highlighted_sections", num_highlights=count)
def number_highlighted_sections(response: str, num_highlights: int) -> str | None:
    """`*text*` or `**text**` as Markdown reads it, on one line, outside code."""
    found = sum(1 for span in emphasised(response) if _WORDLIKE.search(span))
    return None if found >= num_highlights else f"{found} highlights, at least {num_highlights} are asked for"


@constraint(
    "detectable_format:multiple_sections",
    {"section_splitter": "section_spliter"},
    section_spliter=phrase,
    num_sections=count,
)
def multiple_sections(response: str, section_spliter: str, num_sections: int) -> str | None:
    """Sections that open with the marker and a number at the start of a line, and hold something."""
    marker = r"\s".join(regex.escape(part) for part in section_spliter.split())
    heads = list(regex.finditer(rf"^[ \t>#*_\-]*+{marker}[ \t]*+(\d+|[IVXLC]+\b)", response, regex.M))
    numbers = set()
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(response)
        if _WORDLIKE.search(response, head.end(), end):
            numbers.add(head[1])
    if len(numbers) >= num_sections:
        return None
    return f"{len(numbers)} sections {section_spliter!r} with content, at least {num_sections} are asked for"


@constraint("detectable_format:json_format")
def json_format(response: str) -> str | None:
    """The whole response is one JSON text (RFC 8259), bare or in one code block."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    body = unfenced(response).strip(" \t\n\r")
    try:
        # numbers stay text: a number of a million digits is JSON, and Python refuses to convert it
        json.loads(body, parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {type(error).__name__ if isinstance(error, RecursionError) else error}"
    return None


@constraint("detectable_format:title")
def title(response: str) -> str | None:
    """`<<title>>` on one line, outside code."""
    for line in fences(response)[0].split("\n"):
        begin = line.find("<<")
        end = line.rfind(">>")
        if 0 <= begin < end and _WORDLIKE.search(line, begin, end):
            return None
    return "no title in double angular brackets"
