"""A byte-level BPE tokenizer with the special tokens and the chat format of GLM-4.5.

Trained on the task family and a few lines in the shape of the other stages, so that it is small and no text is out
of its vocabulary. Digits are single tokens, as in GLM-4.5. The same code gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rufus_plugins.recipes.tiny import tasks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MERGED_VOCABULARY = 480
"""Byte tokens and merges; the special tokens come on top. Ours."""

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


def build() -> PreTrainedTokenizerFast:
    """Trains the tokenizer (about a second) and gives it the chat template beside this file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED_VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*tasks.corpus(), *_OTHER_STAGES * 20], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        extra_special_tokens=[token for token in SPECIAL_TOKENS if token != END],
        chat_template=(Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
