"""Attention over shared key heads gives what the stock function gives, and is lent to the model for one pass only."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import tiny
from grue.errors import ModelError
from grue.policy.attention import packed_attention
from grue.policy.engine import Engine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "key_heads"), [(8, 2), (6, 6), (4, 1)])
@pytest.mark.parametrize("n", [1, 5])
def test_the_result_is_that_of_the_stock_function(heads: int, key_heads: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch, length, dim = 3, 11, 16
    query = torch.randn(batch, heads, n, dim).to(dtype)
    key, value = (torch.randn(batch, key_heads, length, dim).to(dtype) for _ in range(2))
    mask = torch.zeros(batch, 1, n, length, dtype=dtype)
    for row, seen in enumerate((4, 7, 11)):  # as in the ragged cache: each row ends elsewhere
        mask[row, :, :, seen:] = float("-inf")
    module = nn.Module()
    module.num_key_value_groups = heads // key_heads
    ours, _ = packed_attention(module, query, key, value, mask, scaling=0.2)
    stock, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.2)
    assert ours.shape == stock.shape == (batch, n, heads, dim)
    torch.testing.assert_close(ours, stock)


def test_the_model_has_its_own_attention_back_after_a_pass_and_after_an_error() -> None:
    model = tiny.llama()
    engine = Engine(model, 2, 16)
    engine.feed([0], [[1, 2]])
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ModelError):
        engine.feed([0], [[1] * 20])
    with pytest.raises(IndexError):
        engine.feed([1], [[10**6]])  # no such token
    assert model.config._attn_implementation == "sdpa"
