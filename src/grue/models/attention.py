"""Attention where torch's own kernel is slow: grouped query heads over a long cache, and training on a CPU.

`own_attention` puts it in place of "sdpa" for one forward pass; whatever it does not handle goes to "sdpa".
`packed_attention` does so for a pass in which the tokens of many sequences are concatenated as one text;
`rows_attention` for such a pass in training, where sequences are whole and there is no cache (`causal.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grue.models.architecture import is_recurrent, sliding_window
from grue.models.causal import CausalRows, RowGroup, row_groups

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "grue"  # of `attention` among transformers' attention functions
LONGEST = 768  # tokens; beyond, torch's kernel is as fast
PART_BYTES = 2**20  # of copied keys and values at a time: half of a core's second cache


@dataclass(frozen=True, slots=True)
class Group:
    """B sequences of at most n tokens of a pass, of which R are not padding; `length` keys of each are read."""

    rows_B: torch.Tensor | None  # of the cache; None: all, in its order
    tokens_Bn: torch.Tensor  # index in the pass of each token; padding repeats any of them
    real_R: torch.Tensor  # which of the B*n are not padding; on the CPU, as few passes need it
    masks: torch.Tensor | dict[str, torch.Tensor]  # (B, 1, n, length), added to scores; one for each kind of layer
    length: int

    def tensors(self) -> list[torch.Tensor]:
        """All that attention reads."""
        masks = self.masks.values() if isinstance(self.masks, dict) else [self.masks]
        return [*([] if self.rows_B is None else [self.rows_B]), self.tokens_Bn, *masks]


@dataclass(frozen=True, slots=True)
class Packed:
    """The groups of a pass of N tokens. Token i is the order_N[i]-th of all that they hold, padding included."""

    groups: Sequence[Group]
    order_N: torch.Tensor


_PACKED: ContextVar[Packed | None] = ContextVar("the packed pass", default=None)
_ROWS: ContextVar[Sequence[RowGroup]] = ContextVar("rows of the pass in training", default=())


def takes_own_attention(model: PreTrainedModel) -> bool:
    """Does a model ask for its attention by name? Others, such as Falcon, treat any name but "sdpa" as "eager"."""
    return model.config._attn_implementation in ("sdpa", NAME) and bool(model._supports_attention_backend)


def attend_without_plans() -> None:
    """Have torch use its own kernels on a GPU, not cuDNN's, which are planned again for every shape, some 0.1 s each.

    Hardly any shape repeats, since passes vary with what a batch holds.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def own_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside, a model that was loaded with "sdpa" calls `attention`; the model's own setting is left as it was.

    A layer that recomputes its activations calls what is set at that time: run the backward pass inside, too.
    """
    config = model.config
    stock = config._attn_implementation
    if takes_own_attention(model):
        config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = stock


@contextmanager
def packed_attention(
    model: PreTrainedModel, groups: Sequence[Group], order_N: torch.Tensor
) -> Iterator[torch.Tensor | dict[str, torch.Tensor]]:
    """Inside, `model` reads a pass (1, N) of the tokens of `groups`, in the order of `Packed`; yields the masks for it.

    A mask reaches a layer through the model, which knows the layer's kind, so the masks of all groups are joined.
    """
    longest = max(group.length for group in groups)

    def joined(masks: Sequence[torch.Tensor]) -> torch.Tensor:
        if len(masks) == 1:
            return masks[0].flatten(0, 2)[None, None]
        flat = [mask.flatten(0, 2) for mask in masks]
        return torch.cat([torch.nn.functional.pad(mask, (0, longest - mask.shape[1])) for mask in flat])[None, None]

    token = _PACKED.set(Packed(groups, order_N))
    try:
        with own_attention(model):
            first = groups[0].masks
            if isinstance(first, dict):
                yield {kind: joined([group.masks[kind] for group in groups]) for kind in first}  # type: ignore[index]
            else:
                yield joined([group.masks for group in groups])  # type: ignore[misc]
    finally:
        _PACKED.reset(token)


def takes_rows(model: PreTrainedModel, ids_BL: torch.Tensor) -> bool:
    """Can `model` read these rows without their padding, and is that faster?

    Not if layers use a sliding window (no such masks here) or keep a state (which would run on into the next row), nor
    if activations are recomputed, which happens after the pass.
    """
    config = model.config
    return (
        ids_BL.device.type == "cpu"
        and takes_own_attention(model)
        and 1 < ids_BL.shape[1] <= LONGEST
        and sliding_window(config).size is None
        and not is_recurrent(config)
        and not (model.training and _drops_attention(config))
        and not getattr(config, "attn_logit_softcapping", None)
        and not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    )


def _drops_attention(config: object) -> bool:
    """Does the configuration use attention dropout? It may be called attn_pdrop, attention_probs_dropout_prob, ..."""
    return any(bool(value) for name, value in vars(config).items() if "att" in name and "drop" in name)


@contextmanager
def rows_attention(model: PreTrainedModel, rows: Sequence[RowGroup]) -> Iterator[torch.Tensor]:
    """Inside, `model` reads a pass (1, N) of rows that do not see each other; yields the mask to give it.

    The mask is a dummy; it keeps the model from making one of size N times N.
    """
    token = _ROWS.set(rows)
    try:
        with own_attention(model):
            yield torch.ones(1, 1, 1, 1, dtype=torch.bool)
    finally:
        _ROWS.reset(token)


def attention(
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
    if rows := _ROWS.get():
        assert not options.get("dropout")  # see `takes_rows`
        return _rows(query, key, value, rows, options.get("scaling")), None
    if packed := _PACKED.get():
        assert attention_mask is not None
        return _of_groups(packed, query, key, value, attention_mask, options.get("scaling")), None
    plain = options.get("position_bias") is None and options.get("softcap") is None and not options.get("dropout")
    shared = query.shape[1] // key.shape[1]
    if plain and attention_mask is not None and attention_mask.shape[1] == 1 and shared > 1:
        return _grouped_heads(query, key, value, attention_mask, options.get("scaling")), None
    causal = attention_mask is None and getattr(module, "is_causal", True) and query.shape[2] == key.shape[2]
    short = 1 < query.shape[2] <= LONGEST
    if plain and causal and short and query.device.type == "cpu" and _dtype_of(query) is torch.bfloat16:
        batch, _, length, _ = query.shape
        return _rows(query, key, value, row_groups([length] * batch), options.get("scaling")), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def _rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Sequence[RowGroup], scale: float | None
) -> torch.Tensor:
    """(batch, n, heads, dim) of whole rows: `rows` index the tokens of the batch, one row after another."""
    batch, heads, n, dim = query.shape
    dtype = _dtype_of(query)
    flat = (states.to(dtype).transpose(1, 2).reshape(batch * n, -1, states.shape[-1]) for states in (query, key, value))
    out_NHD: torch.Tensor = CausalRows.apply(*flat, scale or dim**-0.5, rows)
    return out_NHD.view(batch, n, heads, -1)


def _dtype_of(query: torch.Tensor) -> torch.dtype:
    """What the product will be computed in: autocast casts inside SDPA, after rotary embeddings in float32."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype


def _of_groups(
    packed: Packed,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """(1, N, heads, dim) for query (1, heads, N, dim), key and value (all rows, key heads, length, dim)."""
    query_NHD = query[0].transpose(0, 1)
    found, start = [], 0
    for group in packed.groups:
        rows, n = group.tokens_Bn.shape
        end = start + rows * n
        states_BnHD = _of_rows(
            group.rows_B,
            query_NHD[group.tokens_Bn].transpose(1, 2),
            key[:, :, : group.length],
            value[:, :, : group.length],
            mask[0, 0, start:end, : group.length].unflatten(0, (rows, n))[:, None],
            scale,
        )
        found.append(states_BnHD.flatten(0, 1))
        start = end
    return (found[0] if len(found) == 1 else torch.cat(found)).index_select(0, packed.order_N)[None]


def _of_rows(
    rows_B: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """(B, n, heads, dim) for query (B, heads, n, dim) and mask (B, 1, n, length); key and value are of all rows.

    On a CPU, a few rows at a time: their copied keys and values are then still in the CPU's cache for attention.
    """
    if rows_B is None:
        return _grouped_heads(query, key, value, mask, scale)
    count, on_cpu = len(rows_B), key.device.type == "cpu"
    size = (key[0].numel() + value[0].numel()) * key.element_size()
    part = min(count, max(1, PART_BYTES // size)) if on_cpu else count
    if part == 1 and on_cpu:  # nothing to gather: a row is read in place; on a GPU, reading its number would wait
        return torch.cat(
            [
                _grouped_heads(query[i : i + 1], key[row : row + 1], value[row : row + 1], mask[i : i + 1], scale)
                for i, row in enumerate(rows_B.tolist())
            ]
        )
    keys, values = (states.new_empty(part, *states.shape[1:]) for states in (key, value))
    found = []
    for start in range(0, count, part):
        rows = rows_B[start : start + part]
        # index_select copies whole rows; key[rows] is several times slower
        torch.index_select(key, 0, rows, out=keys[: len(rows)])
        torch.index_select(value, 0, rows, out=values[: len(rows)])
        asked, seen = query[start : start + part], mask[start : start + part]
        found.append(_grouped_heads(asked, keys[: len(rows)], values[: len(rows)], seen, scale))
    return found[0] if len(found) == 1 else torch.cat(found)


def _grouped_heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Grouped query heads without copies of keys and values.

    With a mask, transformers repeats keys and values for every query head before it calls SDPA, which with a long
    cache takes longer than attention itself. Instead, queries that share a key head are concatenated, as
    if they were more positions.
    """
    batch, heads, n, dim = query.shape
    groups = heads // key.shape[1]
    packed = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, key.shape[1], groups * n, dim),
        key,
        value,
        attn_mask=mask[:, :, None].expand(-1, -1, groups, -1, -1).flatten(2, 3),
        scale=scale,
    )
    return packed.reshape(batch, heads, n, value.shape[-1]).transpose(1, 2).contiguous()


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
