"""Rows that hold several conversations (`data.rufus.pack_to`): refused where verl would let one read the other.

A packed row says by its positions, which restart, where a conversation begins. verl 0.9.1's FSDP engine passes them
without an attention mask when padding is removed, and transformers' attention keeps the conversations apart. The two
paths on which it does not (workers/engine/fsdp/transformer_impl.py):

- :1275, `use_remove_padding=false`: a padded batch has one attention mask per row;
- :1261, models whose forward takes `cu_seqlens` (linear attention): bounds are taken from the rows.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rufus_plugins.errors import ConfigError


def refuse_leaks(transformer_impl: ModuleType) -> None:
    """Mends `FSDPEngineWithLMHead.prepare_model_inputs` (transformer_impl.py:1145 of verl 0.9.1)."""
    engine = transformer_impl.FSDPEngineWithLMHead
    stock = engine.prepare_model_inputs

    def prepare_model_inputs(self: Any, micro_batch: Any) -> Any:
        check(micro_batch, getattr(self, "pass_packed_cu_seqlens", False))
        return stock(self, micro_batch)

    engine.prepare_model_inputs = prepare_model_inputs


def check(micro_batch: Any, bounds_from_rows: bool) -> None:
    """Raises `ConfigError` for packed rows on a path that mixes their conversations."""
    from verl.utils import tensordict_utils as tu

    removes_padding = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
    if (removes_padding and not bounds_from_rows) or not packed(micro_batch["position_ids"]):
        return
    if bounds_from_rows:
        raise ConfigError(
            "data.rufus.pack_to: this model takes cu_seqlens (linear attention), and verl gives it the bounds of rows: "
            "the conversations of a row would mix. Leave pack_to away; data.use_dynamic_bsz batches without padding."
        )
    raise ConfigError(
        "data.rufus.pack_to needs model.use_remove_padding=true: in a padded batch the conversations of a row would "
        "attend to each other."
    )


def packed(position_ids: Any) -> bool:
    """Whether a row of nested `[rows, tokens]` positions starts again from 0 within it."""
    if not position_ids.is_nested or position_ids.dim() != 2:
        return False
    rows = int((position_ids.offsets().diff() > 0).sum())
    return int((position_ids.values() == 0).sum()) > rows
