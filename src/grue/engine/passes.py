"""What a forward pass over a ragged batch reads: rows with similar numbers of new tokens form groups.

Within a group rows are padded to the longest by repeating their last token; what is computed for padding is thrown
away, as it is for other rows of the cache that only fill up a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from grue.engine.tree import TokenTree
from grue.models.architecture import Window, layer_masks
from grue.models.attention import Group

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grouping:
    """How rows are grouped.

    `widths` are upper bounds of the numbers of new tokens in each group; rows beyond the last form one more group. With
    `widths` None all rows of a group have equally many. A group's number of keys is rounded up to `round_to`.
    With `slots`, a group with at least half that many rows takes in the other rows of the cache as padding, so that
    keys and values are read in place. Padding is expensive beyond the last of `widths`: there a group must be full.
    With `ahead`, possible choices are read along with the state, not in passes of their own.
    With `coarse`, all sizes of a pass are rounded up to a few values, so that its shapes repeat (`cuda_graphs.py`); the
    number of keys to no more than `columns`, unless more are needed.
    Of a tree at most `tree` tokens are read in a pass: attention among them takes time and memory with their square.
    """

    widths: tuple[int, ...] | None
    round_to: int = 1
    slots: int | None = None
    ahead: bool = False
    coarse: bool = False
    columns: int = 0
    tree: int = 512

    def keys(self, length: int) -> int:
        """How many keys a group reads if its longest row has `length`; the next three methods round up other sizes."""
        exact = -(-length // self.round_to) * self.round_to
        return max(exact, min(self.columns, round_up(length, self.round_to, 4))) if self.coarse else exact

    def tokens(self, count: int, width: int) -> int:
        """Tokens of a pass whose rows have up to `width` new ones."""
        return round_up(count, 8, 1 if width == 1 else 4) if self.coarse else count

    def width(self, longest: int) -> int:
        """New tokens of a row."""
        return round_up(longest, 1, 2) if self.coarse else longest

    def rows(self, count: int) -> int:
        """Rows of a group."""
        return round_up(count, 1, 1) if self.coarse else count

    def filled_up(self, rows: int, longest: int) -> int | None:
        """Number of cache rows if a group of `rows` with at most `longest` new tokens is filled up to them, or None."""
        if self.slots is None or self.widths is None:
            return None
        least = self.slots if longest > self.widths[-1] else self.slots / 2
        return self.slots if rows >= least else None


def round_up(number: int, least: int, steps: int) -> int:
    """`number` rounded up to one of at most `steps` values between powers of two, each a multiple of `least`.

    `least` and `steps` are powers of two.
    """
    step = max(least, (1 << (number - 1).bit_length()) // (2 * steps))
    return -(-number // step) * step


def stretches(sizes: Sequence[int], most: int) -> list[slice]:
    """`sizes` cut into stretches whose sums are at most `most`; a larger one is alone."""
    edges, total = [0], 0
    for place, size in enumerate(sizes):
        total += size
        if total > most and place > edges[-1]:
            edges.append(place)
            total = size
    return [slice(start, end) for start, end in pairwise([*edges, len(sizes)])]


def from_last(sizes: Sequence[int], texts: Sequence[int]) -> Tokens:
    """Which tokens of a pass are in each row the last of its text, or come after it in its tree.

    Row i has sizes[i] tokens, of which the first texts[i] are its text.
    """
    counts = np.asarray(sizes) - np.maximum(np.asarray(texts) - 1, 0)
    firsts = np.cumsum(sizes) - counts
    return np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


SHORT = 48  # rows with more new tokens than this form a group of their own on a GPU

# On a CPU arithmetic takes time, so there is little padding. On a GPU each call does, whatever its size, and so does a
# copy of keys, so what may be needed soon is read at once. Torch's kernel wants masks whose length is a multiple of 8,
# and otherwise copies them in every layer.
ON_CPU = Grouping((6, 12, 18, 24, 40))
ON_GPU = Grouping((SHORT,), round_to=64, ahead=True, tree=2048)


@dataclass(frozen=True, slots=True)
class Pass:
    """N new tokens, row after row, each row's tree after its text."""

    tokens_5N: torch.Tensor  # the five below, which are its rows
    ids_N: torch.Tensor
    rows_N: torch.Tensor
    columns_N: torch.Tensor  # of the cache, where they are written
    places_N: torch.Tensor  # in their text
    order_N: torch.Tensor  # each token's index among all that the groups hold, padding included
    groups: tuple[Group, ...]
    count: int  # how many of the N are real; the others repeat the first one to fill up the pass
    coarse: bool  # may another pass have the same shapes?

    def tensors(self) -> list[torch.Tensor]:
        """All that the pass reads."""
        return [self.tokens_5N, *(tensor for group in self.groups for tensor in group.tensors())]


def plan_pass(
    rows: Sequence[int],
    ids: Sequence[Sequence[int]],
    before: Sequence[int],
    trees: Sequence[TokenTree] | None,
    window: Window,
    dtype: torch.dtype,
    device: torch.device,
    grouping: Grouping = ON_CPU,
) -> Pass:
    """The pass that reads ids[i] after the before[i] tokens of rows[i], and trees[i] after these.

    A token of a text sees all before it, one of a tree sees the text and its ancestors. A row has at least one token.
    """
    new = _placed(rows, ids, before, trees)
    widths = grouping.widths
    kinds_B = new.sizes_B if widths is None else np.searchsorted(widths, new.sizes_B)
    groups: list[Group] = []
    indices_N, held = np.empty_like(new.places_N), 0  # among the tokens of all groups
    for kind in np.unique(kinds_B):
        tokens_Bn, real_Bn, group = _group(np.flatnonzero(kinds_B == kind), new, window, dtype, device, grouping)
        groups.append(group)
        indices_N[tokens_Bn[real_Bn]] = held + np.flatnonzero(real_Bn)
        held += real_Bn.size
    of_tokens = np.stack([new.ids_N, np.repeat(new.rows_B, new.sizes_B), new.columns_N, new.places_N, indices_N])
    count = len(new.ids_N)
    # tokens that fill up write the first token's key again: the same numbers to the same place
    more = grouping.tokens(count, int(new.sizes_B.max())) - count
    filled = np.append(np.arange(count), np.zeros(more, np.int64))
    tokens_5N = torch.from_numpy(of_tokens[:, filled]).to(device)  # one copy to a GPU, not five
    ids_N, rows_N, columns_N, places_N, order_N = tokens_5N.unbind()
    return Pass(tokens_5N, ids_N, rows_N, columns_N, places_N, order_N, tuple(groups), count, grouping.coarse)


@dataclass(frozen=True, slots=True)
class _Placed:
    """B rows and their N new tokens."""

    rows_B: Tokens  # of the cache
    starts_B: Tokens  # columns of the first new tokens
    ends_B: Tokens  # columns after their texts, where trees begin
    sizes_B: Tokens  # numbers of new tokens, trees included
    first_B: Tokens  # where a row's tokens begin among the N
    ids_N: Tokens
    columns_N: Tokens
    places_N: Tokens
    trees: Sequence[TokenTree] | None


def _placed(
    rows: Sequence[int], ids: Sequence[Sequence[int]], before: Sequence[int], trees: Sequence[TokenTree] | None
) -> _Placed:
    """Where each new token goes: in a tree, siblings have the same place in the text, and different columns."""
    rows_B, starts_B, texts_B = (np.array(numbers) for numbers in (rows, before, [len(new) for new in ids]))
    sizes_B = texts_B
    if trees is not None:
        sizes_B = texts_B + np.array([len(tree.tokens) for tree in trees])
        ids = [[*new, *tree.tokens] for new, tree in zip(ids, trees, strict=True)]
    first_B = np.cumsum(sizes_B) - sizes_B
    step_N = np.arange(sizes_B.sum()) - np.repeat(first_B, sizes_B)
    columns_N = np.repeat(starts_B, sizes_B) + step_N
    places_N, ends_B = columns_N, starts_B + texts_B
    if trees is not None:
        places_N = columns_N.copy()
        inside_N = step_N >= np.repeat(texts_B, sizes_B)
        depths = np.concatenate([np.array(tree.depths, dtype=np.int64) for tree in trees])
        places_N[inside_N] = np.repeat(ends_B, sizes_B - texts_B) + depths
    ids_N = np.array([token for new in ids for token in new])
    return _Placed(rows_B, starts_B, ends_B, sizes_B, first_B, ids_N, columns_N, places_N, trees)


def _group(
    part_B: Tokens, new: _Placed, window: Window, dtype: torch.dtype, device: torch.device, grouping: Grouping
) -> tuple[Tokens, NDArray[np.bool_], Group]:
    """(tokens (B, n) that a group of the rows `part_B` holds, which of them are no padding, the group).

    B is more than the rows of `part_B` where the group is filled up.
    """
    # what each row of the group holds; -1 only fills up: the first token of the pass, with any keys
    given_B, rows_B = part_B, new.rows_B[part_B]
    every = grouping.filled_up(len(part_B), int(new.sizes_B[part_B].max()))
    if every is not None:
        given_B = np.full(every, -1)
        given_B[rows_B] = part_B
    else:
        more = grouping.rows(len(part_B)) - len(part_B)
        given_B, rows_B = np.append(part_B, np.full(more, -1)), np.append(rows_B, np.repeat(rows_B[:1], more))
    fills_B = given_B < 0
    sizes_B = np.where(fills_B, 0, new.sizes_B[given_B])
    starts_B = np.where(fills_B, 1, new.starts_B[given_B])
    widest = grouping.width(int(sizes_B.max()))
    step_Bn = np.minimum(np.arange(widest), np.maximum(sizes_B - 1, 0)[:, None])
    tokens_Bn = np.where(fills_B, 0, new.first_B[given_B])[:, None] + step_Bn
    real_Bn = np.arange(widest) < sizes_B[:, None]
    length = grouping.keys(int((new.starts_B + new.sizes_B)[part_B].max()))
    if new.trees is None:
        seen_BnL, key_places = _seen(starts_B[:, None] + step_Bn, length, device)
    else:
        ends_B = np.where(fills_B, 1, new.ends_B[given_B])
        some = [None if i < 0 else new.trees[i] for i in given_B.tolist()]
        seen_BnL, key_places = _seen_of_trees(starts_B, ends_B, step_Bn, length, some, device)
    places_Bn1 = torch.from_numpy(new.places_N[tokens_Bn][..., None]).to(device)
    group = Group(
        None if every is not None else torch.from_numpy(rows_B).to(device),
        torch.from_numpy(tokens_Bn).to(device),
        torch.from_numpy(np.flatnonzero(real_Bn)),
        layer_masks(window, seen_BnL, places_Bn1, key_places, dtype),
        length,
    )
    return tokens_Bn, real_Bn, group


def _seen(last_Bn: Tokens, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(what each token may see (B, n, length), the places of the keys (1, 1, length)), up to the columns `last_Bn`."""
    keys_L = torch.arange(length, device=device)
    return keys_L <= torch.from_numpy(last_Bn).to(device)[..., None], keys_L[None, None]


def _seen_of_trees(
    starts_B: Tokens,
    ends_B: Tokens,
    step_Bn: Tokens,
    length: int,
    trees: Sequence[TokenTree | None],
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with trees that begin at the columns `ends_B`; here the places are (B, 1, length)."""
    # first as if tokens of a tree saw only the text; the few other pairs travel to a GPU faster than a mask
    seen_BnL, key_places = _seen(np.minimum(starts_B[:, None] + step_Bn, ends_B[:, None] - 1), length, device)
    n, no = step_Bn.shape[1], TokenTree((), (), ())
    some = [tree or no for tree in trees]
    sights = [tree.sights() for tree in some]
    rows_P = np.repeat(np.arange(len(some)), [len(seeing) for seeing, _ in sights])
    seeing_P, seen_P = (np.concatenate([pair[side] for pair in sights]) for side in (0, 1))
    if not len(rows_P):
        return seen_BnL, key_places
    queries_P = rows_P * n + (ends_B - starts_B)[rows_P] + seeing_P
    flat_P = queries_P * length + ends_B[rows_P] + seen_P
    seen_BnL.view(-1).index_fill_(0, torch.from_numpy(flat_P).to(device), True)
    rows_T = np.repeat(np.arange(len(some)), [len(tree.tokens) for tree in some])
    places_T = ends_B[rows_T] + np.concatenate([np.array(tree.depths, dtype=np.int64) for tree in some])
    columns_T = ends_B[rows_T] + np.concatenate([np.arange(len(tree.tokens)) for tree in some])
    places_BL = key_places[0].repeat(len(some), 1)
    given_2T = torch.from_numpy(np.stack([rows_T * length + columns_T, places_T])).to(device)
    places_BL.view(-1).index_copy_(0, given_2T[0], given_2T[1])
    return seen_BnL, places_BL[:, None]
