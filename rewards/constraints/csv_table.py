"""A table in CSV or TSV (RFC 4180) with the one thing Python's reader forgets: which fields were quoted."""

from __future__ import annotations

import re
from typing import NamedTuple


class Field(NamedTuple):
    value: str
    quoted: bool


def rows(text: str, delimiter: str) -> list[list[Field]] | None:
    """The rows that are not blank; None if a quote is not closed or stands where it must not.

    Blanks around a field are dropped.
    """
    edge = re.compile(f"[{re.escape(delimiter)}\n]")
    table: list[list[Field]] = []
    row: list[Field] = []
    position, size = 0, len(text)
    while position <= size:
        while position < size and text[position] in " \t" and text[position] != delimiter:
            position += 1
        if position < size and text[position] == '"':
            value, position = _quoted(text, position + 1)
            if value is None:
                return None
            while position < size and text[position] in " \t" and text[position] != delimiter:
                position += 1
            if position < size and text[position] not in (delimiter, "\n"):
                return None
            row.append(Field(value, True))
        else:
            stop = edge.search(text, position)
            end = stop.start() if stop else size
            row.append(Field(text[position:end].rstrip(), False))
            position = end
        if position >= size or text[position] == "\n":
            if len(row) > 1 or row[0].value or row[0].quoted:
                table.append(row)
            row = []
        position += 1
    return table


def _quoted(text: str, position: int) -> tuple[str | None, int]:
    parts: list[str] = []
    while True:
        end = text.find('"', position)
        if end < 0:
            return None, position
        parts.append(text[position:end])
        if text[end + 1 : end + 2] != '"':
            return "".join(parts), end + 1
        parts.append('"')
        position = end + 2
