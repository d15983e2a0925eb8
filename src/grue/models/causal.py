"""Causal attention of many texts in one pass on a CPU, forward and backward, without products for padding.

The tokens of all texts are concatenated; each text sees only itself. torch's fused kernel takes up to twice as
long on short texts and wants them padded to one length (`benchmarks/attention.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

CHUNK = 64  # queries of a block: what lies above its diagonal is never computed
TOGETHER = 8  # rows of similar length that are padded to one length, in attention alone


@dataclass(frozen=True, slots=True)
class RowGroup:
    """B rows of at most L tokens of a pass."""

    tokens_BL: torch.Tensor  # which token of the pass it is; 0 where the row has ended
    real_R: torch.Tensor  # which of the B * L are tokens
    places_R: torch.Tensor  # which tokens of the pass those are
    hidden_BLL: torch.Tensor | None = None  # -inf where a token does not look, else 0; None: it sees all before it
    plain: int = 0  # with `hidden_BLL`: tokens up to this column see all before them

    def take(self, states_NHD: torch.Tensor, key_heads: int) -> torch.Tensor:
        """(B * key heads, L * heads per key head, D): queries that share a key head are adjacent."""
        rows, length = self.tokens_BL.shape
        heads, dim = states_NHD.shape[1:]
        taken = states_NHD.index_select(0, self.tokens_BL.flatten()).view(rows, length, key_heads, -1, dim)
        return taken.transpose(1, 2).reshape(rows * key_heads, length * (heads // key_heads), dim)

    def put(self, out_NHD: torch.Tensor, states: torch.Tensor, key_heads: int) -> None:
        """Inverse of `take`, for tokens that are not padding."""
        rows, length = self.tokens_BL.shape
        heads, dim = out_NHD.shape[1:]
        back = states.view(rows, key_heads, length, -1, dim).transpose(1, 2).reshape(rows * length, heads, dim)
        out_NHD.index_copy_(0, self.places_R, back.index_select(0, self.real_R))

    def clear_padding(self, states: torch.Tensor, key_heads: int) -> torch.Tensor:
        """Set the padding in a result of `take` to 0, in place: it holds some arbitrary token."""
        rows, length = self.tokens_BL.shape
        if len(self.real_R) < rows * length:
            padding = torch.ones(rows * length, dtype=torch.bool)
            padding[self.real_R] = False
            views = states.view(rows, key_heads, length, -1)
            views.masked_fill_(padding.view(rows, 1, length, 1), 0.0)
        return states


def row_groups(sizes: Sequence[int], seen_BLL: torch.Tensor | None = None) -> tuple[RowGroup, ...]:
    """Rows of `sizes` tokens, one after another in a pass, in groups of similar length.

    `seen_BLL` (bool): which tokens of its row a token sees, if that is not all before it. No token may see a later
    one.
    """
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    order = sorted(range(len(sizes)), key=lambda row: sizes[row])
    groups = []
    for first in range(0, len(order), TOGETHER):
        rows = order[first : first + TOGETHER]
        length = sizes[rows[-1]]
        steps_L = torch.arange(length)
        tokens_BL = torch.tensor([starts[row] for row in rows])[:, None] + steps_L
        real_BL = steps_L < torch.tensor([sizes[row] for row in rows])[:, None]
        real_R = real_BL.flatten().nonzero()[:, 0]
        hidden, plain = None, length
        if seen_BLL is not None:
            seen = seen_BLL[rows, :length, :length]
            odd = (seen != torch.ones(length, length, dtype=torch.bool).tril()).any(-1).any(0).nonzero()
            if len(odd):
                plain = int(odd[0])
                hidden = torch.zeros(seen.shape).masked_fill_(~seen, -math.inf)
        groups.append(RowGroup(tokens_BL.masked_fill(~real_BL, 0), real_R, tokens_BL.flatten()[real_R], hidden, plain))
    return tuple(groups)


class CausalRows(torch.autograd.Function):
    """(N, heads, D) for queries (N, heads, D), keys and values (N, key heads, D) of the rows of `groups`.

    Scores and softmax are float32. The backward pass recomputes the probabilities (Dao et al. 2022), so that memory
    grows with the length and not with its square.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query_NHD: torch.Tensor,
        key_NHD: torch.Tensor,
        value_NHD: torch.Tensor,
        scale: float,
        groups: Sequence[RowGroup],
    ) -> torch.Tensor:
        heads = key_NHD.shape[1]
        out_NHD, kept = value_NHD.new_empty(*query_NHD.shape[:2], value_NHD.shape[2]), []
        for group in groups:
            queries, keys, values = (group.take(x, heads) for x in (query_NHD, key_NHD, value_NHD))
            out = values.new_empty(*queries.shape[:2], values.shape[2])
            kept += [queries, keys, values]
            for block, end, probabilities in _probabilities(queries, keys, scale, group, heads):
                out[:, block] = torch.bmm(probabilities, values[:, :end])
            group.put(out_NHD, out, heads)
        ctx.save_for_backward(*kept)
        ctx.scale, ctx.groups, ctx.shapes = scale, groups, (query_NHD.shape, key_NHD.shape, value_NHD.shape)
        return out_NHD

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        heads = ctx.shapes[1][1]
        d_query, d_key, d_value = (grads[0].new_empty(shape) for shape in ctx.shapes)
        for group in ctx.groups:
            queries, keys, values = next(kept), next(kept), next(kept)
            grad_out = group.clear_padding(group.take(grads[0].to(queries.dtype), heads), heads)
            d_queries, d_keys, d_values = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
            for block, end, probabilities in _probabilities(queries, keys, ctx.scale, group, heads):
                grad = grad_out[:, block]
                d_values[:, :end] += torch.bmm(probabilities.transpose(1, 2), grad)
                d_scores = torch._softmax_backward_data(
                    torch.bmm(grad, values[:, :end].transpose(1, 2)), probabilities, -1, probabilities.dtype
                )
                d_queries[:, block] = torch.bmm(d_scores, keys[:, :end])
                d_keys[:, :end] += torch.bmm(d_scores.transpose(1, 2), queries[:, block])
            group.put(d_query, d_queries.mul_(ctx.scale), heads)
            group.put(d_key, d_keys.mul_(ctx.scale), heads)
            group.put(d_value, d_values, heads)
        return d_query, d_key, d_value, None, None


def _probabilities(
    queries: torch.Tensor, keys: torch.Tensor, scale: float, group: RowGroup, heads: int
) -> Iterator[tuple[slice, int, torch.Tensor]]:
    """Block by block: (its queries, the end of the keys that they may see, attention probabilities)."""
    length = keys.shape[1]
    shared = queries.shape[1] // length
    scaled, keys_T = queries.to(torch.float32, copy=True).mul_(scale), keys.float().transpose(1, 2)
    for start, end in pairwise([*range(0, length, CHUNK), length]):
        block = slice(start * shared, end * shared)
        scores = torch.bmm(scaled[:, block], keys_T[:, :, :end])
        yield block, end, torch.softmax(_hide(scores, group, heads, shared, end), -1).to(queries.dtype)


def _hide(scores: torch.Tensor, group: RowGroup, heads: int, shared: int, end: int) -> torch.Tensor:
    """The scores of a block, in place, with -inf where a token does not look."""
    count = scores.shape[1] // shared
    start = end - count
    if group.hidden_BLL is None or end <= group.plain:
        later = torch.full((count, count), -math.inf).triu_(1).repeat_interleave(shared, 0)
        scores[:, :, start:].add_(later)
        return scores
    hidden = group.hidden_BLL[:, None, start:end, None, :end]
    scores.view(-1, heads, count, shared, end).add_(hidden)
    return scores
