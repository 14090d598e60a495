"""Runs in the jail: the bytes of a page to its text. Parsers meet what anybody put on the web, so they run where a
crash, a hang or gigabytes cost one page. trafilatura extracts the main text; where it finds none, or the caller asks so
after it failed, all visible text is taken (`html.parser`, which keeps no tree).
"""

from __future__ import annotations

import base64
import codecs
import re
from html.parser import HTMLParser
from typing import Any

_WIDER = {
    "iso-8859-1": "cp1252",
    "latin-1": "cp1252",
    "latin1": "cp1252",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "sjis": "cp932",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "iso-8859-9": "cp1254",
    "tis-620": "cp874",
}
"""What pages mean by these names (WHATWG Encoding, section 4.2)."""
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.I)
_XML = re.compile(rb"<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{2,40})", re.I)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def extract(item: dict[str, Any]) -> dict[str, str]:
    """`{"body": base64, "charset", "url", "kind": html|plain|text, "links": bool, "limit"}` -> `{"title", "text"}`.

    `plain` is HTML without trafilatura, `text` is no HTML at all.
    """
    page = decoded(base64.b64decode(item["body"]), item["charset"])
    title, text = "", ""
    if item["kind"] == "text":
        text = page
    else:
        if item["kind"] == "html":
            title, text = _main_text(page, item["url"], item["links"])
        if not text.strip():
            visible = Visible()
            visible.feed(page)
            title, text = title or visible.title, visible.text()
    return {"title": " ".join(title.split())[:300], "text": tidy(text)[: item["limit"]]}


def _main_text(page: str, url: str, links: bool) -> tuple[str, str]:
    import trafilatura
    from trafilatura.metadata import extract_metadata
    from trafilatura.utils import load_html

    tree = load_html(page)
    if tree is None:
        return "", ""
    try:
        title = extract_metadata(tree, default_url=url).title or ""
    except Exception:  # dates and authors are read on the way, by much code for little use here
        title = ""
    text = trafilatura.extract(
        tree,
        url=url,
        output_format="markdown",
        include_comments=False,
        include_tables=True,
        include_links=links,
        favor_recall=True,
        with_metadata=False,
    )
    return title, text or ""


def decoded(body: bytes, charset: str) -> str:
    """By byte order mark, the server's word, the page's own word, UTF-8, else by what fits best."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body.decode(name, "replace").removeprefix("\ufeff")
    said = [charset, *(m.group(1).decode() for p in (_META, _XML) if (m := p.search(body[:4096])))]
    for name in said:
        if codec := _codec(name):
            return body.decode(codec, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start > len(body) - 4:  # cut in the middle of a character
            return body.decode("utf-8", "replace")
    from charset_normalizer import from_bytes

    best = from_bytes(body[: 1 << 16]).best()
    return body.decode(best.encoding if best else "cp1252", "replace")


def _codec(name: str) -> str | None:
    """A codec for text, as pages mean it; None for one that does not exist or is no text (`zlib`, `hex`)."""
    name = _WIDER.get(name.lower(), name)
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    plain = getattr(info, "_is_text_encoding", True) and info.name not in ("idna", "punycode", "utf-7", "undefined")
    return info.name if plain and "escape" not in info.name else None


class Visible(HTMLParser):
    """The text outside scripts and styles, a line per block. Keeps no tree: depth costs nothing."""

    _HIDDEN = {"script", "style", "noscript", "template", "svg", "head"}
    _INLINE = set("a abbr b bdi bdo cite code em font i kbd mark q s samp small span strong sub sup time u var".split())

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._parts: list[str] = []
        self._hidden: str | None = None
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "title":
            self._in_title = True
        elif tag == "body":
            self._hidden = None
        elif self._hidden is None and tag in self._HIDDEN:
            self._hidden = tag
        if tag not in self._INLINE:
            self._parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag == self._hidden:
            self._hidden = None
        if tag not in self._INLINE:
            self._parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = (self.title + data)[:1000]
        elif self._hidden is None:
            self._parts.append(data)

    def text(self) -> str:
        return "".join(self._parts)


def tidy(text: str) -> str:
    """Without control characters and runs of blanks; at most one empty line at a time. Linear in its length."""
    text = re.sub(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]", "\n", text)
    text = re.sub(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\u200b]", "", text)
    text = re.sub(r"[^\S\n]+", " ", text)
    return re.sub(r"\n{3,}", "\n\n", text.replace(" \n", "\n").replace("\n ", "\n")).strip()
