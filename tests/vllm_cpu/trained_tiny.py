"""Trains a small GLM-4.5-shaped model for a minute, so that its router is not uniform: python trained_tiny.py DIR

32 experts, 4 active, 6 MoE layers, weights and expert outputs larger than usual and a short training: bf16 and fp32
disagree on about 1 % of the choices, and each one matters. All values ours.
"""

import sys

import torch

from rufus_plugins.recipes.tiny import model, tasks, tokenizer

LAYERS, TOP_K, EXPERTS = 6, 4, 32
INIT, SCALE = 0.1, 2.5


def main(output: str, steps: int = 40) -> None:
    from transformers import Glm4MoeForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    words = tokenizer.build()
    config = model.config(words)
    config.num_hidden_layers, config.n_routed_experts, config.num_experts_per_tok = LAYERS + 1, EXPERTS, TOP_K
    config.hidden_size, config.moe_intermediate_size, config.head_dim = 96, 32, 32
    config.initializer_range, config.routed_scaling_factor = INIT, SCALE
    made = Glm4MoeForCausalLM(config).train()
    pairs = tasks.demonstrations(0, 800, 0.0)
    ids = torch.cat(
        [
            torch.tensor(words(f"{problem.statement}\n{program}\n", add_special_tokens=False)["input_ids"])
            for problem, program in pairs
        ]
    )
    optimizer = torch.optim.AdamW(made.parameters(), lr=3e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 20) * (1 - step / steps)
        starts = torch.randint(0, len(ids) - 97, (8,), generator=generator)
        batch = torch.stack([ids[start : start + 96] for start in starts])
        loss = made(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
    made.eval().save_pretrained(output)
    words.save_pretrained(output)
    print(f"trained {steps} steps, loss {loss.item():.3f}, {sum(p.numel() for p in made.parameters())} parameters")


if __name__ == "__main__":
    main(sys.argv[1])
