"""The ragged KV cache: many sequences of different lengths grow together, and only new tokens are ever fed.

One buffer a layer holds keys and values for all slots. A forward pass takes some rows with the new ids of each; keys
are written at each row's own length, and the mask lets a token see the tokens of its own row up to itself. All new
tokens stand behind one another as if they were one text, so that weights multiply no padding; only attention takes
them row by row. An architecture whose attention cannot be replaced is fed padded rows, a group after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from grue.errors import ModelError
from grue.models.architecture import cache_argument, check_architecture, sliding_window
from grue.models.attention import Group, packed_attention, takes_own_attention
from grue.policy.passes import Pass, plan_pass
from grue.policy.tree import CandidateTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FIRST_COLUMNS = 512  # columns of a new buffer; it doubles when a sequence outgrows it


class _Plan:
    """Where the current forward pass reads and writes; shared by all layers."""

    rows: torch.Tensor | None = None  # whose keys are handed out; None: those of all slots
    real: torch.Tensor | None = None  # which of the tokens that come are no padding; None: all
    write_rows: torch.Tensor  # (N,)
    write_columns: torch.Tensor  # (N,)
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
            buffer[plan.write_rows, :, plan.write_columns] = flat if plan.real is None else flat[plan.real]
        keys, values = self.keys[:, :, : plan.length], self.values[:, :, : plan.length]
        if plan.rows is None:
            return keys, values
        # index_select copies whole rows; keys[plan.rows] is several times slower
        return keys.index_select(0, plan.rows), values.index_select(0, plan.rows)

    def _grown(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer with the columns that the plan needs. New ones are 0: what is masked must still be finite."""
        wanted = min(self._columns, max(FIRST_COLUMNS, 2 * buffer.shape[2]))
        columns = max(wanted, self._plan.reach)  # a look ahead may reach beyond the longest sequence
        grown = _zeros(buffer, (*buffer.shape[:2], columns, buffer.shape[3]))
        grown[:, :, : buffer.shape[2]] = buffer
        return grown

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._plan.length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._columns


def _zeros(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Like `like.new_zeros`. On a CPU it takes memory that the system clears when it is first written.

    Torch would write the zeros itself, also where no game ever comes to: with a large model a third of a round.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(math.prod(shape) * like.element_size(), np.uint8)).view(like.dtype).view(shape)


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
        self._packs = takes_own_attention(self.decoder)
        self._plan = _Plan()
        layers = [_RaggedLayer(slots, columns, self._plan) for _ in range(self.decoder.config.num_hidden_layers)]
        self._cache = Cache(layers=layers)  # type: ignore[arg-type]
        self._cache_argument = cache_argument(self.decoder)

    def reset(self, row: int, length: int = 0) -> None:
        """Forget the sequence in `row`, but for its first `length` tokens."""
        self.lengths[row] = min(length, self.lengths[row])

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append ids[i] (at least one) to sequence rows[i]; returns (len(rows), hidden), the last token's state."""
        lengths = [self.lengths[row] + len(new) for row, new in zip(rows, ids, strict=True)]
        self._check_fits(max(lengths))
        hidden_NH = self._read(rows, ids, None)
        for row, length in zip(rows, lengths, strict=True):
            self.lengths[row] = length
        return hidden_NH[torch.tensor([len(new) for new in ids], device=self.device).cumsum(0) - 1]

    @torch.inference_mode()
    def look_ahead(self, rows: Sequence[int], trees: Sequence[CandidateTree]) -> torch.Tensor:
        """The states (N, hidden) of the tokens of trees[i] (at least one) behind sequence rows[i], tree after tree.

        Every token sees its sequence and the tokens above it in its tree, so many continuations share one cache
        without a copy of it. The sequences stay as they are: what is written beyond their ends is overwritten later.
        """
        self._check_fits(max(self.lengths[row] + max(t.depths) + 1 for row, t in zip(rows, trees, strict=True)))
        return self._read(rows, [tree.tokens for tree in trees], trees)

    def _check_fits(self, longest: int) -> None:
        if longest > self.columns:
            raise ModelError(
                f"a sequence of {longest} tokens does not fit the cache of {self.columns}",
                hint="raise model.context, or shorten the game's limit",
            )

    def _read(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], trees: Sequence[CandidateTree] | None
    ) -> torch.Tensor:
        """Hidden states (N, hidden) of all `ids`, whose keys are written behind their rows."""
        before = [self.lengths[row] for row in rows]
        whole = plan_pass(rows, ids, before, trees, self._window, self.dtype, self.device)
        self._plan.reach = max(length + len(new) for length, new in zip(before, ids, strict=True))
        if self._packs:
            return self._packed(whole)
        hidden_NH: torch.Tensor | None = None
        for group in whole.groups:
            states_RH = self._padded(whole, group)
            if hidden_NH is None:
                hidden_NH = states_RH.new_empty(len(whole.ids_N), states_RH.shape[1])
            hidden_NH[group.tokens_Bn.flatten()[group.real_R]] = states_RH
        assert hidden_NH is not None
        return hidden_NH

    def _packed(self, whole: Pass) -> torch.Tensor:
        """All tokens as one text (1, N)."""
        plan = self._plan
        plan.rows = plan.real = None
        plan.write_rows, plan.write_columns = whole.rows_N, whole.columns_N
        plan.length = max(group.length for group in whole.groups)
        with packed_attention(self.decoder, whole.groups) as mask:
            return self._forward(whole.ids_N[None], whole.places_N[None], mask)[0]

    def _padded(self, whole: Pass, group: Group) -> torch.Tensor:
        """The states (R, hidden) of a group's tokens, its rows as a batch."""
        plan, real_N = self._plan, group.tokens_Bn.flatten()[group.real_R]
        plan.rows, plan.real = group.rows_B, group.real_R
        plan.write_rows, plan.write_columns = whole.rows_N[real_N], whole.columns_N[real_N]
        plan.length = group.length
        ids_Bn, places_Bn = whole.ids_N[group.tokens_Bn], whole.places_N[group.tokens_Bn]
        return self._forward(ids_Bn, places_Bn, group.masks).flatten(0, 1)[group.real_R]

    def _forward(
        self, ids_BL: torch.Tensor, places_BL: torch.Tensor, masks: torch.Tensor | dict[str, torch.Tensor]
    ) -> torch.Tensor:
        hidden: torch.Tensor = self.decoder(
            input_ids=ids_BL,
            attention_mask=masks,
            position_ids=places_BL,
            use_cache=True,
            **{self._cache_argument: self._cache},
        ).last_hidden_state
        return hidden
