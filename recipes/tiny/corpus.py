"""Conversations of every tiny family, as the chat template words them: what the vocabulary `families` is made of.

Names and numbers are drawn anew for each of several seeds, so that the vocabulary knows syllables and no name.
"""

from __future__ import annotations

import random
from pathlib import Path

SEEDS = range(1_000, 1_008)
PER_SEED = 40
"""Items of a family and seed. Both ours."""


def conversations(chat_template: Path) -> list[str]:
    """The right teacher's and the careless one's, tools included."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from rufus_plugins.recipes.tiny.families import STAGES
    from rufus_plugins.recipes.tiny.families.writing import family, records

    blank = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=chat_template.read_text(encoding="utf-8")
    )
    texts = []
    for stage in STAGES:
        module = family(stage)
        for seed in SEEDS:
            rng = random.Random(f"corpus {stage} {seed}")
            found = module.items(seed)
            for item in rng.sample(found, min(PER_SEED, len(found))):
                for messages in records(module, item, rng.choice((item.right, item.faulty))):
                    texts.append(
                        blank.apply_chat_template(
                            messages, tools=module.FAMILY.tools or None, enable_thinking=False, tokenize=False
                        )
                    )
    return texts
