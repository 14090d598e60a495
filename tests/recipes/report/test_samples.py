"""Which rollouts are kept, and their tokens' texts."""

import json
from collections import Counter

import pytest

from rufus_plugins import selection
from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.report.samples import SampleRules, choose, sample_rules, shortened, token_texts, write
from rufus_plugins.recipes.report.token_view import spread


def test_one_of_the_best_one_of_the_worst_and_others_at_random_are_kept():
    scores = {f"r{n}": (n % 5) / 4 for n in range(20)} | {"lost": None, "broken": float("nan")}
    chosen = choose(scores, 4, seed=10)
    assert Counter(chosen.values()) == {"best": 1, "worst": 1, "random": 2}
    by_kind = {kind: rollout for rollout, kind in chosen.items()}
    assert scores[by_kind["best"]] == 1.0 and scores[by_kind["worst"]] == 0.0
    assert choose(scores, 4, seed=10) == chosen
    assert len({tuple(choose(scores, 4, seed=seed)) for seed in range(20)}) > 10
    everyone = choose(scores, 99, seed=1)
    assert everyone.keys() == scores.keys() and everyone["lost"] == everyone["broken"] == "random"


def test_among_equal_scores_none_is_best():
    assert set(choose(dict.fromkeys("abc", 0.0), 2, seed=1).values()) == {"random"}
    assert choose({}, 4, seed=1) == {} and choose({"a": None}, 4, seed=1) == {"a": "random"}
    assert list(choose({"a": 0.0, "b": 1.0}, 1, seed=1).values()) == ["best"]


def test_nothing_is_kept_unless_there_is_a_folder():
    assert sample_rules(None) is None
    assert sample_rules({"dir": None, "every": 10, "per_step": 4}) is None
    rules = sample_rules({"dir": "samples"})
    assert rules == SampleRules("samples", 10, 4)
    assert [step for step in range(1, 31) if rules.at(step)] == [1, 10, 20, 30]


@pytest.mark.parametrize(
    "value, words",
    [
        ({"dir": "x", "each": 3}, "keys dir, every, per_step"),
        ({"dir": "x", "every": 0}, "every is 0"),
        ({"dir": None, "per_step": True}, "per_step is True"),
        ({"dir": 7}, "dir is 7"),
        ("folder", "is a mapping"),
    ],
)
def test_wrong_rules_end_before_anything_runs(value, words):
    with pytest.raises(ConfigError, match=words):
        selection.check({"rufus": {"samples": value}})


def test_a_steps_file_is_replaced_when_the_step_is_done_again(tmp_path):
    write(tmp_path / "samples", 10, [{"text": "first"}] * 3)
    path = write(tmp_path / "samples", 10, [{"text": "half \ud800 pair"}])
    assert [p.name for p in path.parent.iterdir()] == ["step-000010.jsonl"]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"text": "half \ud800 pair"}]


def test_texts_are_shortened_in_the_middle_and_say_by_how_much():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("a" * 50 + "b" * 50, 10) == "aaaaa\n[... 90 characters left out ...]\nbbbbb"


def test_files_are_spread_from_the_first_to_the_last():
    assert spread(range(10), 4) == [0, 3, 6, 9] and spread([1, 2], 4) == [1, 2]


@pytest.fixture(scope="module")
def tokenizer():
    from rufus_plugins.recipes.tiny.tokenizer import build

    return build()


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x + 1",
        " leading",
        "naïve 日本語 🙂👩‍👩‍👧 e\u0301",
        "",
        "<think></think>a<|user|>",
        "\ufffd\ufffd ok",
    ],
)
def test_the_texts_of_tokens_are_together_the_text_of_all(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids, skip_special_tokens=False) == text


def test_tokens_that_are_no_characters_are_shown_as_such_and_do_not_hold_up_the_rest(tokenizer):
    """Bytes of a started character that never ends, as an untrained model samples them."""
    [*face] = tokenizer.encode("🙂", add_special_tokens=False)
    if len(face) < 2:
        pytest.fail("the tiny tokenizer knows this character as one token: choose another")
    ids = [face[0]] * 30 + tokenizer.encode("done", add_special_tokens=False)
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids) and "".join(texts).endswith("done") and "\ufffd" in "".join(texts)
