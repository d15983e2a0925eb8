"""Our attention gives what the stock function gives, and is lent to the model for one pass only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import tiny
from decoders import ARCHITECTURES
from grue.errors import ModelError
from grue.models.attention import attention, own_attention
from grue.models.causal import CHUNK
from grue.policy.engine import Engine


def grouped(heads: int, key_heads: int) -> nn.Module:
    """What the functions read of an attention layer."""
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = heads // key_heads, True
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "key_heads"), [(8, 2), (6, 6), (4, 1)])
@pytest.mark.parametrize("n", [1, 5])
def test_behind_a_cache_the_result_is_that_of_the_stock_function(
    heads: int, key_heads: int, n: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    batch, length, dim = 3, 11, 16
    query = torch.randn(batch, heads, n, dim).to(dtype)
    key, value = (torch.randn(batch, key_heads, length, dim).to(dtype) for _ in range(2))
    mask = torch.zeros(batch, 1, n, length, dtype=dtype)
    for row, seen in enumerate((4, 7, 11)):  # as in the ragged cache: each row ends elsewhere
        mask[row, :, :, seen:] = float("-inf")
    module = grouped(heads, key_heads)
    ours, _ = attention(module, query, key, value, mask, scaling=0.2)
    stock, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.2)
    assert ours.shape == stock.shape == (batch, n, heads, dim)
    torch.testing.assert_close(ours, stock)


@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_causal_bfloat16_is_sdpa_in_float32_with_its_gradients(
    heads: int, key_heads: int, length: int, scaling: float | None
) -> None:
    """bfloat16 keeps 8 bits: rounded inputs, probabilities and gradients are off by about 2^-8 each, of the largest."""
    torch.manual_seed(length)
    batch, dim, module = 2, 16, grouped(heads, key_heads)
    shapes = ((batch, heads, length, dim), (batch, key_heads, length, dim), (batch, key_heads, length, dim))
    states = [torch.randn(shape).bfloat16() for shape in shapes]
    weights = torch.randn(batch, length, heads, dim)
    ours = [state.clone().requires_grad_() for state in states]
    exact = [state.float().requires_grad_() for state in states]
    found, _ = attention(module, *ours, None, scaling=scaling)
    expected, _ = sdpa_attention_forward(module, *exact, None, scaling=scaling)
    assert found.dtype is torch.bfloat16 and found.shape == expected.shape == (batch, length, heads, dim)
    (found.float() * weights).sum().backward()
    (expected * weights).sum().backward()
    pairs = [(found, expected), *((mine.grad, theirs.grad) for mine, theirs in zip(ours, exact, strict=True))]
    for mine, theirs in pairs:
        assert mine is not None and theirs is not None
        error, largest = (mine.float() - theirs).detach().abs().max(), theirs.detach().abs().max()
        assert float(error) <= 0.02 * float(largest) + 1e-6


def test_a_causal_token_does_not_depend_on_what_follows() -> None:
    torch.manual_seed(0)
    states = [torch.randn(1, 2, CHUNK + 9, 8).bfloat16() for _ in range(3)]
    before, _ = attention(grouped(2, 2), *states, None)
    for state in states:
        state[:, :, CHUNK + 3 :] = 5.0
    after, _ = attention(grouped(2, 2), *states, None)
    assert torch.equal(before[:, : CHUNK + 3], after[:, : CHUNK + 3])
    assert not torch.equal(before[:, CHUNK + 3 :], after[:, CHUNK + 3 :])


def test_training_in_bfloat16_reads_what_float32_reads() -> None:
    """The whole model, longer than a block, in autocast as the learner has it."""
    model, ids = tiny.llama(spread=0.05), torch.randint(3, 300, (2, CHUNK + 30))
    with torch.no_grad():
        exact = model(ids, use_cache=False).logits
        with torch.autocast("cpu", dtype=torch.bfloat16), own_attention(model.get_decoder()):
            found = model(ids, use_cache=False).logits.float()
    assert float((found - exact).abs().max()) < 0.05 * float(exact.abs().max())


@pytest.mark.parametrize("make", ARCHITECTURES)
@torch.no_grad()
def test_every_architecture_reads_with_it_what_it_reads_without(make: Callable[[], PreTrainedModel]) -> None:
    model, ids = make(), torch.randint(3, 300, (3, 40))
    expected = model(ids, use_cache=False).logits
    with own_attention(model.get_decoder()):
        found = model(ids, use_cache=False).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


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
