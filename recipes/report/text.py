"""Text of models, tools and files, made fit to stand in a page: rollouts are hostile text."""

from __future__ import annotations

import html
import math
import re
from typing import Any

DOT = " \u00b7 "
_STRANGE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)
"""What a page cannot hold (half surrogate pairs, NUL), what cannot be seen, and what turns the text around it."""
KEPT_JOINERS = "\u200d\u200c"
"""Parts of emoji and of some scripts."""


def visible(value: Any) -> str:
    """The text with controls as pictures (\u2400 for NUL) and other invisible characters as `\u27e8U+202E\u27e9`."""
    text = str(value).replace("\r\n", "\n").replace("\r", "\u240d")
    return _STRANGE.sub(_named, text)


def _named(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] in KEPT_JOINERS:
        return match[0]
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"


def esc(value: Any) -> str:
    """For text and attributes of the page."""
    return html.escape(visible(value), quote=True)


def cut(text: str, limit: int) -> tuple[str, int]:
    """The start of the text, and how many characters are left out."""
    return (text, 0) if len(text) <= limit else (text[:limit], len(text) - limit)


def figure(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits, without an exponent where that is readable."""
    if value is None or not math.isfinite(value):
        return "\u2013" if value is None else str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10**digits:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    if size < 1e-4:
        return f"{value:.2e}"
    return f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "\u2013"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
