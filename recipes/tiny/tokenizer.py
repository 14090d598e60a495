"""A byte-level BPE tokenizer with the special tokens and the chat format of GLM-4.5.

Trained on generated texts, so that it is small and no text is out of its vocabulary. Digits are single tokens, as in
GLM-4.5. The same code gives the same bytes. There are two vocabularies: `programs` (the demo's task family and a few
lines in the shape of the other stages) and `families` (conversations of every tiny family), which writes an agent's
conversation in half the tokens.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.tiny import tasks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MERGED_VOCABULARY = {"programs": 480, "families": 1200}
"""Vocabulary -> byte tokens and merges; the special tokens come on top. Ours."""

PIECES = r" ?[A-Za-z]+|\d|[^A-Za-z0-9\s]+(?:[^\S\n]+[^A-Za-z0-9\s]+)*|\s+"
"""What merges stay within, in `families`: a word with the blank before it, a digit, marks with the blanks between them,
blanks. Ours."""

CHAT_TEMPLATE = Path(__file__).parent / "chat_template.jinja"

END = "<|endoftext|>"
STOP_TOKENS = (END, "<|user|>", "<|observation|>")
"""Where generation ends, as in GLM-4.5's generation config: end of text, or the turn passes on."""

SPECIAL_TOKENS = (
    END,
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
MARKUP_TOKENS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
)
"""One token each, yet not "special": they survive `decode(skip_special_tokens=True)`, as in GLM-4.5."""

_OTHER_STAGES = (
    "You are a helpful assistant. Solve the problem step by step and put the final answer in \\boxed{42}.",
    "The answer is correct because the sum of the two numbers is even. Therefore we get the result.",
    '{"type": "function", "name": "search", "description": "", "parameters": {"type": "object", "properties": {}}}',
    "def solve(x):\n    return x\n\nclass Solution:\n    def main(self):\n        pass\n",
    "import sys\nfor line in sys.stdin:\n    line = line.strip()\n",
    "<answer>yes</answer> <answer>no</answer> query command path file result error output",
)


def build(vocabulary: str = "programs") -> PreTrainedTokenizerFast:
    """Trains the tokenizer (a second or two) and gives it the chat template beside this file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocabulary not in MERGED_VOCABULARY:
        raise ConfigError(f"there is no tiny vocabulary {vocabulary!r}; there are {', '.join(MERGED_VOCABULARY)}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(vocabulary)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED_VOCABULARY[vocabulary],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(vocabulary), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        extra_special_tokens=[token for token in SPECIAL_TOKENS if token != END],
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def _pre_tokenizer(vocabulary: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if vocabulary == "programs":
        first, rest = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        first = pre_tokenizers.Split(Regex(PIECES), "isolated")
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([first, rest])


def _texts(vocabulary: str) -> list[str]:
    if vocabulary == "programs":
        return [*tasks.corpus(), *_OTHER_STAGES * 20]
    from rufus_plugins.recipes.tiny import corpus

    marks = re.compile("|".join(map(re.escape, (*SPECIAL_TOKENS, *MARKUP_TOKENS))))
    return [text for conversation in corpus.conversations(CHAT_TEMPLATE) for text in marks.split(conversation) if text]
