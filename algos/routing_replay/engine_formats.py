"""Routes as inference engines answer them, made into ours.

Both engines give one row per input token, `prompt + response - 1`, and one entry per decoder layer of the whole
model, indexed absolutely; dense layers hold zeros. vLLM (>= 0.22) answers a numpy array
`[rows, num_layers, top_k]`. SGLang answers the same numbers flat, as base64 text of int32 in `meta_info`, newer
versions of the integer type that `routed_experts_dtype` names (srt/layers/moe/routed_experts_capturer.py).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rufus_plugins.algos.routing_replay.routers import RoutesError
from rufus_plugins.algos.routing_replay.storage import from_all_layers

_SGLANG_DTYPES = {"int32", "int16", "uint16", "uint8"}


def from_vllm(routed_experts: Any, layers: Sequence[int], num_experts: int) -> np.ndarray:
    """`CompletionOutput.routed_experts` -> uint8/uint16 `[rows, moe_layers, top_k]`."""
    if routed_experts is None:
        raise RoutesError("vLLM answered no routed_experts: start it with enable_return_routed_experts=True")
    return from_all_layers(np.asarray(routed_experts), layers, num_experts)


def from_sglang(
    meta_info: Mapping[str, Any], layers: Sequence[int], num_layers: int, top_k: int, num_experts: int
) -> np.ndarray:
    """`output["meta_info"]` -> uint8/uint16 `[rows, moe_layers, top_k]`."""
    text = meta_info.get("routed_experts")
    if text is None:
        raise RoutesError("SGLang answered no routed_experts: ask with return_routed_experts=True")
    dtype = meta_info.get("routed_experts_dtype") or "int32"
    if dtype not in _SGLANG_DTYPES:
        raise RoutesError(f"SGLang's routed_experts are {dtype!r}, known are {', '.join(sorted(_SGLANG_DTYPES))}")
    try:
        flat = np.frombuffer(base64.b64decode(text, validate=True), np.dtype(dtype).newbyteorder("<"))
    except (binascii.Error, ValueError) as error:
        raise RoutesError(f"SGLang's routed_experts do not decode: {error}") from error
    if flat.size % (num_layers * top_k):
        raise RoutesError(f"SGLang's routed_experts hold {flat.size} ids, no multiple of {num_layers} layers x {top_k}")
    return from_all_layers(flat.reshape(-1, num_layers, top_k), layers, num_experts)
