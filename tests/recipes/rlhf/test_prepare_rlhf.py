"""`rufus prepare rlhf` and `rufus data preference-accuracy`."""

import json

import pyarrow.parquet as pq
import pytest
import torch

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.data.records import Refused
from rufus_plugins.recipes.data.run import execute
from rufus_plugins.recipes.rlhf.accuracy import PreferenceAccuracy, accuracy
from rufus_plugins.recipes.rlhf.prepare import prepare
from rufus_plugins.recipes.rlhf.transcripts import pair, transcript

HH = {
    "chosen": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: How do I\n\nbake bread?\n\nAssistant: Slowly.",
    "rejected": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: How do I\n\nbake bread?\n\nAssistant: No.",
}


def rows(output, split="train"):
    return pq.read_table(output / f"{split}.parquet").to_pylist()


def test_a_transcript_is_split_at_its_turns_and_nowhere_else():
    prompt, chosen, rejected = pair(HH)
    assert prompt == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "How do I\n\nbake bread?"},
    ]
    assert (chosen, rejected) == ("Slowly.", "No.")
    assert transcript("Human: a Human: b\n\nAssistant: c")[0]["content"] == "a Human: b"


def test_other_shapes_of_pairs_are_read():
    lists = {
        "prompt": "Hi",
        "chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
        "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What"}],
    }
    assert pair(lists) == ([{"role": "user", "content": "Hi"}], "Hello", "What")
    assert pair({"prompt": "Hi", "chosen": "Hello", "rejected": "What"}) == pair(lists)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chosen": None}, "no_pair"),
        ({"chosen": ""}, "no_pair"),
        ({"chosen": HH["rejected"]}, "same_answers"),
        ({"chosen": "\n\nHuman: Other\n\nAssistant: Slowly."}, "prompts_differ"),
        ({"chosen": "\n\nHuman: Hi"}, "no_answer"),
        ({"chosen": HH["chosen"] + "\n\nHuman: And?"}, "no_answer"),
        ({"chosen": "Well.\n\nHuman: Hi\n\nAssistant: x"}, "no_turns"),
        ({"chosen": [{"role": "user", "content": "x"}]}, "mixed_pair"),
    ],
)
def test_a_broken_pair_is_refused_with_its_reason(change, reason):
    with pytest.raises(Refused) as error:
        pair(HH | change)
    assert error.value.reason == reason


def test_prompts_are_kept_once_and_answers_only_for_analysis(tmp_path):
    again = {k: v.replace("Slowly.", "With time.") for k, v in HH.items()}
    data = tmp_path / "hh.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in (HH, again, HH | {"rejected": None})))
    manifest = prepare(str(data), tmp_path / "o")
    assert manifest["kept"] == 1 and manifest["dropped"] == {"duplicate": 1, "no_pair": 1}
    row = rows(tmp_path / "o")[0]
    assert [m["role"] for m in row["prompt"]] == ["user", "assistant", "user"]
    assert row["reward_model"]["ground_truth"] == "" and "Slowly" not in json.dumps(row)
    pairs = [json.loads(line) for line in (tmp_path / "o-pairs/pairs.jsonl").read_text().splitlines()]
    assert [p["chosen"] for p in pairs] == ["Slowly.", "With time."]


def test_the_sample_is_the_same_every_time_and_whole(tmp_path):
    for name in ("a", "b"):
        assert prepare("sample", tmp_path / name, count=60)["kept"] == 60
    assert (tmp_path / "a-pairs/pairs.jsonl").read_bytes() == (tmp_path / "b-pairs/pairs.jsonl").read_bytes()


def test_an_input_without_pairs_leaves_nothing_behind(tmp_path):
    data = tmp_path / "x.jsonl"
    data.write_text('{"chosen": 1, "rejected": 2}\n')
    with pytest.raises(ConfigError, match="no_pair 1"):
        prepare(str(data), tmp_path / "o")
    assert not (tmp_path / "o").exists() and not (tmp_path / "o-pairs").exists()


WORDS = ["<pad>", "<user>", "<assistant>", "Slowly.", "No.", "Hi", "Hello.", "bad", "good"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A reward model that says what the embedding of the last word says: good is 2, bad is -1."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("rm")
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_labels=1, pad_token_id=0,
    )  # fmt: skip
    made = LlamaForSequenceClassification(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
        made.model.embed_tokens.weight[:, 0] = 1.0
        made.model.embed_tokens.weight[WORDS.index("good"), 1] = 9.0
        made.model.embed_tokens.weight[WORDS.index("bad"), 1] = -9.0
        made.model.norm.weight.fill_(1.0)
        made.score.weight[0, 1] = 1.0
    made.save_pretrained(folder)
    return str(folder)


def test_accuracy_counts_pairs_right_wrong_and_tied(tmp_path, model):
    data = tmp_path / "pairs.jsonl"
    made = [("good", "bad"), ("good", "Hi good bad"), ("bad", "good"), ("Hi", "Hello.")]
    records = [{"prompt": "Hi", "chosen": c, "rejected": r} for c, r in made] + [{"chosen": "x"}]
    data.write_text("".join(json.dumps(r) + "\n" for r in records))
    manifest = execute(PreferenceAccuracy(model), data, tmp_path / "out.jsonl", workers=1)
    assert manifest["accuracy"]["pairs"] == 4 and manifest["accuracy"]["accuracy"] == 2.5 / 4
    assert manifest["accuracy_where_chosen_is_longer"]["pairs"] == 1
    assert manifest["set_aside"] == {"no_pair": 1} and manifest["notes"]["ties"] == 1
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["margin"] > 0 for line in lines] == [True, True, False, False]


def test_the_interval_is_wilsons():
    # 8 of 10: 0.4902 to 0.9433 (Wilson 1927, z = 1.96)
    found = accuracy([{"margin": 1.0}] * 8 + [{"margin": -1.0}] * 2)
    assert found["accuracy"] == 0.8
    assert [round(x, 4) for x in found["interval"]] == [0.4902, 0.9433]
    assert accuracy([])["accuracy"] is None


def test_texts_without_a_prompt_are_set_aside_with_what_they_need():
    with pytest.raises(Refused, match="needs a `prompt`") as refused:
        pair({"chosen": "Yes.", "rejected": "No."})
    assert refused.value.reason == "no_prompt"
