"""The tiny model and its tokenizer: loadable offline, the shape of GLM-4.5, the same bytes from the same seed."""

import hashlib
import os
import subprocess
import sys

import pytest

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.tiny import model as tiny_model
from rufus_plugins.recipes.tiny import tokenizer as tiny_tokenizer

SEARCH = {
    "type": "function",
    "function": {"name": "search", "description": "finds pages", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "model"
    tiny_model.save(path, seed=0)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def _digests(directory):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(directory.iterdir())}


def test_the_same_seed_gives_the_same_bytes_in_another_process_and_another_seed_does_not(directory, tmp_path):
    command = [sys.executable, "-m", "rufus_plugins.recipes.tiny.model", "--output", str(tmp_path / "again")]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert _digests(tmp_path / "again") == _digests(directory)
    tiny_model.save(tmp_path / "other", seed=1)
    other, first = _digests(tmp_path / "other"), _digests(directory)
    assert other["model.safetensors"] != first["model.safetensors"]
    assert other["tokenizer.json"] == first["tokenizer.json"]


def test_building_a_model_leaves_the_global_random_state_alone():
    import torch

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    tiny_model.build(seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_it_loads_offline_as_a_glm_with_the_parts_of_its_big_sister(directory, tokenizer):
    from transformers import AutoModelForCausalLM, Glm4MoeForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    assert isinstance(model, Glm4MoeForCausalLM)
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    assert 1_000_000 < sum(p.numel() for p in model.parameters()) < 5_000_000
    first, *others = model.model.layers
    assert not hasattr(first.mlp, "gate")
    for layer in others:
        assert layer.mlp.shared_experts is not None
        assert layer.mlp.gate.e_score_correction_bias.abs().min() > 0


def test_every_format_token_of_glm_is_one_token_and_only_the_role_tokens_vanish_on_decoding(tokenizer):
    special = "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>".split()
    markup = "<think> </think> <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>".split()
    for token in [*special, *markup, "<tool_response>", "</tool_response>", "/nothink"]:
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1, token
    ids = tokenizer.encode("<|user|><think>a</think><|endoftext|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>a</think>"


def test_digits_are_single_tokens_and_any_text_survives_the_round_trip(tokenizer):
    assert tokenizer.tokenize("20261") == list("20261")
    text = "print(f'{a}')\t# naïve 速度 🙂\r\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_exam_prompt_is_worded_as_glm_words_it(tokenizer):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    expected = "[gMASK]<sop><|system|>\nS<|user|>\nhi<|assistant|>"
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == expected
    quiet = "[gMASK]<sop><|user|>\nhi/nothink<|assistant|>\n<think></think>"
    for content in ("hi", "hi/nothink", [{"type": "text", "text": "hi"}]):
        messages = [{"role": "user", "content": content}]
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        assert rendered == quiet


def test_tool_calls_thoughts_and_observations_are_rendered_in_glms_format(tokenizer):
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": {"q": "x", "n": 3}}}
    messages = [
        {"role": "user", "content": "find x"},
        {"role": "assistant", "content": "Looking.", "reasoning_content": "which x?", "tool_calls": [call]},
        {"role": "tool", "content": "page 1"},
        {"role": "tool", "content": "page 2"},
        {"role": "assistant", "content": "<think>done</think>\nIt is 1."},
    ]
    rendered = tokenizer.apply_chat_template(messages, tools=[SEARCH], tokenize=False)
    head, conversation = rendered.split("<|user|>")
    assert head == "[gMASK]<sop><|system|>\n# Tools\nsearch()"
    assert conversation == (
        "\nfind x<|assistant|>\n<think>which x?</think>\nLooking.\n<tool_call>search\n<arg_key>q</arg_key>\n"
        "<arg_value>x</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call><|endoftext|>"
        "<|observation|>\n<tool_response>\npage 1\n</tool_response>\n<tool_response>\npage 2\n</tool_response>"
        "<|assistant|>\n<think>done</think>\nIt is 1.<|endoftext|>"
    )


def test_thoughts_before_the_last_question_are_dropped(tokenizer):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "old"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "new"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert "old" not in rendered and "<think>new</think>\nd<|endoftext|>" in rendered


def test_verls_token_builder_extends_a_conversation_exactly_as_the_template_renders_it(tokenizer):
    from verl.utils.tokenizer.continuous_token import GLMContinuousTokenBuilder

    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": {"q": "x"}}}
    asked = [{"role": "user", "content": "find x"}]
    called = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "1", "content": "page 1"}

    def render(messages, **options):
        return tokenizer.apply_chat_template(messages, tools=[SEARCH], return_dict=False, **options)

    builder = GLMContinuousTokenBuilder(tokenizer)
    prompt = builder.build_initial_tokens(asked, tools=[SEARCH])
    sampled = render([*asked, called])[len(prompt) :]
    assert prompt + sampled == render([*asked, called])
    merged = builder.merge_context_tokens(
        [*asked, called], [*asked, called, answered], prompt + sampled, tools=[SEARCH]
    ).token_ids
    assert merged == render([*asked, called, answered], add_generation_prompt=True)


def test_generation_stops_where_glms_does(directory, tokenizer):
    from transformers import GenerationConfig

    stops = GenerationConfig.from_pretrained(directory).eos_token_id
    assert tokenizer.convert_ids_to_tokens(stops) == list(tiny_tokenizer.STOP_TOKENS)


def test_a_directory_that_holds_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="choose another --output"):
        tiny_model.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_verls_sft_dataset_trains_on_the_answer_and_its_end_and_on_nothing_else(directory, tokenizer, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "```python\npass\n```"}]
    pq.write_table(pa.Table.from_pylist([{"messages": messages, "enable_thinking": False}]), tmp_path / "a.parquet")
    options = {"pad_mode": "no_padding", "max_length": 64, "apply_chat_template_kwargs": {"enable_thinking": False}}
    [item] = MultiTurnSFTDataset(str(tmp_path / "a.parquet"), tokenizer, OmegaConf.create(options))
    ids, mask = item["input_ids"], item["loss_mask"].bool()
    assert tokenizer.decode(ids[mask]) == "\n```python\npass\n```<|endoftext|>"
    prompt = tokenizer.apply_chat_template(
        messages[:1], add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    assert ids[~mask].tolist() == prompt  # what the rollout is given, token by token
