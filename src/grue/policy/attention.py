"""Attention for grouped query heads without copies of keys and values.

With a mask, transformers repeats keys and values for every query head before it calls SDPA, which with a long cache
takes longer than attention itself. Queries that share a key head may as well stand behind one another, as if they were
more positions.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

PACKED = "grue_packed"  # name of `packed_attention` among transformers' attention functions


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What "sdpa" gives: (batch, n, heads, dim).

    query is (batch, heads, n, dim), key and value are (batch, key heads, length, dim).
    """
    batch, heads, n, dim = query.shape
    groups = heads // key.shape[1]
    shared = attention_mask is not None and attention_mask.shape[1] == 1
    if groups == 1 or not shared or options.get("position_bias") is not None or options.get("softcap") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    assert attention_mask is not None
    mask = attention_mask[:, :, None].expand(-1, -1, groups, -1, -1).flatten(2, 3)
    packed = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, key.shape[1], groups * n, dim), key, value, attn_mask=mask, scale=options.get("scaling")
    )
    return packed.reshape(batch, heads, n, value.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(PACKED, packed_attention)
