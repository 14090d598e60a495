"""Texts that are tokenised in pieces have the ids and the bounds of texts that are tokenised whole."""

import functools
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from rufus_plugins.recipes.data.piece_bounds import BLANKS, GPT2, MARKS, bounds, splits_at
from rufus_plugins.recipes.data.pieces import Pieces, Whole

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "gpt2": [GPT2],
    "llama3": [LLAMA3],
    "one_digit": [LLAMA3.replace("{1,3}", "")],
    "cased": [CASED],
    "stages": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK],
    "possessive": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s+"
    ],
}
CORPUS = [
    "The answer is 42, isn't it? We're there.\n\nTherefore: yes.\n",
    "def f(x):\n    return x + 1  # naïve café 東京の天気 Привет 🙂\n",
] * 5


@functools.cache
def backend(name, normalizer=None, added=()):
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC() if normalizer == "nfc" else None
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in PATTERNS[name]]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(t, special=True) for t in ("<|end|>", "<|end|>x", "<|user|>", "<|im_start|>")])
    made.add_tokens([AddedToken(t, normalized=normalizer is None) for t in ("<think>", " <", *added)])
    return made


FRAGMENTS = (
    [
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u00a0",
        "\u0085",
        "\u3000",
        "\x1c",
        "\x0b",
        "e\u0301",
        "\u0301",
        "\u0338",
        "é",
        "ſ",
    ]
    + [
        "the",
        "The",
        " answer",
        "isn't",
        "'s",
        "'LL",
        "42",
        "1234567",
        ",",
        ".",
        "...",
        "/",
        "_",
        "#",
        "{",
        "東京",
        "🙂",
    ]
    + ["<|end|>", "<|end|>x", "<|end", "|>", "<think>", " <", "<", "<|user|>", "\u200d", "\ud7ff", "ß", "İ", "½", "Ⅷ"]
    + ["<|im", "_start", "|>", "|>x", "f(", "(x", ")\n", "\n    x", "=", "\u0338"]
)
TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.characters(codec="utf-8"), max_size=25).map("".join)
BOUND = re.compile(r"(?<=[!-~\w])(?= )|(?<=[A-Za-z0-9])(?=[\n!-&(-/:-@\[-`{-~])")
TOKENIZERS = [(name, normalizer) for name in PATTERNS for normalizer in (None, "nfc")]


@pytest.mark.parametrize(("name", "normalizer"), TOKENIZERS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_pieces_have_the_ids_and_the_bounds_of_the_whole(name, normalizer, texts):
    tokenizer = backend(name, normalizer)
    pieces = Pieces(tokenizer)
    assert pieces.cuts
    for some in (texts, [" ".join(texts), *texts[:1]]):  # the second finds pieces that the first has left
        for text, found in zip(some, pieces.encode(some), strict=True):
            whole = Whole(tokenizer.encode(text, add_special_tokens=False))
            assert found.ids.tolist() == whole.ids.tolist()
            for at in range(len(text) + 1):
                for ended in (False, True):
                    assert found.before(at, ended) == whole.before(at, ended), (at, ended)
    assert pieces.cuts, "no token reached over a bound"


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT)
def test_the_pretokenizer_splits_at_every_bound(name, text):
    """What `piece_bounds` shows from the pattern, asked of the pre-tokenizer itself."""
    splitter = backend(name).pre_tokenizer
    parts = BOUND.split(text)
    alone = [said for part in parts for said, _ in splitter.pre_tokenize_str(part)]
    assert alone == [said for said, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w+\s?",  # takes the blank that follows
        r"\S+| \w+ ?|\s+",
        r"[^\r\n]+|\s+",
        r"(?:a| b)|x|\s+",
        r"(?i: ?k)+|\s+",
        r"\p{L}+(?= )| ?\S+|\s+",
        r"(?<=a) b|\S+|\s+",
        r"[a-z !-?]+|\s+",
        r"\p{L}+?| ?\S+|\s+",
        r"[^\S]+\p{L}+ {0,2}|\S+|\s+",
        r"(?:a| b)+|\S+|\s+",
        r".+|\s+",
        r"\P{L}+|\s+",
        r"\p{Z}\p{L}|\S\p{Z}|\s+",
        r"\S+(?!\S)|\s+",
        r"\S+$|\s+",
        r"[\p{L}&&[^ ]]+|\s+",
        r"a|| b|\s+",
        r"\X+|\s+",
        r"[",
        r"(\S+",
        r"\S+)|\s+",
    ],
)
def test_a_pattern_that_may_match_over_a_blank_is_not_cut(pattern):
    assert splits_at(pattern, BLANKS) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w+\(?| ?[^\s\p{L}\p{N}]+|\s+",
        r"\w+| ?[^\s\p{L}\p{N}]+|\s+",
        r"\p{L}+-?|[^\s\p{L}]|\s+",
        r" ?\S+|\s+",
    ],
)
def test_a_pattern_that_may_match_over_a_mark_is_cut_at_blanks_only(pattern):
    assert splits_at(pattern, MARKS) is None
    assert splits_at(pattern, BLANKS) is True


def test_a_pattern_that_leaves_blanks_alone_is_cut_only_with_another_that_does_not():
    assert splits_at(r"\p{N}{1,3}", BLANKS) is False
    assert splits_at(r"\S+|\s+(?!\S)", BLANKS) is False  # the blank before a word is left over
    assert splits_at(r"\p{L}+|\p{N}+|\s+|[!-/]", MARKS) is False  # and here some marks
    assert splits_at(r"\S+|\s", BLANKS) is True and splits_at(GPT2, MARKS) is True
    alone = Tokenizer(models.BPE())
    alone.pre_tokenizer = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    assert bounds(alone) == ()


def changed(name):
    made = Tokenizer.from_str(backend("llama3").to_str())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "prefix space":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif name == "metaspace":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), level])
    elif name == "merged":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT2), "merged_with_next"), level])
    elif name == "none":
        made.pre_tokenizer = None
    elif name == "prepends":
        made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("_")])
    elif name == "strips":
        made.normalizer = normalizers.Strip()
    elif name == "normalized token":
        made.normalizer = normalizers.NFC()
        made.add_tokens([AddedToken("café", normalized=True)])
    elif name == "post-processor":
        from tokenizers import processors

        made.post_processor = processors.ByteLevel(trim_offsets=True)
    elif name == "truncates":
        made.enable_truncation(3)
    elif name == "specials as text":
        made.encode_special_tokens = True
    elif name == "dropout":
        made.model.dropout = 0.1
    else:
        made.add_special_tokens(
            [AddedToken("the answer" if name == "blank" else "[X]", **{name: True, "blank": False})]
        )
    return made


@pytest.mark.parametrize(
    "name",
    ["prefix space", "metaspace", "merged", "none", "prepends", "strips", "normalized token", "post-processor"]
    + ["truncates", "specials as text", "dropout", "lstrip", "rstrip", "single_word"],
)
def test_a_tokenizer_of_which_nothing_is_shown_gets_its_texts_whole(name):
    tokenizer = changed(name)
    pieces = Pieces(tokenizer)
    assert not pieces.cuts
    texts = [" the answer [X] café is 42", "x", ""]
    if name != "dropout":
        for text, found in zip(texts, pieces.encode(texts), strict=True):
            assert found.ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("texts", [["a the", "b answer", "the answer"], ["<|im x", "a_start x", "a|>x <|im_start|>"]])
def test_pieces_that_make_an_added_token_when_joined_stay_what_they_are(texts):
    tokenizer = backend("gpt2", added=("the answer",))
    pieces = Pieces(tokenizer)
    for text, found in zip(texts, pieces.encode(texts), strict=True):
        assert found.ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert pieces.cuts


def test_pieces_that_are_forgotten_are_learnt_again(monkeypatch):
    from rufus_plugins.recipes.data import pieces as module

    monkeypatch.setattr(module, "HELD", 200)
    tokenizer = backend("llama3")
    pieces = Pieces(tokenizer)
    for n in range(20):
        text = f"the answer is {n} and {n * n} or {'x' * n} <|end|> the answer"
        [found] = pieces.encode([text])
        assert found.ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert pieces._held < 3_000


def test_a_tokenizer_that_breaks_what_was_shown_is_given_whole_texts_from_then_on(monkeypatch):
    from rufus_plugins.recipes.data import pieces as module

    monkeypatch.setattr(module, "bounds", lambda backend: (BLANKS, MARKS))
    tokenizer = Tokenizer(models.BPE(unk_token="?"))  # no pre-tokenizer: tokens reach over blanks
    trainer = trainers.BpeTrainer(special_tokens=["?"], vocab_size=12, show_progress=False)
    tokenizer.train_from_iterator(["ab cd ab cd"] * 9, trainer)
    text = "x ab cd ab cd y"
    assert any(" " in token[1:] for token in tokenizer.encode(text).tokens)
    pieces = Pieces(tokenizer)
    [found] = pieces.encode([text])
    assert found.ids.tolist() == tokenizer.encode(text).ids
    assert not pieces.cuts


def test_pieces_travel_to_other_processes_without_what_they_learnt():
    pieces = Pieces(backend("cased"))
    [before] = pieces.encode(["the answer is 42"])
    copy = pickle.loads(pickle.dumps(pieces))
    assert copy.cuts and not copy._ids
    assert copy.encode(["the answer is 42"])[0].ids.tolist() == before.ids.tolist()


def test_half_a_surrogate_pair_is_said_and_nothing_is_kept_of_it():
    pieces = Pieces(backend("llama3"))
    with pytest.raises(TypeError):
        pieces.encode(["the \ud83d answer"])
    assert pieces.encode(["the answer"])[0].ids.tolist() == backend("llama3").encode("the answer").ids
