"""`attn_implementation=sdpa_float64`: attention whose result does not depend on how tokens are batched.

A rollout computes one token at a time over a cache, a trainer whole sequences at once. In fp32 the two sum in
different orders, and a trained model (logits near 20) turns that into probability differences of 1e-6 to 5e-6, which
would hide a real mismatch of that size. Linear layers agree bit for bit under MKL's strict reproducibility
(`MKL_CBWR=AVX2,STRICT`), elementwise functions where the vectorised and the scalar ones are the same
(`ATEN_CPU_CAPABILITY=default`), both set by scale=tiny; attention does when it sums in float64 and rounds once.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

NAME = "sdpa_float64"


def register(_: ModuleType) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> tuple[Any, None]:
    """transformers' sdpa on float64 copies; the result has the query's dtype."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.double()
    output, weights = sdpa_attention_forward(
        module, query.double(), key.double(), value.double(), attention_mask, **kwargs
    )
    return output.to(query.dtype), weights
