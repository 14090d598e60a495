"""Prints the largest |p_rollout - p_trainer| of a sharp model: a program of its own, as MKL reads its mode at start."""

import sys

import torch
import transformers.models.glm4_moe  # noqa: F401
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.config.model import HFModelConfig  # noqa: F401  (registers our attention, as in a run)

from rufus_plugins.hosts.verl.transformers_rollout.generator import Generator, Request
from rufus_plugins.hosts.verl.transformers_rollout.sampling import Sampling
from rufus_plugins.recipes.tiny.model import build

torch.set_num_threads(1)
model, tokenizer = build(seed=0)
model.set_attn_implementation(sys.argv[1])
model.eval()
with torch.no_grad():  # logits near 20 and a long residual, as SFT leaves them
    model.lm_head.weight.mul_(60)
    for layer in model.model.layers:
        layer.mlp.apply(lambda m: m.weight.mul_(4) if isinstance(m, torch.nn.Linear) else None)
generator = Generator(model, tokenizer, max_rows=24, max_length=128)
requests = [
    Request([(7 * i + j) % len(tokenizer) for j in range(5 + i)], Sampling(max_tokens=40, seed=i), done=lambda r: None)
    for i in range(24)
]
for request in requests:
    generator.submit(request)
while generator.busy:
    generator.step()
largest, scale = 0.0, 0.0
with torch.no_grad():
    for request in requests:
        start = len(request.prompt)
        logits = model(torch.tensor([request.ids])).logits[0, start - 1 : -1]
        trainer = logprobs_from_logits(logits, torch.tensor(request.tokens))
        difference = trainer.exp() - torch.tensor(request.logprobs).exp()
        largest, scale = max(largest, difference.abs().max().item()), max(scale, logits.abs().max().item())
print(f"logits {scale} difference {largest}")
