"""Small tokenizers with the chat formats that verl's Continuous Token builders know, written for these tests."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

CHATML = """
{%- if tools %}{{ '<|im_start|>system\\nTools:\\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- else -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

MINIMAX = """
{%- if tools %}{{ ']~!b[]~b]system\\n' }}{{ tools | tojson }}{{ '[e~[\\n' }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ ']~b]tool' }}{% endif -%}
{{ '\\n<response>' + m.content + '</response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '[e~[\\n' }}{% endif -%}
{%- else -%}
{{ ']~b]' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '\\n<minimax:tool_call>' + c.function.name + '</minimax:tool_call>' }}{% endfor -%}
{{ '[e~[\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ ']~b]assistant\\n' }}{% endif -%}
"""

DEEPSEEK = """
{{- '<｜begin▁of▁sentence｜>' }}
{%- for m in messages -%}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<｜tool▁outputs▁begin｜>' }}{% endif -%}
{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<｜tool▁outputs▁end｜>' }}{% endif -%}
{%- else -%}
{{ '<｜Assistant｜>' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁call▁end｜>' }}{% endfor -%}
{{ '<｜end▁of▁sentence｜>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif -%}
"""

GPT_OSS = """
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' + m.content | tojson + '<|end|>' }}
{%- elif m.role == 'assistant' -%}
{%- if m.tool_calls -%}
{{ '<|start|>assistant<|channel|>commentary to=functions.' + m.tool_calls[0].function.name + '<|message|>{}<|call|>' }}
{%- else -%}
{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{%- if loop.last and not add_generation_prompt %}{{ '<|return|>' }}{% else %}{{ '<|end|>' }}{% endif -%}
{%- endif -%}
{%- else -%}
{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif -%}
"""

GEMMA = """
{{- '<bos>' }}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if not loop.first and messages[loop.index0 - 1].role == 'tool' %}{{ '<|tool_response>' }}{% endif -%}
{{ 'response:' + m.name + '{value:' + m.content + '}<tool_response|>' }}
{%- elif m.role == 'assistant' -%}
{{ '<|turn>model\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '<|tool_call>call:' + c.function.name + '<tool_call|>' }}{% endfor -%}
{%- if m.tool_calls %}{{ '<|tool_response>' }}{% else %}{{ '<turn|>\\n' }}{% endif -%}
{%- else -%}
{{ '<|turn>' + m.role + '\\n' + m.content + '<turn|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|turn>model\\n' }}{% endif -%}
"""

HEADERS = """
{{- '<|begin_of_text|>' }}
{%- for m in messages -%}
{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\\n\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '{"name": "' + c.function.name + '", "parameters": {}}' }}{% endfor -%}
{{ '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif -%}
"""


@dataclass(frozen=True)
class Family:
    name: str
    model_type: str
    template: str
    special: tuple[str, ...]
    markup: tuple[str, ...]
    """Added, but not "special"."""
    end: str
    """Token after which a turn without a call stops."""
    call_end: str = ""
    """Token after which a turn with a call stops, where it is another one."""
    thinks: bool = False

    @property
    def controls(self) -> tuple[str, ...]:
        return self.special + self.markup

    def end_of(self, called: bool) -> str:
        return (self.call_end or self.end) if called else self.end


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "qwen", "qwen3", CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"), "<|im_end|>",
        ),
        Family(
            "chatml_of_an_unknown_model", "somebody_elses", CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            ("<tool_call>", "</tool_call>"), "<|im_end|>",
        ),
        Family("minimax", "minimax_m2", MINIMAX, ("]~!b[", "]~b]", "[e~["), ("<minimax:tool_call>",), "[e~["),
        Family(
            "deepseek", "deepseek_v3", DEEPSEEK,
            ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
            (
                "<｜User｜>", "<｜Assistant｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>",
                "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
            ), "<｜end▁of▁sentence｜>",
        ),
        Family(
            "deepseek_v4", "deepseek_v4", "", ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
            ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"), "<｜end▁of▁sentence｜>",
        ),
        Family(
            "gpt_oss", "gpt_oss", GPT_OSS,
            ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"), (), "<|end|>", "<|call|>",
        ),
        Family(
            "gemma", "gemma4", GEMMA, ("<bos>", "<turn|>", "<|turn>"),
            ("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"), "<turn|>", "<|tool_response>",
        ),
        Family(
            "headers", "llama", HEADERS,
            ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"), (),
            "<|eot_id|>",
        ),
        Family(
            "glm", "glm4_moe", "tiny", ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>"),
            ("<tool_call>", "</tool_response>", "<arg_key>", "/nothink"), "<|endoftext|>", thinks=True,
        ),
    )
}  # fmt: skip

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": []},
        },
    }
]

_CORPUS = [
    "The quick brown fox.\n\nIt jumps over the lazy dog, and so on and so on.\n",
    '{"name": "look", "arguments": {"at": "x"}}\n</tool_call>\n<tool_response>\nresult: ok\n</tool_response>\n',
    "user\nassistant\nsystem\ntool\nipython\n\n  def f(x):\n    return x > 1 and x < 2\n>>> f(3)\n<b>bold</b>\n",
    "response:look{value:1} to=functions.look commentary final analysis",
]


@functools.cache
def tokenizer_of(name: str) -> Any:
    """The family's tokenizer: byte-level BPE with merges over blanks and line ends."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    family = FAMILIES[name]
    if family.template == "tiny":
        from rufus_plugins.recipes.tiny.tokenizer import build

        return build()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS * 8, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in family.special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=family.end,
        pad_token=family.special[0],
        extra_special_tokens=[token for token in family.special if token != family.end],
        chat_template=family.template or None,
        clean_up_tokenization_spaces=False,
    )


@functools.cache
def chat_of(name: str) -> Any:
    from rufus_plugins.hosts.verl.chat_tokens import ChatTokens

    family, tokenizer = FAMILIES[name], tokenizer_of(name)
    ends = {family.end, family.call_end or family.end}
    if name == "glm":
        ends |= {"<|user|>", "<|observation|>"}
    if name == "gpt_oss":
        ends |= {"<|return|>"}
    return ChatTokens(tokenizer, family.model_type, end_ids=[tokenizer.convert_tokens_to_ids(t) for t in ends])
