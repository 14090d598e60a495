"""The embedded corpus: indexing, ranking against a BM25 written out here, queries that are nothing but words."""

import asyncio
import json
import math
import re
from collections import Counter

import pytest

from rufus_plugins.cli import main
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.search_agent.corpus import prepare
from rufus_plugins.rollouts.environments.search_backends import backend
from rufus_plugins.rollouts.environments.search_corpus import Corpus, address_of, excerpt

DOCUMENTS = [
    {"id": "paris", "title": "Paris", "text": "Paris is the capital of France.", "url": "https://www.example.com/Paris/"},
    {"id": "lyon", "title": "Lyon", "text": "Lyon is a city of France on the river Rhône.", "url": "http://example.com/lyon"},
    {"id": "rhone", "title": "Rhone", "text": "The Rhone is a river. It runs through Lyon."},
    {"id": "tokyo", "title": "東京", "text": "東京は日本の首都です。", "url": "https://ja.example.com/東京"},
    {"id": "cpp", "title": "C++", "text": "C++ (see plus): a tongue AND a tool; title:x text:y -NOT ~fuzzy^2 [a TO b]"},
    {"id": "running", "title": "Sports", "text": "He runs; she was running; they run 100 metres."},
    {"title": "no id", "text": "The ﬁrst naïve approach."},
]  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("corpus"), DOCUMENTS)


def build(folder, documents):
    source = folder / "documents.jsonl"
    source.write_text("".join(json.dumps(document) + "\n" for document in documents), "utf-8")
    prepare(str(source), folder / "index")
    return folder / "index"


def ids(corpus, query, count=10, keep=lambda document: True):
    return [document.id for document in asyncio.run(corpus.search(query, count, keep))]


def test_documents_are_found_by_their_words_in_any_form(built):
    corpus = Corpus(str(built))
    assert ids(corpus, "capital of France")[0] == "paris"
    assert ids(corpus, "RHÔNE")[0] == "rhone" and set(ids(corpus, "rhone")) == {"rhone", "lyon"}
    assert ids(corpus, "runner running ran run") == ["running", "rhone"]  # stems: run; "runs through"
    assert ids(corpus, "首都") == ["tokyo"] and ids(corpus, "日本の首都は?") == ["tokyo"]
    assert ids(corpus, "first") == ["6"]  # a ligature in the text; the id is the record's place


@pytest.mark.parametrize(
    "query", ["", "   ", "?!", '+ - && || ! ( ) { } [ ] ^ " ~ * ? : \\ /', "\x00\u200b", "😀", "\ud800"]
)
def test_a_query_without_words_finds_nothing(built, query):
    assert ids(Corpus(str(built)), query) == []


@pytest.mark.parametrize(
    ("syntax", "plain"),
    [
        ("title:paris", "title paris"),
        ("+paris -france", "paris france"),
        ("paris AND NOT france", "paris and not france"),
        ('"capital of france"~3', "capital of france 3"),
        ("(paris OR", "paris or"),
        ("paris^99 [a TO z] {x} /re.*/ par*", "paris 99 a to z x re par"),
        ("id:paris", "id paris"),
        ("text: IN [a b]", "text in a b"),
        ("*", ""),
    ],
)
def test_nothing_in_a_query_is_syntax(built, syntax, plain):
    corpus = Corpus(str(built))
    assert ids(corpus, syntax) == ids(corpus, plain)


def test_ranking_is_bm25(tmp_path):
    """Okapi BM25 with k1 1.2, b 0.75 over the text, worked out here; lengths below 40 words are kept exactly in
    the one-byte form that Lucene and tantivy use."""
    texts = [
        "apple",
        "apple apple",
        "apple pear",
        "pear plum fig",
        "apple pear plum fig lime",
        "plum " * 7,
        "fig pear fig",
    ]
    documents = [{"id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    corpus = Corpus(str(build(tmp_path, documents)))
    words = [text.split() for text in texts]
    mean = sum(map(len, words)) / len(words)
    for query in ("apple", "pear fig", "plum lime apple", "fig fig"):
        scores = {}
        for i, document in enumerate(words):
            counts = Counter(document)
            for word in set(query.split()):
                holders = sum(word in other for other in words)
                idf = math.log(1 + (len(words) - holders + 0.5) / (holders + 0.5))
                tf = counts[word] * 2.2 / (counts[word] + 1.2 * (0.25 + 0.75 * len(document) / mean))
                scores[f"d{i}"] = scores.get(f"d{i}", 0.0) + idf * tf
        expected = sorted((name for name in scores if scores[name]), key=lambda name: (-scores[name], name))
        assert ids(corpus, query) == expected


def test_ties_are_broken_by_id_however_the_index_was_built(tmp_path):
    documents = [{"id": f"d{i:03}", "title": "same", "text": "the same words"} for i in range(300)]
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    one = Corpus(str(build(tmp_path / "a", documents)))
    other = Corpus(str(build(tmp_path / "b", documents[::-1])))
    first = [f"d{i:03}" for i in range(10)]
    assert ids(one, "same words") == ids(other, "words same") == ids(one, "same words") == first
    odd = [f"d{i:03}" for i in range(1, 20, 2)]
    assert ids(one, "same", keep=lambda document: int(document.id[1:]) % 2) == odd  # what is blocked leaves no gap


def test_documents_open_by_id_and_by_address(built):
    corpus = Corpus(str(built))

    def document(ref):
        return asyncio.run(corpus.document(ref))

    assert document("doc:rhone").text == DOCUMENTS[2]["text"] and document("doc:rhone").ref == "doc:rhone"
    for address in ("https://www.example.com/Paris/", "http://example.com/Paris", "example.com/Paris#top"):
        assert document(address).id == "paris" and document(address).ref == "https://www.example.com/Paris/"
    for unknown in ("doc:", "doc:nobody", "https://example.com/paris", "", "paris"):
        assert document(unknown) is None
    assert address_of("HTTPS://WWW.A.example/B?c=d#e") == "a.example/B?c=d"


def test_an_excerpt_is_where_most_words_of_the_query_stand():
    text = "filler " * 300 + "the needle lies in the haystack here " + "filler " * 300
    shown = excerpt(text, ["needle", "haystack"], lambda word: [word.lower()], 100)
    assert "needle" in shown and "haystack" in shown and len(shown) < 110
    assert shown.startswith("… ") and shown.endswith(" …")
    assert excerpt("short text", ["x"], lambda word: [word], 100) == "short text"
    assert excerpt("", ["x"], lambda word: [word], 100) == ""


def test_the_command_builds_it_and_says_what_it_left_out(tmp_path, capsys):
    lines = [
        '{"id": 7, "contents": "\\"Title\\"\\nThe text of Search-R1."}',
        '{"id": 7, "text": "again"}',
        '{"id": "empty", "text": "  "}',
        '{"text": 3}',
        '{"id": [1], "text": "x"}',
        '{"text": "x", "url": 5}',
        "no json",
    ]
    (tmp_path / "raw.jsonl").write_text("\n".join(lines) + "\n")
    command = ["prepare", "search_corpus", "--input", str(tmp_path / "raw.jsonl"), "--output", str(tmp_path / "out")]
    assert main(command) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    dropped = {"bad_field": 1, "bad_id": 1, "bad_json": 1, "no_text": 2, "same_id": 1}
    assert manifest["kept"] == 1 and manifest["dropped"] == dropped
    assert "search_corpus: 7 records read" in re.sub(r"\s+", " ", capsys.readouterr().out)
    found = asyncio.run(Corpus(str(tmp_path / "out")).document("doc:7"))
    assert (found.title, found.text) == ("Title", "The text of Search-R1.")
    assert main(command) == 0  # an output of its own is replaced
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw.jsonl"]


def test_it_overwrites_nothing_else_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "raw.jsonl").write_text('{"text": " "}\n')
    with pytest.raises(ConfigError, match="no usable document \\(no_text 1\\)"):
        prepare(str(tmp_path / "raw.jsonl"), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="holds other things"):
        prepare(str(tmp_path / "raw.jsonl"), tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "raw.jsonl"]


def test_a_missing_or_foreign_index_is_a_wrong_setup_that_says_how_to_build_one(tmp_path):
    for name, config in (("corpus", {"path": str(tmp_path)}), ("corpus", {})):
        with pytest.raises(ConfigError, match="prepare search_corpus"):
            backend(name, config)
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="format 99"):
        Corpus(str(tmp_path))
    (tmp_path / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="cannot be opened"):
        Corpus(str(tmp_path))
    for name, config, said in (
        ("nobody", {}, "Known: corpus, retrieval"),
        ("corpus", {"path": "x", "size": 1}, "size does not exist"),
        ("retrieval", {"url": "ftp://x"}, "no http"),
        ("retrieval", {"url": "http://x", "attempts": "many"}, "attempts='many'"),
        ("json:nothing", {}, "does not load"),
    ):
        with pytest.raises(ConfigError, match=said):
            backend(name, config)
