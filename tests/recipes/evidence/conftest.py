"""A tiny model that looks prices up by heart, held-out rows, and the config of a stage that trains on them."""

import asyncio
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "hosts" / "lookup_plugin"
PROMPT, RESPONSE = 340, 200


def rows(words, prices, ask="What does {} cost?"):
    return [
        {
            "prompt": [{"role": "user", "content": ask.format(word)}],
            "data_source": "prices",
            "reward_model": {"style": "rule", "ground_truth": f"{word} costs {prices[word]}"},
            "extra_info": {"id": word, "index": at},
        }
        for at, word in enumerate(words)
    ]


@pytest.fixture(scope="session")
def lookup():
    sys.path.insert(0, str(PLUGIN))
    try:
        import lookup_plugin

        yield lookup_plugin
    finally:
        sys.path.remove(str(PLUGIN))
        sys.modules.pop("lookup_plugin", None)


@pytest.fixture(scope="session")
def folder(lookup, tmp_path_factory):
    """model/ knows three episodes with a tool by heart; heldout.parquet asks for them."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    from rufus_plugins.recipes.tiny.by_heart import Script, chat_of, play, small_model, teach
    from rufus_plugins.rollouts.environments.functions import Functions
    from rufus_plugins.rollouts.episode import Limits
    from rufus_plugins.rollouts.rules import EpisodeRules

    folder = tmp_path_factory.mktemp("evidence")
    torch.set_num_threads(1)
    model, tokenizer = small_model()
    chat, lessons = chat_of(model, tokenizer), {}
    for word in lookup.PRICES:
        script = Script(tokenizer, lookup.say(word, short=False))
        environment = Functions(functions=["lookup_plugin:lookup"])
        limits = Limits(PROMPT + RESPONSE, RESPONSE)
        played, _ = asyncio.run(play(lookup.task(word), environment, chat, script, EpisodeRules(), limits))
        lessons |= {tuple(ids): mask for ids, mask in played}
    teach(model, [(list(ids), mask) for ids, mask in lessons.items()])
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    pq.write_table(pa.Table.from_pylist(rows(lookup.PRICES, lookup.PRICES)), folder / "heldout.parquet")
    return folder


def composed(*overrides, response=RESPONSE):
    from rufus_plugins.cli_check import composed

    lengths = (f"data.max_prompt_length={PROMPT}", f"data.max_response_length={response}")
    return composed("rufus", ["scale=tiny", "reward=science_answer", *lengths, *overrides])


FUNCTIONS = ("environment=functions", "rufus.environment.functions=[lookup_plugin:lookup]")
