"""A GLM-4.5-Air in small: `Glm4MoeForCausalLM` with 1.8M parameters, built from a seed.

`python -m rufus_plugins.recipes.tiny.model --output DIR --seed 0 [--vocabulary families]`

Like its big sister it has a dense first layer, a shared expert, a sigmoid router with bias correction, grouped-query
attention and a partial rotary embedding; sizes are ours, chosen so that a step of RL takes seconds on two CPU cores.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rufus_plugins.errors import ConfigError
from rufus_plugins.recipes.tiny import tokenizer as tiny_tokenizer

if TYPE_CHECKING:
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedTokenizerFast

BIAS_STD = 0.02
"""Spread of the router's correction biases. GLM-4.5 trains them by load; here they are drawn, because a zero bias
would hide an engine that forgets to add it. Ours."""


def config(tokenizer: PreTrainedTokenizerFast) -> Glm4MoeConfig:
    """The architecture; `vocab_size` is exactly the tokenizer's length."""
    from transformers import Glm4MoeConfig

    stops = [tokenizer.convert_tokens_to_ids(token) for token in tiny_tokenizer.STOP_TOKENS]
    return Glm4MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        attention_bias=True,  # as GLM-4.5
        moe_intermediate_size=128,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=stops,
        pad_token_id=stops[0],
        dtype="float32",
    )


def build(seed: int = 0, vocabulary: str = "programs") -> tuple[Glm4MoeForCausalLM, PreTrainedTokenizerFast]:
    """Model (fp32, on the CPU) and tokenizer (tokenizer.py has the vocabularies); the same seed gives the same
    weights."""
    import torch
    from transformers import Glm4MoeForCausalLM

    tokenizer = tiny_tokenizer.build(vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Glm4MoeForCausalLM(config(tokenizer)).float()
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, BIAS_STD)
    return model.eval(), tokenizer


def save(output: Path, seed: int = 0, vocabulary: str = "programs") -> int:
    """Writes a directory that `AutoModelForCausalLM` and `AutoTokenizer` load offline; returns the parameter count.

    The directory appears whole or not at all. Raises `ConfigError` if `output` holds anything but such a model.
    """
    output = Path(output)
    if output.exists() and not (output.is_dir() and (not any(output.iterdir()) or (output / "config.json").is_file())):
        raise ConfigError(f"{output} exists and is no model directory: choose another --output, or remove it.")
    output.parent.mkdir(parents=True, exist_ok=True)
    model, tokenizer = build(seed, vocabulary)
    part = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        part.chmod(0o755)
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        if output.exists():
            shutil.rmtree(output)
        part.rename(output)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return sum(p.numel() for p in model.parameters())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rufus_plugins.recipes.tiny.model", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", choices=tiny_tokenizer.MERGED_VOCABULARY, default="programs")
    options = parser.parse_args(argv)
    try:
        parameters = save(options.output, options.seed, options.vocabulary)
    except ConfigError as error:
        parser.exit(2, f"{error}\n")
    print(f"wrote {options.output}: Glm4MoeForCausalLM, {parameters:,} parameters, seed {options.seed}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
