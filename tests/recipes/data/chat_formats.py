"""Chat templates in the manner of well-known families, and small tokenizers with their special tokens."""

import functools
import json

from transformers import PreTrainedTokenizerFast

CHATML = """
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

THINKING = """
{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for message in messages[::-1] %}
{%- set index = messages|length - 1 - loop.index0 %}
{%- if ns.looking and message.role == 'user' %}{%- set ns.looking = false %}{%- set ns.last = index %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role in ['user', 'system'] %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}
{%- set thought = '' %}
{%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}
{{- content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

HEADERS = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system_message + '<|eot_id|>' }}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- (call.arguments | tojson) + '}<|eom_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

INST = """
{%- set loop_messages = messages %}
{%- if messages[0].role == 'system' %}
{%- set system_message = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- if message.role == 'user' %}
{{- '[INST] ' + ((system_message + '\\n\\n') if loop.first and system_message is defined else '') }}
{{- message.content + ' [/INST]' }}
{%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}
{%- else %}{{- raise_exception('only user and assistant') }}{%- endif %}
{%- endfor %}
"""

TURNS = """
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
{%- set first = messages[0].content + '\\n\\n' -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{- '<start_of_turn>' + role + '\\n' + (first if loop.first else '') -}}
{{- message.content | trim -}}
{{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""

UNCLOSED = """[gMASK]<sop>
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|user|>\\n' + m.content }}
{%- elif m.role == 'system' %}{{- '<|system|>\\n' + m.content }}
{%- elif m.role == 'assistant' %}
{{- '<|assistant|>\\n<think>' + (m.reasoning_content or '') + '</think>' }}
{%- if m.content %}{{- '\\n' + m.content }}{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function.name }}
{%- for k, v in call.function.arguments.items() %}
{{- '\\n<arg_key>' + k + '</arg_key>\\n<arg_value>' + (v if v is string else v | tojson) + '</arg_value>' }}
{%- endfor %}
{{- '\\n</tool_call>' }}
{%- endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

OUTPUTS_END = """
{{- bos_token }}{%- set ns = namespace(tool=false) %}
{%- for i in range(messages | length) %}
{%- set message = messages[i] %}
{%- if message.role == 'system' %}{{- message.content }}
{%- elif message.role == 'user' %}{%- set ns.tool = false %}{{- '<|User|>' + message.content }}
{%- elif message.role == 'assistant' %}
{%- if ns.tool %}{{- '<|outputs_end|>' }}{%- else %}{{- '<|Assistant|>' }}{%- endif %}
{%- set ns.tool = false %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{- '<|call|>' + call.function.name }}{%- endfor %}
{{- eos_token }}
{%- elif message.role == 'tool' %}
{%- if not ns.tool %}{{- '<|outputs_begin|>' }}{%- endif %}
{%- set ns.tool = true %}
{{- '<|output|>' + message.content }}
{%- endif %}
{%- endfor %}
{%- if ns.tool %}{{- '<|outputs_end|>' }}{%- endif %}
{%- if add_generation_prompt and not ns.tool %}{{- '<|Assistant|>' }}{%- endif %}
"""

FORMATS = {
    # name: (template, end token, begin token, other special tokens, takes tools)
    "chatml": (CHATML, "<|im_end|>", None, ("<|im_start|>", "<|endoftext|>"), True),
    "thinking": (THINKING, "<|im_end|>", None, ("<|im_start|>", "<|endoftext|>"), True),
    "headers": (
        HEADERS,
        "<|eot_id|>",
        "<|begin_of_text|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
        True,
    ),
    "inst": (INST, "</s>", "<s>", ("[INST]", "[/INST]"), False),
    "turns": (TURNS, "<end_of_turn>", "<bos>", ("<start_of_turn>",), False),
    "unclosed": (
        UNCLOSED,
        "<|endoftext|>",
        None,
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        True,
    ),
    "outputs_end": (
        OUTPUTS_END,
        "<|eos|>",
        "<|bos|>",
        ("<|User|>", "<|Assistant|>", "<|call|>", "<|output|>", "<|outputs_begin|>", "<|outputs_end|>"),
        True,
    ),
}
_TEXT = (
    "You are helpful. The answer is 42, because six times seven is forty-two.\n\nTherefore: yes.\n",
    '{"name": "search", "arguments": {"query": "weather in Paris"}}\n',
    "def f(x):\n    return x + 1\n\n\nprint(f(41))  # 42\n",
    "Größe, naïve café, 東京の天気, Привет мир, 🙂🎉\n",
)


@functools.cache
def tokenizer(name, kind="bytes"):
    """`kind`: "bytes" as GPT's byte-level BPE with trimmed offsets, "words" as SentencePiece's with a space mark."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    template, end, begin, special, _ = FORMATS[name]
    backend = Tokenizer(models.BPE(byte_fallback=kind == "words", unk_token=None))
    if kind == "bytes":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet = [chr(c) for c in range(32, 127)] + ["▁", "\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=sorted(alphabet),
        show_progress=False,
        special_tokens=[f"<0x{b:02X}>" for b in range(256)] if kind == "words" else [],
    )
    backend.train_from_iterator([*_TEXT * 5], trainer)
    if kind == "words":  # the bytes are fallbacks and not special: train again from the vocabulary alone
        state = json.loads(backend.to_str())
        state["added_tokens"] = []
        backend = Tokenizer.from_str(json.dumps(state))
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    specials = [t for t in (end, begin, *special) if t]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    backend.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=end,
        bos_token=begin,
        pad_token=end,
        extra_special_tokens=list(special),
        chat_template=template.lstrip("\n"),
        clean_up_tokenization_spaces=False,
    )
