"""The vocabulary of the tiny chain: short episodes, names of no seed, any text survives."""

import random

import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.tiny import tokenizer
from rufus_plugins.recipes.tiny.families import names
from rufus_plugins.recipes.tiny.families.writing import family


@pytest.fixture(scope="module")
def words():
    return tokenizer.build("families")


def test_an_agents_episode_takes_at_most_seven_tenths_of_the_tokens_of_the_demos_vocabulary(words):
    demo = tokenizer.build()
    for stage in ("general_agent", "coding_agent", "search_agent"):
        module = family(stage)
        item = module.items(0)[0]
        said, tools = [*item.prompt, *item.right], list(module.FAMILY.tools)
        lengths = [len(tokens.apply_chat_template(said, tools=tools)["input_ids"]) for tokens in (words, demo)]
        assert lengths[0] < 0.7 * lengths[1], stage


def test_names_of_any_seed_are_copied_in_two_tokens_whatever_stands_before_them(words):
    drawn = names(200, random.Random("never seen"))
    for before in ("@", "#", " "):
        lengths = [len(words.encode(before + name)) for name in drawn]
        usual = 2 if before == " " else 3  # a mark is a token of its own, a blank is part of the word
        assert lengths.count(usual) >= 190, before


def test_digits_are_single_tokens_and_any_text_survives_the_round_trip(words):
    assert words.tokenize("20261") == list("20261")
    text = "a  b\n\n{'x': [1, \"y\"]} <tool_call>f\n\t# naïve 速度 🙂\r\n"
    assert words.decode(words.encode(text)) == text


def test_an_unknown_vocabulary_is_an_error_that_names_those_there_are():
    with pytest.raises(ConfigError, match="programs, families"):
        tokenizer.build("novels")
