"""Pages of the web, from a server that is hostile in every way a page can be. Nothing here reads a real site."""

import asyncio
import gzip
import sys
import zlib
from pathlib import Path

import pytest

from rufus_plugins.rollouts.environments.search_addresses import AddressRules, Refused
from rufus_plugins.rollouts.environments.search_extract import decoded, extract, tidy
from rufus_plugins.rollouts.environments.search_fetch import FetchRules, PageFailed
from rufus_plugins.rollouts.environments.search_pages import PageRules, read_page

sys.path.insert(0, str(Path(__file__).parent))
from search_servers import Server, page, redirect, send, stall  # noqa: E402

ARTICLE = """<!doctype html><html><head><title>Rivers of Elbonia</title><style>p {{color: red}}</style>
<script>alert("no")</script></head><body><nav><a href="/a">Home</a><a href="/b">About</a></nav>
<article><h1>Rivers of Elbonia</h1>{}</article><footer>Copyright, all rights reserved</footer></body></html>"""
PARAGRAPHS = "".join(
    f"<p>The river number {i} of Elbonia is {i * 7} kilometres long, and it ends in the great mud lake of the south, "
    f"where the fishermen of the old town have lived for centuries. See <a href='/river/{i}'>more</a>.</p>"
    for i in range(1, 9)
)


def read(pages, path="/", **rules):
    extract = {name: rules.pop(name) for name in ("links", "extract_timeout_s", "max_chars") if name in rules}
    with Server(pages) as server:
        allowed = AddressRules([80, 443], [f"127.0.0.1:{server.port}"])
        fetch = FetchRules(allowed, **{"timeout_s": 10.0, **rules})
        return asyncio.run(read_page(f"{server.url}{path}", PageRules(fetch, **extract), lambda url: False))


def test_an_article_becomes_its_text_without_what_stands_around_it():
    document = read({"/": page(ARTICLE.format(PARAGRAPHS))})
    assert document.title == "Rivers of Elbonia" and document.whole
    assert "The river number 8 of Elbonia is 56 kilometres long" in document.text
    assert not any(junk in document.text for junk in ("alert", "color: red", "Copyright", "/river/"))
    assert "](http://127.0.0.1" in read({"/": page(ARTICLE.format(PARAGRAPHS))}, links=True).text


def test_a_page_behind_redirects_is_found_and_says_where_it_was():
    pages = {
        "/": redirect("/two", 301),
        "/two": redirect("three?x=1", 307),
        "/three": page("<p>here I am at last</p>"),
    }
    document = read(pages)
    assert "here I am at last" in document.text and document.url.endswith("/three?x=1")


@pytest.mark.parametrize(
    ("body", "headers", "text"),
    [
        ("<p>naïve café</p>".encode("latin-1"), {"Content_Type": "text/html; charset=ISO-8859-1"}, "naïve café"),
        ("<p>“quoted”</p>".encode("cp1252"), {"Content_Type": "text/html; charset=ISO-8859-1"}, "“quoted”"),
        ("<meta charset=shift_jis><p>東京の川</p>".encode("cp932"), {"Content_Type": "text/html"}, "東京の川"),
        ("<p>中文维基百科</p>".encode("gb18030"), {"Content_Type": "text/html; charset=gb2312"}, "中文维基百科"),
        ("<p>Москва</p>".encode("koi8-r"), {"Content_Type": 'text/html; charset="KOI8-R"'}, "Москва"),
        ("<p>Zürich</p>".encode(), {"Content_Type": "text/html; charset=no-such-thing"}, "Zürich"),
        ("<p>Zürich</p>".encode(), {"Content_Type": "text/html; charset=zlib"}, "Zürich"),
        ("<p>Ελλάδα</p>".encode("utf-16"), {"Content_Type": "text/html"}, "Ελλάδα"),
        (b"\xfd half", {"Content_Type": "text/plain; charset=utf-8"}, "half"),
        ('{"a": [1, "ü"]}', {"Content_Type": "application/json"}, '{"a": [1, "ü"]}'),
        ("a,b\n1,2", {"Content_Type": "text/csv"}, "a,b\n1,2"),
        ("just words", {"Content_Type": None}, "just words"),
        ("<html><p>a page without a type</p>", {"Content_Type": None}, "a page without a type"),
        (gzip.compress(b"<p>packed words here</p>"), {"Content_Encoding": "gzip"}, "packed words here"),
        (zlib.compress(b"<p>packed words here</p>"), {"Content_Encoding": "deflate"}, "packed words here"),
        (zlib.compress(b"<p>packed words here</p>")[2:-4], {"Content_Encoding": "deflate"}, "packed words here"),
    ],
)  # fmt: skip
def test_charsets_types_and_packings_of_the_real_web(body, headers, text):
    assert text in read({"/": page(body, **headers)}).text


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page(b"%PDF-1.7\n%\xe2", Content_Type="application/pdf"), "a PDF"),
        (page(b"%PDF-1.7\n%\xe2", Content_Type="text/html"), "a PDF"),
        (page(b"\x89PNG\r\n\x1a\n\0\0", Content_Type="image/png"), "image/png"),
        (page(b"words\0\1\2", Content_Type="text/plain"), "cannot be read"),
        (page(b"PK\x03\x04", Content_Type="text/html"), "cannot be read"),
        (page(b"abc", Content_Type="video/mp4"), "video/mp4"),
        (page(b""), "empty"),
        (page(b"<html><script>x()</script></html>"), "no text"),
        (page(b"x", status=404), "HTTP 404"),
        (page(b"x", status=500), "HTTP 500"),
        (page(b"x", status=204), "HTTP 204"),
        (page(b"x", Content_Encoding="br"), "packed as 'br'"),
        (page(b"x", Content_Encoding="gzip, gzip"), "packed as"),
        (page(b"no gzip at all", Content_Encoding="gzip"), "packed in a way"),
        (redirect("/"), "more than 5 redirects"),
        (redirect("http://[bad"), "no address"),
        (lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"), "connection failed"),
        (
            lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
            "connection failed",
        ),
        (lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000), "connection failed"),
    ],
)
def test_what_cannot_be_read_is_said_to_the_model(answer, said):
    def close_after(handler):
        handler.close_connection = True
        answer(handler)

    with pytest.raises((PageFailed, Refused), match=said):
        read({"/": close_after})


@pytest.mark.parametrize("name", ["stall", "drip", "slow redirects"])
def test_a_page_has_one_deadline_for_everything(name):
    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        while not handler.over.wait(0.05):
            handler.wfile.write(b"<p>more</p>")

    def slow(handler):
        handler.over.wait(0.3)
        redirect("/slow")(handler)

    pages = {"/stall": stall, "/drip": drip, "/slow": slow}
    with pytest.raises(PageFailed, match="within 0.5 s"):
        read(pages, f"/{name.split()[0]}", timeout_s=0.5, max_redirects=50)


def test_an_endless_page_is_cut_at_its_limit_and_read_up_to_there():
    def endless(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.end_headers()
        while not handler.over.is_set():
            handler.wfile.write(b"<p>the same words for ever and ever</p>" * 100)

    document = read({"/": endless}, max_bytes=100_000)
    assert "the same words" in document.text and len(document.text) < 110_000
    assert document.text.endswith("the rest was not fetched]")


def test_a_gzip_bomb_costs_no_more_than_a_page():
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    mebibyte = block.compress(b" " * (1 << 20)) + block.flush(zlib.Z_FULL_FLUSH)
    start = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = start.compress(b"<p>boom boom</p>") + start.flush(zlib.Z_FULL_FLUSH)
    bomb = head + mebibyte * 2000  # 2 GB in 2 MB
    document = read({"/": page(bomb, Content_Encoding="gzip")}, max_bytes=1 << 20)
    assert document.text.startswith("boom boom") and len(document.text) < 1000


@pytest.mark.parametrize(
    "body",
    [
        "<div>" * 20_000 + "the words at the bottom" + "</div>" * 20_000,
        "<table><tr><td>" * 5_000 + "the words at the bottom",
        "<p>the words at the bottom</p>" + "<a href='x'>" * 20_000,
        "<p>the words at the bottom</p><" + "a" * 1_000_000,
        "<p>the words at the bottom</p><!--" + "-" * 1_000_000,
        "<p>the words at the bottom</p>&" + "amp;" * 100_000,
        "<p " + " ".join(f"a{i}=x" for i in range(50_000)) + ">the words at the bottom</p>",
    ],
    ids=["deep", "tables", "open links", "no end of a tag", "no end of a comment", "entities", "attributes"],
)
def test_hostile_markup_costs_its_own_page_at_most(body):
    """It is read, or it is not; it never takes longer than its limit, nor anything of ours with it."""
    try:
        assert "the words at the bottom" in read({"/": page(f"<html><body>{body}")}, extract_timeout_s=0.7).text
    except PageFailed as error:
        assert "cannot be read" in str(error)


def test_xml_entities_do_not_multiply_and_open_no_file():
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    document = read({"/": page(f"{bomb}<html><body><p>some words &b; and &f; here</p></body></html>")})
    assert "some words" in document.text and "root:" not in document.text and "aaaaaaaaaa" not in document.text[60:]


def test_text_is_tidy():
    assert tidy(" a\t b \r\n\r\n \r\n\x00c\x07 \u2028 d\ud800") == "a b\n\nc\nd"
    assert tidy("\ufeffx\u200by") == "xy"


@pytest.mark.parametrize("charset", ["hex", "rot13", "unicode_escape", "idna", "utf-7", "undefined"])
def test_a_charset_that_is_no_charset_is_not_believed(charset):
    assert decoded("naïve \\x41 +AGE-".encode(), charset) == "naïve \\x41 +AGE-"


def test_visible_text_is_taken_where_no_main_text_is_found():
    import base64

    body = base64.b64encode(
        b"<title>T</title><body><style>no</style><b>one</b> two<br>three<script>no</script>"
    ).decode()
    item = {"body": body, "charset": "", "url": "http://a.example/", "kind": "plain", "links": False, "limit": 100}
    assert extract(item) == {"title": "T", "text": "one two\nthree"}


def test_the_page_is_asked_for_without_cookies_or_anything_of_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    pages = {"/": redirect("/next"), "/next": page("<p>some words to read</p>")}

    def tempting(handler):
        send(handler, b"", status=302, Location="/next", Set_Cookie="a=b")

    pages["/"] = tempting
    with Server(pages) as server:
        rules = PageRules(FetchRules(AddressRules(allowed=["127.0.0.1"]), timeout_s=5, user_agent="agent"))
        asyncio.run(read_page(server.url + "/", rules, lambda url: False))
        for headers in server.headers:
            assert set(headers) <= {"Host", "User-Agent", "Accept", "Accept-Language", "Accept-Encoding", "Connection"}
            assert headers["User-Agent"] == "agent"
