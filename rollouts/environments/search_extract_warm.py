"""Imported once per zygote: reads small pages, so that no request pays for what trafilatura prepares on first use."""

import base64

from rufus_plugins.rollouts.environments.search_extract import extract

_ARTICLE = b"""<html><head><title>A page</title><meta name="date" content="2020-01-01"></head>
<body><article><h1>A page</h1>
<p>Some words, <a href="/next">a link</a> and enough text around them that this is taken for the main text of it.</p>
<table><tr><td>1</td><td>2</td></tr></table><ul><li>one</li></ul></article></body></html>"""
_SCRAPS = b"<html><body>" + b"<p>a few words</p>" * 20  # little text makes it try its other extractors

for body, links in ((_ARTICLE, True), (_ARTICLE, False), (_SCRAPS, False)):
    encoded = base64.b64encode(body).decode()
    url = "https://example.com/"
    extract({"body": encoded, "charset": "utf-8", "url": url, "kind": "html", "links": links, "limit": 1000})
