"""The reward model in process, against a forward pass written out by hand on tiny random models."""

import asyncio

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification

from rufus_plugins.errors import ConfigError, DataError, InfrastructureError
from rufus_plugins.rewards.preference import Preference, encode, scores
from rufus_plugins.types import Task, Termination, Trajectory

WORDS = ["<pad>", "<s>", "<end>", "<user>", "<assistant>", "\n", *"abcdefghijklmnopqrstuvwxyz", "?"]
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
STRICT = (
    "<s>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
)


def make_tokenizer(template, adds_bos):
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if adds_bos:
        core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    # the padding token is the end-of-turn token, as in many released models
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="<end>", pad_token="<end>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>"]})
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module", params=["chatml", "bos"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    make_tokenizer(CHATML if request.param == "chatml" else STRICT, request.param == "bos").save_pretrained(path)
    torch.manual_seed(5)
    config = Qwen3Config(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_labels=1, pad_token_id=2, initializer_range=0.5,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).save_pretrained(path)
    return str(path)


def rollout(answer, question="a b?", ending=Termination.ANSWERED, messages=None):
    return Trajectory(
        Task("1", "hh", [{"role": "user", "content": question}]),
        messages=messages or [{"role": "assistant", "content": answer}],
        termination=ending,
    )


def by_hand(folder, text):
    """The hidden state of the last token, one conversation at a time and without padding, times the score head."""
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([[WORDS.index(w) for w in text]])
    with torch.no_grad():
        hidden = model.model(input_ids=ids).last_hidden_state[0, -1]
    return float(hidden @ model.score.weight[0].detach())


def words(question, answer, folder):
    start = ["<s>"] if "bos" in folder else []
    return [*start, "<user>", *question, "<end>", "<assistant>", *answer, "<end>"]


def test_scores_of_a_batch_are_those_of_each_conversation_alone(folder):
    answers = ["a", "hello", "the quick brown fox".replace(" ", ""), "z" * 40, ""]

    async def all_of_them():
        reward = Preference(folder, batch_size=3)
        return await asyncio.gather(*(reward(rollout(a, "ab?")) for a in answers))

    found = [s.value for s in asyncio.run(all_of_them())]
    wanted = [by_hand(folder, words("ab?", a, folder)) for a in answers]
    assert found == pytest.approx(wanted, abs=1e-4) and len({round(w, 3) for w in wanted}) == len(wanted)


def test_there_is_exactly_one_bos(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = encode(tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert [WORDS[i] for i in ids] == words("a", "b", folder)


def test_a_template_with_bos_on_a_tokenizer_without_keeps_it():
    ids = encode(
        make_tokenizer(STRICT, adds_bos=False),
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    )
    assert [WORDS[i] for i in ids] == ["<s>", "<user>", "a", "<end>", "<assistant>", "b", "<end>"]


def test_a_tokenizer_that_adds_bos_does_so_for_a_template_without():
    ids = encode(
        make_tokenizer(CHATML, adds_bos=True), [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )
    assert [WORDS[i] for i in ids] == ["<s>", "<user>", "a", "<end>", "<assistant>", "b", "<end>"]


def score(folder, trajectory, **config):
    return asyncio.run(Preference(folder, **config)(trajectory))


def test_thinking_is_stripped_by_choice(folder):
    plain = score(folder, rollout("yes")).value
    assert score(folder, rollout("<think>no</think>yes")).value == pytest.approx(plain, abs=1e-5)
    kept = score(folder, rollout("<think>no</think>yes"), strip_thinking=False)
    assert kept.metrics["tokens"] > 10 and abs(kept.value - plain) > 1e-3


def test_what_is_beyond_the_limit_is_not_seen_and_said(folder):
    found = score(folder, rollout("a" * 50), max_tokens=20)
    same = score(folder, rollout("a" * 60), max_tokens=20)
    assert found.metrics["truncated"] is True and found.value == pytest.approx(same.value, abs=1e-5)


def test_a_batch_that_uses_every_token_is_scored_all_the_same(folder):
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    everything = list(range(len(WORDS)))
    together = scores(model, [everything, everything[:5]])
    assert together == pytest.approx([scores(model, [everything])[0], scores(model, [everything[:5]])[0]], abs=1e-5)


def test_a_conversation_without_an_answer_is_set_aside(folder):
    with pytest.raises(DataError, match="assistant"):
        score(folder, Trajectory(Task("1", "hh", [{"role": "user", "content": "a"}])))


def test_roles_that_the_template_refuses_are_set_aside(folder):
    if "bos" not in folder:
        pytest.skip("this template takes any order")
    twice = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(DataError, match="roles"):
        score(folder, rollout("", messages=twice))


def test_an_infrastructure_fault_is_never_scored(folder):
    with pytest.raises(InfrastructureError):
        score(folder, rollout("a", ending=Termination.ENGINE_FAILED))


def test_a_model_that_is_not_there_or_is_no_reward_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not load"):
        score(str(tmp_path), rollout("a"))
    config = Qwen3Config(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, num_labels=3,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).save_pretrained(tmp_path)
    make_tokenizer(CHATML, False).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="3 labels"):
        score(str(tmp_path), rollout("a"))


def test_half_a_surrogate_pair_is_read_as_a_question_mark(folder):
    assert score(folder, rollout("a\ud800b")).value == pytest.approx(score(folder, rollout("a?b")).value, abs=1e-5)
