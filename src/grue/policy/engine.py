"""The ragged KV cache: many sequences of different lengths grow together, and only new tokens are ever fed.

One buffer a layer holds keys and values for all slots. A forward pass takes some rows with the new ids of each,
right-padded to the longest; keys are written at each row's own length, and the mask lets a token see the tokens of its
own row up to itself. What padding writes lies beyond the row's length and is overwritten later, or, where the row ends,
in one column more that is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from grue.errors import ModelError
from grue.models.architecture import check_architecture, layer_masks, sliding_window
from grue.models.attention import own_attention
from grue.policy.tree import CandidateTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FIRST_COLUMNS = 256  # columns of a new buffer; it doubles when a sequence outgrows it


class _Plan:
    """Where the current forward pass reads and writes; shared by all layers."""

    rows: torch.Tensor | None = None  # None: all rows, so reads are views
    write_rows: torch.Tensor  # (B*n,)
    write_columns: torch.Tensor  # (B*n,)
    length: int = 0  # columns to read
    reach: int = 0  # columns that the buffer must have to be written


class _RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, (slots, heads, columns, head_dim), made at the first use."""

    is_sliding = False

    def __init__(self, slots: int, columns: int, plan: _Plan) -> None:
        super().__init__()
        self._slots, self._columns, self._plan = slots, columns, plan

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros(self._slots, key_states.shape[1], 0, key_states.shape[-1])
        self.values = value_states.new_zeros(self._slots, value_states.shape[1], 0, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        plan = self._plan
        if plan.reach > self.keys.shape[2]:
            self.keys, self.values = self._grown(self.keys), self._grown(self.values)
        # row indexing: one (heads, dim) block a token; scatter_ with an expanded index is several times slower
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            flat = states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])
            buffer[plan.write_rows, :, plan.write_columns] = flat
        keys, values = self.keys[:, :, : plan.length], self.values[:, :, : plan.length]
        if plan.rows is None:
            return keys, values
        # index_select copies whole rows; keys[plan.rows] is several times slower
        return keys.index_select(0, plan.rows), values.index_select(0, plan.rows)

    def _grown(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer with the columns that the plan needs. New ones are 0: what is masked must still be finite."""
        wanted = min(self._columns + 1, max(FIRST_COLUMNS, self._plan.reach, 2 * buffer.shape[2]))
        columns = max(wanted, self._plan.reach)  # a look ahead may reach beyond the longest sequence
        grown = buffer.new_zeros(*buffer.shape[:2], columns, buffer.shape[3])
        grown[:, :, : buffer.shape[2]] = buffer
        return grown

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._plan.length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._columns


class Engine:
    """Feeds new tokens of many sequences to a Hugging Face decoder and returns the last hidden state of each.

    `slots` sequences of at most `columns` tokens. The model is used as it is: dtype, device, adapter.
    """

    def __init__(self, model: PreTrainedModel, slots: int, columns: int) -> None:
        check_architecture(model)
        known = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if known is not None and columns > known:
            raise ModelError(
                f"{model.config.model_type} knows {known} positions, fewer than a context of {columns}",
                hint=f"set model.context={known} or less",
            )
        self.model, self.slots, self.columns = model, slots, columns
        self.decoder = model.get_decoder()
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        self.lengths = [0] * slots
        self._window = sliding_window(self.decoder.config)
        self._plan = _Plan()
        layers = [_RaggedLayer(slots, columns, self._plan) for _ in range(model.config.num_hidden_layers)]
        self._cache = Cache(layers=layers)  # type: ignore[arg-type]

    def reset(self, row: int, length: int = 0) -> None:
        """Forget the sequence in `row`, but for its first `length` tokens."""
        self.lengths[row] = min(length, self.lengths[row])

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append ids[i] (at least one) to sequence rows[i]; returns (len(rows), hidden), the last token's state."""
        longest = max(self.lengths[row] + len(new) for row, new in zip(rows, ids, strict=True))
        self._check_fits(longest)
        before = [self.lengths[row] for row in rows]
        columns = self._plan_pass(rows, max(map(len, ids)), before, longest)
        place = torch.arange(longest, device=self.device)
        own = columns.clamp(max=longest - 1)[..., None]  # padding too must see something, or it gives NaN
        hidden = self._forward(ids, columns, layer_masks(self._window, place <= own, own, place, self.dtype))
        for row, old, new in zip(rows, before, ids, strict=True):
            self.lengths[row] = old + len(new)
        last = torch.tensor([len(new) - 1 for new in ids], device=self.device)
        return hidden[torch.arange(len(rows), device=self.device), last]

    @torch.inference_mode()
    def look_ahead(self, rows: Sequence[int], trees: Sequence[CandidateTree]) -> torch.Tensor:
        """The states (len(rows), n, hidden) of the tokens of trees[i] behind sequence rows[i], all in one pass.

        Every token sees its sequence and the tokens above it in its tree, so many continuations share one cache
        without a copy of it. The sequences stay as they are: what is written beyond their ends is overwritten later.
        """
        before = [self.lengths[row] for row in rows]
        self._check_fits(max(n + max(tree.depths) + 1 for n, tree in zip(before, trees, strict=True)))
        width = max(len(tree.tokens) for tree in trees)
        columns = self._plan_pass(rows, width, before, max(before) + width)
        seen_BnL = np.zeros((len(rows), width, max(before) + width), dtype=np.bool_)
        depths_Bn = np.zeros((len(rows), width), dtype=np.int64)
        for i, (length, tree) in enumerate(zip(before, trees, strict=True)):
            seen_BnL[i, :, :length] = True
            seen_BnL[i, range(width), range(length, length + width)] = True  # padding sees itself
            seen_BnL[i, : len(tree.tokens), length : length + len(tree.tokens)] = tree.seen()
            depths_Bn[i, : len(tree.tokens)] = tree.depths
        depths, seen = torch.from_numpy(depths_Bn).to(self.device), torch.from_numpy(seen_BnL).to(self.device)
        start = torch.tensor(before, device=self.device)[:, None]
        key_places = torch.arange(seen.shape[-1], device=self.device).expand(len(rows), -1)
        key_places = key_places.scatter(1, columns, start + depths)[:, None]
        masks = layer_masks(self._window, seen, (start + depths)[..., None], key_places, self.dtype)
        return self._forward([tree.tokens for tree in trees], start + depths, masks)

    def _check_fits(self, longest: int) -> None:
        if longest > self.columns:
            raise ModelError(
                f"a sequence of {longest} tokens does not fit the cache of {self.columns}",
                hint="raise model.context, or shorten the game's limit",
            )

    def _plan_pass(self, rows: Sequence[int], width: int, before: Sequence[int], longest: int) -> torch.Tensor:
        """Plan to write `width` tokens behind each of `rows` and to read `longest` columns; returns the columns."""
        start = torch.tensor(before, device=self.device)
        columns = start[:, None] + torch.arange(width, device=self.device)
        plan = self._plan
        everything = len(rows) == self.slots and list(rows) == list(range(self.slots))
        index = torch.tensor(rows, device=self.device)
        plan.rows = None if everything else index
        plan.write_rows = index.repeat_interleave(width)
        last = max(self.columns, longest - 1)
        plan.write_columns = columns.reshape(-1).clamp(max=last)
        plan.length, plan.reach = longest, min(last, max(before) + width - 1) + 1
        return columns

    def _forward(
        self, ids: Sequence[Sequence[int]], places: torch.Tensor, masks: torch.Tensor | dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Hidden states (rows, n, hidden) of `ids`, right-padded, at positions `places`."""
        padded = [[*new, *[0] * (places.shape[1] - len(new))] for new in ids]
        with own_attention(self.decoder):
            hidden: torch.Tensor = self.decoder(
                input_ids=torch.tensor(padded, device=self.device),
                attention_mask=masks,
                position_ids=places.clamp(max=self.columns - 1),  # a model may know no positions beyond
                past_key_values=self._cache,
                use_cache=True,
            ).last_hidden_state
        return hidden
