"""What layers remember of many sequences of different lengths: keys and values by place, or a state.

An attention layer keeps keys and values of every token, `RaggedLayer`. A recurrent one (linear attention, Mamba,
short convolutions) keeps a state of fixed size for each sequence, `StateLayer`, which advances with every token and
cannot go back. Some layers do both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from grue.models.architecture import is_recurrent

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FIRST_COLUMNS = 512  # columns of a new buffer; it doubles when a sequence outgrows it


class CachePlan:
    """Where the current forward pass reads and writes; shared by all layers."""

    rows: torch.Tensor | None = None  # whose keys are handed out; None: those of all slots
    real: torch.Tensor | None = None  # which of the tokens of the pass are not padding; None: all
    sizes: torch.Tensor | None = None  # (B,), how many tokens of each row come before its padding
    write_rows: torch.Tensor  # (N,)
    write_columns: torch.Tensor  # (N,)
    length: int = 0  # columns to read
    reach: int = 0  # columns that the buffers must have


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, (slots, heads, columns, head_dim), allocated at first use."""

    is_sliding = False

    def __init__(self, slots: int, columns: int, plan: CachePlan) -> None:
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
        # row indexing: one (heads, dim) block per token; scatter_ with an expanded index is several times slower
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            flat = states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])
            buffer[plan.write_rows, :, plan.write_columns] = flat if plan.real is None else flat[plan.real]
        keys, values = self.keys[:, :, : plan.length], self.values[:, :, : plan.length]
        if plan.rows is None:
            return keys, values
        # index_select copies whole rows; keys[plan.rows] is several times slower
        return keys.index_select(0, plan.rows), values.index_select(0, plan.rows)

    def clear(self, row: int) -> None:
        """Zero all columns of a row."""
        for buffer in (self.keys, self.values):
            assert buffer is not None
            buffer[row] = 0

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

    Torch would write the zeros itself, even where no game ever gets: with a large model a third of a round's time.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(math.prod(shape) * like.element_size(), np.uint8)).view(like.dtype).view(shape)


class StateLayer(LinearAttentionLayer):
    """States of one recurrent layer, (slots, ...): a pass takes those of its rows before it and stores them after it.

    A sequence without tokens has a state of zeros, as if it had read nothing.
    """

    def __init__(self, slots: int, plan: CachePlan, number_of_states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        self._slots, self._plan = slots, plan
        self._kept: dict[tuple[str, int], torch.Tensor] = {}  # (kind, number of the state) -> states of all slots

    def take(self, rows_B: torch.Tensor) -> None:
        """Hand the states of some rows to the next pass. Before the first pass there are none."""
        for (kind, number), states in self._kept.items():
            self._handed(kind)[number] = states.index_select(0, rows_B)

    def keep(self, rows_B: torch.Tensor) -> None:
        """Store the states of the pass's rows as it left them."""
        for kind in ("conv", "recurrent"):
            for number, states in self._handed(kind).items():
                if states is not None:
                    if (kind, number) not in self._kept:
                        self._kept[kind, number] = states.new_zeros(self._slots, *states.shape[1:])
                    self._kept[kind, number][rows_B] = states

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, *args: Any, **kwargs: Any) -> Any:
        read_BCL = super().update_conv_state(conv_states, state_idx, *args, **kwargs)
        if self._plan.sizes is not None:
            kept = self.conv_states[state_idx]
            assert kept is not None
            # the last inputs before the padding; in a row with fewer inputs so far, zeros come before them
            width, before = kept.shape[-1], read_BCL.shape[-1] - conv_states.shape[-1]
            padded_BCL = torch.nn.functional.pad(read_BCL, (width, 0))
            last_BK = self._plan.sizes[:, None] + before + torch.arange(width, device=kept.device)
            kept.copy_(padded_BCL.gather(2, last_BK[:, None].expand(-1, kept.shape[1], -1)))
        return read_BCL

    def forget(self, row: int) -> None:
        """Begin a new sequence in `row`."""
        for states in self._kept.values():
            states[row] = 0

    def _handed(self, kind: str) -> dict[int, torch.Tensor | None]:
        return self.conv_states if kind == "conv" else self.recurrent_states


class RaggedStateLayer(StateLayer, RaggedLayer):  # type: ignore[override]  # like transformers' own
    """Attention and a recurrence in one layer."""

    def __init__(self, slots: int, columns: int, plan: CachePlan, number_of_states: int) -> None:
        RaggedLayer.__init__(self, slots, columns, plan)
        StateLayer.__init__(self, slots, plan, number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # keys and values are passed by position, states by name
        (RaggedLayer if args else LinearAttentionLayer).lazy_initialization(self, *args, **kwargs)


def ragged_cache(config: PreTrainedConfig, slots: int, columns: int, plan: CachePlan) -> Cache:
    """An empty cache for `slots` sequences of at most `columns` tokens, with what each layer of a decoder needs."""
    if not is_recurrent(config):
        count = int(config.num_hidden_layers)
        return Cache(layers=[RaggedLayer(slots, columns, plan) for _ in range(count)])

    def layer(stock: Any) -> Any:
        if not isinstance(stock, LinearAttentionCacheLayerMixin):
            return RaggedLayer(slots, columns, plan) if isinstance(stock, CacheLayerMixin) else stock
        if isinstance(stock, CacheLayerMixin):
            return RaggedStateLayer(slots, columns, plan, stock.number_of_states)
        return StateLayer(slots, plan, stock.number_of_states)

    return Cache(layers=[layer(stock) for stock in DynamicCache(config=config).layers])
