"""A page of the web as text: fetched within limits (search_fetch.py), read in the jail (search_extract.py)."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from rufus_plugins.rollouts.environments.search_backends import Document
from rufus_plugins.rollouts.environments.search_fetch import Blocked, Fetched, FetchRules, PageFailed, fetch

_EXTRACT = "rufus_plugins.rollouts.environments.search_extract:extract"
_WARM = "rufus_plugins.rollouts.environments.search_extract_warm"
_HTML = {"text/html", "application/xhtml+xml"}
_TEXT = re.compile(r"text/(?!rtf\b).*|application/(.*\+)?(json|xml|yaml|x-yaml|javascript)|application/(x-)?ndjson")
_BINARY = (b"%PDF", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\x1f\x8b", b"\x7fELF", b"\xd0\xcf\x11\xe0")


@dataclass(frozen=True)
class PageRules:
    fetch: FetchRules
    links: bool = False
    """Whether the addresses behind links stand in the text."""
    extract_timeout_s: float = 10.0
    """A page takes 0.02 s. Ours."""
    extract_memory_mb: int = 1024
    max_chars: int = 500_000
    """Of the text. Ours."""


async def read_page(url: str, rules: PageRules, blocked: Blocked) -> Document:
    """The page behind `url` as a `Document`. Raises `Refused` or `PageFailed`."""
    page = await fetch(url, rules.fetch, blocked)
    kind = _kind(page)
    item = {
        "body": base64.b64encode(page.body).decode(),
        "charset": page.charset,
        "url": page.url,
        "kind": kind,
        "links": rules.links,
        "limit": rules.max_chars,
    }
    found = await _extracted(item, rules)
    if found is None and kind == "html":
        found = await _extracted({**item, "kind": "plain"}, rules)
    if found is None:
        raise PageFailed("the page is made in a way that cannot be read")
    if not found["text"]:
        raise PageFailed("the page has no text")
    text = found["text"] + ("\n\n[the page is longer; the rest was not fetched]" if page.cut else "")
    return Document(found["title"] or page.url, page.url, text=text, whole=True)


def _kind(page: Fetched) -> str:
    """html or text. Raises `PageFailed` for what is neither."""
    head = page.body[:1024].lstrip()
    if not head:
        raise PageFailed("the page is empty")
    shown = page.content_type or "a file of unknown type"
    if head.startswith(b"%PDF") or page.content_type == "application/pdf":
        raise PageFailed("this is a PDF, which cannot be read here; look for a page about it")
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff")) or "16" in page.charset or "32" in page.charset
    if head.startswith(_BINARY) or (b"\0" in head and not wide):
        raise PageFailed(f"this is {shown}, which cannot be read here")
    if page.content_type in _HTML:
        return "html"
    if page.content_type in ("", "application/octet-stream"):
        return "html" if re.match(rb"(?i)<(!doctype|html|head|body|\?xml|!--)", head) else "text"
    if _TEXT.fullmatch(page.content_type):
        return "text"
    raise PageFailed(f"this is {shown}, which cannot be read here")


async def _extracted(item: dict, rules: PageRules) -> dict[str, str] | None:
    """Title and text, None if the page broke the reader or its limits."""
    from rufus_plugins.rollouts.sandboxes.zygote import Limits, shared

    limits = Limits(wall_s=rules.extract_timeout_s, memory_mb=rules.extract_memory_mb, processes=4)
    pool = shared([_WARM, _EXTRACT])
    result = await pool.call(_EXTRACT, item, limits)
    return result.value if result.ok else None
