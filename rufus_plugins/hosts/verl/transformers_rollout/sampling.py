"""Draws tokens from a batch of logits, each row by its own rules, and says how likely they were."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rufus_plugins.errors import ConfigError

_IGNORED = {"logprobs", "n", "skip_special_tokens", "spaces_between_special_tokens", "detokenize"}
"""Parameters that ask for what is done anyway, or for text, which a token server does not return."""


@dataclass(frozen=True)
class Sampling:
    """How one request is sampled."""

    max_tokens: int
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 or 0: all tokens."""
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, params: dict, *, max_tokens: int, end_ids: frozenset[int], seed: int) -> Sampling:
        """From the sampling parameters that verl hands to a rollout server (vLLM's names).

        Raises ConfigError for a parameter that would change the result and is not known here.
        """
        params = {key: value for key, value in params.items() if key not in _IGNORED and value is not None}
        if params.pop("repetition_penalty", 1.0) != 1.0:
            raise ConfigError("rollout.name=transformers has no repetition penalty: leave it at 1.0")
        own_ends = frozenset() if params.pop("ignore_eos", False) else end_ids
        stop = params.pop("stop", None) or ()
        sampling = cls(
            max_tokens=max_tokens,
            temperature=float(params.pop("temperature", 1.0)),
            top_p=float(params.pop("top_p", 1.0)),
            top_k=int(params.pop("top_k", -1)),
            stop_token_ids=frozenset(params.pop("stop_token_ids", None) or ()) | own_ends,
            stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
            seed=int(params.pop("seed", seed)),
        )
        if params:
            raise ConfigError(
                f"rollout.name=transformers does not know the sampling parameter {next(iter(params))!r}; it knows "
                "temperature, top_p, top_k, max_tokens, stop, stop_token_ids, ignore_eos and seed"
            )
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
            raise ConfigError(f"temperature must be >= 0 and top_p in (0, 1], got {sampling}")
        return sampling


def draw(logits: torch.Tensor, rules: list[Sampling], uniforms: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens `[rows]` and their log-probabilities `[rows]` for `logits` `[rows, vocabulary]`.

    The log-probability is that of the distribution which was drawn from: after temperature, top-k and top-p.
    For temperature 0 it is the model's own at temperature 1. `uniforms` (one per row, in [0, 1)) decide the
    draw by inverting the distribution function, so a row's tokens do not depend on its neighbours.
    """
    logits = logits.float()
    temperature = torch.tensor([r.temperature for r in rules]).unsqueeze(1)
    greedy = temperature == 0
    scaled = torch.where(greedy, logits, logits / temperature.clamp(min=1e-8))
    if any(r.top_k > 0 or r.top_p < 1 for r in rules):
        scaled = _truncate(scaled, rules)
    logprobs = scaled.log_softmax(dim=-1)
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    targets = torch.tensor(uniforms, dtype=torch.double).unsqueeze(1) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True).clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logits.argmax(dim=-1, keepdim=True), drawn)
    # the trainer's own formula (verl/utils/torch_functional.py:194), with its rounding: near probability 1 it and
    # log_softmax differ by 1e-6, which would be all that is left of the difference between rollout and trainer
    return tokens.squeeze(1), (scaled.gather(1, tokens) - scaled.logsumexp(dim=-1, keepdim=True)).squeeze(1)


def _truncate(logits: torch.Tensor, rules: list[Sampling]) -> torch.Tensor:
    """Top-k, then top-p; the likeliest token always stays. Greedy rows are left alone."""
    size = logits.shape[-1]
    top_k = torch.tensor([r.top_k if r.top_k > 0 and r.temperature else size for r in rules]).clamp(max=size)
    top_p = torch.tensor([r.top_p if r.temperature else 1.0 for r in rules]).unsqueeze(1)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    outside = torch.arange(size).unsqueeze(0) >= top_k.unsqueeze(1)
    ordered = ordered.masked_fill(outside, float("-inf"))
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = (before >= top_p) & (top_p < 1)
    outside[:, 0] = False
    ordered = ordered.masked_fill(outside, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)
