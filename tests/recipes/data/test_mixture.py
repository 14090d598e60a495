"""`rufus data mixture` and `show-mask`: what a mixture is made of, and what of a conversation is supervised."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_plugins import cli
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.mixture import Mixture, counted, override, picture, weights
from rufus_plugins.recipes.data.sft_tokens import SFTTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from chat_formats import tokenizer  # noqa: E402

USER, SHORT = {"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}


@pytest.fixture
def corpus(tmp_path):
    """Three short chats and one long answer, as a file and a folder with the tokenizer."""
    long = {"role": "assistant", "content": "word " * 100}
    records = [{"category": "chat", "messages": [USER, SHORT, USER, SHORT]}] * 3
    records += [{"category": "math", "id": "m", "messages": [{"role": "system", "content": "s"}, USER, long]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    tokenizer("chatml").save_pretrained(tmp_path / "tokenizer")
    return tmp_path


def test_both_views_are_counted(corpus, capsys):
    command = ["data", "mixture", "--input", str(corpus / "in.jsonl"), "--tokenizer", str(corpus / "tokenizer")]
    target = ["--target", '{"chat": 1, "math": 1}']
    assert cli.main([*command, "--output", str(corpus / "report"), *target]) == 0
    report = json.loads((corpus / "report.json").read_text())
    write = SFTTokenizer(tokenizer("chatml"))
    long, short = (
        write(json.loads(line)["messages"]) for line in (corpus / "in.jsonl").read_text().splitlines()[3:1:-1]
    )
    chat, math = report["categories"]["chat"], report["categories"]["math"]
    assert (chat["samples"], chat["turns"], chat["supervised_turns"]) == (3, 12, 3)
    assert (math["samples"], math["turns"], math["supervised_turns"]) == (1, 2, 1)
    assert (chat["tokens"], math["tokens"]) == (3 * len(short.ids), len(long.ids))
    assert (chat["supervised_tokens"], math["supervised_tokens"]) == (3 * short.mask.sum(), long.mask.sum())
    assert report["shares"]["chat"]["samples"] == 0.75 and report["shares"]["math"]["supervised_tokens"] > 0.9
    total = report["total"]["supervised_tokens"]
    assert report["weights"] == pytest.approx(
        {n: total / 2 / c["supervised_tokens"] for n, c in report["categories"].items()}
    )
    out = capsys.readouterr().out
    assert override(report["weights"]) in out and "75.0%" in out
    ET.parse(corpus / "report.svg")
    again = Mixture(input=(str(corpus / "report.arrow"),), output=str(corpus / "again")).report()
    assert again["categories"] == report["categories"]


AMOUNTS = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(1, 1000), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(AMOUNTS, st.data())
def test_weights_reach_the_target_and_keep_the_sum(amounts, data):
    target = {n: data.draw(st.integers(0, 5)) for n in amounts}
    if not sum(target.values()):
        target[next(iter(target))] = 1
    found = weights(amounts, target)
    reached = {n: found[n] * a for n, a in amounts.items()}
    assert sum(reached.values()) == pytest.approx(sum(amounts.values()))
    for name, share in target.items():
        assert reached[name] / sum(reached.values()) == pytest.approx(share / sum(target.values()))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"a": 1}, "Missing: b"),
        ({"a": 1, "b": 1, "c": 1}, "not in the data: c"),
        ({"a": 1, "b": -1}, "at least 0"),
        ({"a": 0, "b": 0}, "all 0"),
    ],
)
def test_a_target_that_cannot_be_is_refused(target, message):
    with pytest.raises(ConfigError, match=message):
        weights({"a": 10, "b": 20}, target)


def test_conversations_need_a_tokenizer(corpus):
    with pytest.raises(ConfigError, match="--tokenizer"):
        Mixture(input=(str(corpus / "in.jsonl"),), output=str(corpus / "r"))()


def test_the_picture_shows_both_shares_of_any_name():
    row = {"tokens": 10, "turns": 2, "supervised_turns": 1, "supervised_tokens": 5}
    categories = counted(iter([row | {"category": '<script>&"'}, row | {"category": ""}]))
    shares = {n: dict.fromkeys(c, 0.5) for n, c in categories.items()}
    svg = ET.fromstring(picture({"categories": categories, "shares": shares}))
    texts = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("50.0%") == 4
    assert "(none)" in [t.text for t in svg.iter("{http://www.w3.org/2000/svg}title")] + texts


def test_show_mask_marks_what_is_supervised_and_shows_control_characters(corpus, capsys):
    chat = [{"role": "user", "content": "\x1b[31mred?"}, {"role": "assistant", "content": "no 🙂"}]
    (corpus / "one.jsonl").write_text(json.dumps({"id": "x", "messages": chat}) + '\n{"id": "y", "messages": 3}\n')
    command = ["data", "show-mask", "--tokenizer", str(corpus / "tokenizer"), "--input", str(corpus / "one.jsonl")]
    assert cli.main([*command, "--id", "x", "--count", "2"]) == 0
    out = capsys.readouterr().out
    assert "⟦no 🙂<|im_end|>⟧" in out and "␛[31mred?" in out and "\x1b[31m" not in out
    assert "set aside" in out
    assert cli.main([*command, "--record", "9"]) == 1
    assert "has no record 9" in capsys.readouterr().err


def test_show_mask_shows_what_tokenise_writes_of_columns_that_hold_nulls(corpus, capsys):
    """In Parquet each call has the arguments of all calls, those of others null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def chat(**arguments):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        asked = {"role": "user", "content": "x"}
        return {"messages": [asked, {"role": "assistant", "content": "a", "tool_calls": [call]}]}

    pq.write_table(pa.Table.from_pylist([chat(q="here"), chat(n=7)]), corpus / "calls.parquet")
    command = ["data", "show-mask", "--tokenizer", str(corpus / "tokenizer"), "--mask", "axion", "--count", "2"]
    assert cli.main([*command, "--input", str(corpus / "calls.parquet")]) == 0
    out = capsys.readouterr().out
    assert '{"q": "here"}' in out and '{"n": 7}' in out and "null" not in out
