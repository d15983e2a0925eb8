"""What a forward pass over a ragged batch reads: rows with similar numbers of new tokens stand in groups.

Within a group rows are padded to the longest by their last token once more, which is computed and thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from grue.models.architecture import Window, layer_masks
from grue.models.attention import Group
from grue.policy.tree import CandidateTree

WIDTHS = (6, 12, 18, 24, 40)  # rows with more new tokens are in a group of their own


@dataclass(frozen=True, slots=True)
class Pass:
    """N new tokens: those of one row after those of another."""

    ids_N: torch.Tensor
    rows_N: torch.Tensor
    columns_N: torch.Tensor  # of the cache, where they are written
    places_N: torch.Tensor  # in their text
    groups: tuple[Group, ...]


def plan_pass(
    rows: Sequence[int],
    ids: Sequence[Sequence[int]],
    before: Sequence[int],
    trees: Sequence[CandidateTree] | None,
    window: Window,
    dtype: torch.dtype,
    device: torch.device,
    *,
    exact: bool = False,
) -> Pass:
    """The pass that reads ids[i] (at least one) behind the before[i] tokens of rows[i].

    With `trees`, ids[i] are the tokens of trees[i] and each sees what stands above it; else each sees all before it.
    `exact` groups have no padding: their rows have equally many new tokens.
    """
    sizes = np.array([len(new) for new in ids])
    starts = np.array(before)
    first = np.cumsum(sizes) - sizes
    offsets_N = np.arange(sizes.sum()) - np.repeat(first, sizes)
    columns_N = np.repeat(starts, sizes) + offsets_N
    places_N = columns_N
    if trees is not None:
        places_N = np.repeat(starts, sizes) + np.concatenate([tree.depths for tree in trees])
    groups = []
    kinds = sizes if exact else np.searchsorted(WIDTHS, sizes)
    for kind in np.unique(kinds):
        part_B = np.flatnonzero(kinds == kind)
        step_Bn = np.minimum(np.arange(sizes[part_B].max()), sizes[part_B, None] - 1)  # padding is the last token again
        tokens_Bn = first[part_B, None] + step_Bn
        length = int((starts[part_B] + sizes[part_B]).max())
        some = None if trees is None else [trees[i] for i in part_B.tolist()]
        seen_BnL, key_places = _seen(starts[part_B], step_Bn, length, some)
        places_Bn1 = torch.from_numpy(places_N[tokens_Bn][..., None])
        masks = layer_masks(window, torch.from_numpy(seen_BnL), places_Bn1, torch.from_numpy(key_places), dtype)
        real_R = np.flatnonzero(np.arange(step_Bn.shape[1]) < sizes[part_B, None])
        groups.append(
            Group(
                torch.tensor([rows[i] for i in part_B.tolist()], device=device),
                torch.from_numpy(tokens_Bn).to(device),
                torch.from_numpy(real_R).to(device),
                {kind: mask.to(device) for kind, mask in masks.items()}
                if isinstance(masks, dict)
                else masks.to(device),
                length,
            )
        )
    return Pass(
        torch.tensor([token for new in ids for token in new], device=device),
        torch.from_numpy(np.repeat(np.array(rows), sizes)).to(device),
        torch.from_numpy(columns_N).to(device),
        torch.from_numpy(places_N).to(device),
        tuple(groups),
    )


def _seen(
    starts_B: NDArray[np.int64], step_Bn: NDArray[np.int64], length: int, trees: Sequence[CandidateTree] | None
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(what each token may see (B, n, length), the places of the keys (B or 1, 1, length))."""
    keys_L = np.arange(length)
    if trees is None:
        return keys_L <= (starts_B[:, None] + step_Bn)[..., None], keys_L[None, None]
    seen_BnL = np.repeat((keys_L < starts_B[:, None])[:, None], step_Bn.shape[1], axis=1)
    places_BL = np.repeat(keys_L[None], len(starts_B), axis=0)
    for row, (start, tree) in enumerate(zip(starts_B.tolist(), trees, strict=True)):
        inside = slice(start, start + len(tree.tokens))
        seen_BnL[row, :, inside] = tree.seen()[step_Bn[row]]
        places_BL[row, inside] = start + np.array(tree.depths)
    return seen_BnL, places_BL[:, None]
