"""A pass without padding reads what a padded one reads, with the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import decoders
import tiny
from grue import games
from grue.models.attention import takes_rows
from grue.models.causal import CHUNK, TOGETHER, CausalRows, row_groups
from grue.models.checkpointing import prepare_recomputing
from grue.models.policy_model import PolicyModel, Reading
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.rollout.pack import Sample, collate, samples

# others have a window, or attention of their own
TAKEN = {decoders.llama, decoders.gpt2, decoders.qwen3, decoders.phi, decoders.deepseek}
SIZES = (3, 70, 1, 41, 66, 2, 17, 9, 33, 28)  # more than one group, more than one block


def batch_of(sizes: tuple[int, ...], padding: int = 0) -> tuple[torch.Tensor, ...]:
    """Ids, and a node and a turn at every token of every row."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 300, (len(sizes), max(sizes)), generator=generator)
    for row, size in enumerate(sizes):
        ids[row, size:] = padding
    rows = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    columns = torch.cat([torch.arange(size) for size in sizes])
    return ids, rows, columns, torch.tensor([[3, 9, 40]]).expand(len(rows), -1), rows, columns


def gradients(model: PolicyModel, read: Callable[[], Reading]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    logits_NC = read().logits_NC
    shown = torch.isfinite(logits_NC)
    weights = torch.randn(logits_NC.shape, generator=torch.Generator().manual_seed(1))
    (logits_NC[shown] * weights[shown]).sum().backward()
    return logits_NC.detach(), {n: p.grad.clone() for n, p in model.lm.named_parameters() if p.grad is not None}


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(found[1][name], gradient, atol=1e-4 * largest + 1e-6, rtol=1e-3, msg=name)


@pytest.mark.parametrize("make", decoders.RECURRENT)
def test_a_state_does_not_run_from_row_to_row(make: Callable[[], PreTrainedModel]) -> None:
    assert not takes_rows(make().get_decoder().eval(), torch.zeros(2, 5, dtype=torch.long))


@pytest.mark.parametrize("make", decoders.ARCHITECTURES)
def test_every_architecture_reads_the_same_without_padding(make: Callable[[], PreTrainedModel]) -> None:
    model, batch = PolicyModel(make()), batch_of(SIZES)
    assert takes_rows(model.base_lm().get_decoder(), batch[0]) == (make in TAKEN)
    padded = gradients(model, lambda: model(*batch))
    assert_same(gradients(model, lambda: model(*batch, sizes=SIZES)), padded)


def test_what_stands_in_the_padding_is_not_read() -> None:
    model = tiny.policy_model()
    with torch.no_grad():
        first, second = (model(*batch_of(SIZES, padding), sizes=SIZES).logits_NC for padding in (0, 299))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["score", "aligned"])
def test_trees_beside_the_text_are_read_the_same(kind: str) -> None:
    model = tiny.policy_model(spread=0.1)
    policy = tiny.player(model, kind=kind, **({"min_p": 0.0} if kind == "aligned" else {}))
    played = collect(policy, [games.make("toy") for _ in range(4)], tiny.tasks(TOGETHER + 3), Decoding(), seed="trees")
    items: list[Sample] = samples(played)
    batch = collate(items)
    assert batch.trees is not None and len({item.size for item in items}) > 1
    *inputs, sizes = batch.inputs
    padded = gradients(model, lambda: model(*inputs))
    assert_same(gradients(model, lambda: model(*inputs, sizes=sizes)), padded)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_look_where_they_may_are_softmax_attention_with_its_gradients(dtype: torch.dtype) -> None:
    """Against plain products in float64. bfloat16 keeps 8 bits: what is rounded is off by about 2^-8 of the largest."""
    torch.manual_seed(0)
    sizes, heads, key_heads, dim = (CHUNK + 9, 5, 2 * CHUNK, 1), 4, 2, 16
    count, longest, scale = sum(sizes), max(sizes), 0.3
    seen = torch.ones(len(sizes), longest, longest, dtype=torch.bool).tril()
    seen &= (torch.rand(seen.shape) > 0.4) | torch.eye(longest, dtype=torch.bool)
    seen[:, :3] = torch.ones(longest, longest, dtype=torch.bool).tril()[:3]
    states = [torch.randn(count, n, dim).to(dtype) for n in (heads, key_heads, key_heads)]
    weights = torch.randn(count, heads, dim)
    ours = [state.clone().requires_grad_() for state in states]
    exact = [state.double().requires_grad_() for state in states]
    found = CausalRows.apply(*ours, scale, row_groups(sizes, seen))
    query, key, value = exact
    parts, start = [], 0
    for row, size in enumerate(sizes):
        inside = slice(start, start + size)
        keys, values = (x[inside].repeat_interleave(heads // key_heads, 1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[inside], keys) * scale
        hidden = ~seen[row, :size, :size]
        parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values))
        start += size
    expected = torch.cat(parts)
    (found.float() * weights).sum().backward()
    (expected * weights).sum().backward()
    near = 0.02 if dtype is torch.bfloat16 else 1e-5
    for mine, theirs in [(found, expected), *((a.grad, b.grad) for a, b in zip(ours, exact, strict=True))]:
        assert mine is not None and theirs is not None
        error, largest = (mine.double() - theirs).detach().abs().max(), theirs.detach().abs().max()
        assert float(error) <= near * float(largest)


@pytest.mark.parametrize("make", [decoders.llama, decoders.gpt2])
def test_where_attention_has_dropout_rows_stay_padded_in_training(make: Callable[[], PreTrainedModel]) -> None:
    model = make()
    decoder, ids = model.get_decoder(), torch.zeros(2, 5, dtype=torch.long)
    for name in ("attention_dropout", "attn_pdrop"):
        if hasattr(decoder.config, name):
            setattr(decoder.config, name, 0.1)
    assert takes_rows(decoder.eval(), ids)
    assert not takes_rows(decoder.train(), ids)


def test_dropout_of_attention_is_known_by_any_name() -> None:
    decoder = decoders.bert().get_decoder()
    assert decoder.config.attention_probs_dropout_prob
    ids = torch.zeros(2, 5, dtype=torch.long)
    assert takes_rows(decoder.eval(), ids)
    assert not takes_rows(decoder.train(), ids)


def test_where_activations_are_computed_again_rows_stay_padded() -> None:
    model = tiny.llama()
    ids = torch.zeros(2, 5, dtype=torch.long)
    assert takes_rows(model.get_decoder(), ids)
    prepare_recomputing(model)
    assert not takes_rows(model.get_decoder(), ids)


@pytest.mark.parametrize("length", [33, 65, 128])
def test_a_last_token_from_which_others_are_hidden_does_not_see_them(length: int) -> None:
    """As at the end of a tree of actions."""
    seen = torch.ones(1, length, length, dtype=torch.bool).tril()
    seen[0, -1, 3:-1] = False
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(length, 2, 8, generator=draw) for _ in range(3)]
    found = CausalRows.apply(*parts, 8**-0.5, row_groups([length], seen))
    plain = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts), attn_mask=seen)
    torch.testing.assert_close(found, plain.transpose(0, 1), rtol=1e-4, atol=1e-5)
