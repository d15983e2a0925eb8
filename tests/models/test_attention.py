"""Our attention gives what the stock function gives, and is lent to the model for one pass only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import tiny
from decoders import ARCHITECTURES
from grue.engine.engine import Engine
from grue.errors import ModelError
from grue.models import attention as module_of_attention
from grue.models.attention import _of_rows, attention, own_attention
from grue.models.causal import CHUNK


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


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_rows_that_are_read_in_parts_give_what_they_give_at_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows, length = torch.tensor([6, 0, 3, 5, 2]), 11
    key, value, query = torch.randn(7, 2, length, 16), torch.randn(7, 2, length, 16), torch.randn(5, 4, 3, 16)
    mask = torch.zeros(5, 1, 3, length)
    for row, seen in enumerate((4, 7, 11, 1, 9)):
        mask[row, :, :, seen:] = float("-inf")
    at_once = _of_rows(None, query, key[rows], value[rows], mask, 0.2)
    monkeypatch.setattr(module_of_attention, "PART_BYTES", count * 4 * (key[0].numel() + value[0].numel()))
    torch.testing.assert_close(_of_rows(rows, query, key, value, mask, 0.2), at_once)


@pytest.mark.parametrize(
    "what", ["bias of places", "softcap", "dropout", "a mask for each head", "sees what follows", "behind a cache"]
)
def test_what_it_cannot_do_is_left_to_the_stock_function(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, masked = grouped(4, 2), what in ("bias of places", "softcap", "dropout", "a mask for each head")
    module.is_causal = what != "sees what follows"
    query, key, value = (torch.randn(1, heads, 5, 8).bfloat16() for heads in (4, 2, 2))
    if what == "behind a cache":
        query = query[:, :, :3]
    heads = 4 if what == "a mask for each head" else 1
    mask = torch.zeros(1, heads, 5, 5).bfloat16() if masked else None
    names = {"bias of places": "position_bias", "softcap": "softcap", "dropout": "dropout"}
    options = {names[what]: torch.zeros(1, 4, 5, 5) if "bias" in what else 0.5} if what in names else {}
    asked: list[dict[str, Any]] = []

    def stock(*given: Any, **options: Any) -> tuple[torch.Tensor, None]:
        asked.append(options)
        return query, None

    monkeypatch.setattr(module_of_attention, "sdpa_attention_forward", stock)
    attention(module, query, key, value, mask, **options)
    assert asked == [options]


def test_after_a_packed_pass_nothing_is_packed() -> None:
    model, ids = tiny.llama(), torch.tensor([[5, 9, 33, 7]])
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        Engine(model, 2, 16).feed([0, 1], [[1, 2], [3]])
        with own_attention(model.get_decoder()):
            found = model(ids, use_cache=False).logits
    torch.testing.assert_close(found, expected)
