"""What a terminal would show of raw output, as plain text: no escapes, no control characters, one line per line."""

from __future__ import annotations

import re

# every alternative stops at the next escape, so that hostile text costs one pass
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def plain(text: str) -> str:
    """Escapes and control characters removed; of a line that was overwritten by `\\r`, its last state."""
    if not text.isprintable():
        text = _ESCAPES.sub("", text)
        if "\r" in text:
            text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
        text = _CONTROLS.sub("", text)
    return text
