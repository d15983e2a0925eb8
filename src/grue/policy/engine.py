"""The ragged KV cache: many sequences of different lengths grow together, and only new tokens are ever fed.

One buffer a layer holds keys and values for all slots. A forward pass takes some rows with the new ids of each,
right-padded to the longest; keys are written at each row's own length, and the mask lets a token see the tokens of its
own row up to itself. What padding writes lies beyond the row's length and is overwritten later, or, where the row ends,
in one column more that is never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from grue.errors import ModelError
from grue.policy.attention import PACKED

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
        columns = min(self._columns + 1, max(FIRST_COLUMNS, self._plan.reach, 2 * buffer.shape[2]))
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
        self.model, self.slots, self.columns = model, slots, columns
        self.decoder = model.get_decoder()
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        self.lengths = [0] * slots
        self._window, self._mixed = _sliding_window(self.decoder.config)
        self._plan = _Plan()
        layers = [_RaggedLayer(slots, columns, self._plan) for _ in range(model.config.num_hidden_layers)]
        self._cache = Cache(layers=layers)  # type: ignore[arg-type]

    def reset(self, row: int) -> None:
        """Forget the sequence in `row`."""
        self.lengths[row] = 0

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append ids[i] (at least one) to sequence rows[i]; returns (len(rows), hidden), the last token's state."""
        longest = max(self.lengths[row] + len(new) for row, new in zip(rows, ids, strict=True))
        if longest > self.columns:
            raise ModelError(
                f"a sequence of {longest} tokens does not fit the cache of {self.columns}",
                hint="raise model.context, or shorten the game's limit",
            )
        width = max(map(len, ids))
        before = [self.lengths[row] for row in rows]
        padded = torch.tensor([[*new, *[0] * (width - len(new))] for new in ids], device=self.device)
        start = torch.tensor(before, device=self.device)
        columns = start[:, None] + torch.arange(width, device=self.device)
        plan = self._plan
        everything = len(rows) == self.slots and list(rows) == list(range(self.slots))
        index = torch.tensor(rows, device=self.device)
        plan.rows = None if everything else index
        plan.write_rows = index.repeat_interleave(width)
        plan.write_columns = columns.reshape(-1).clamp(max=self.columns)
        plan.length, plan.reach = longest, min(self.columns, max(before) + width - 1) + 1
        with self._packed_attention():
            hidden: torch.Tensor = self.decoder(
                input_ids=padded,
                attention_mask=self._mask(columns),
                position_ids=columns.clamp(max=self.columns - 1),  # a model may know no positions beyond
                past_key_values=self._cache,
                use_cache=True,
            ).last_hidden_state
        for row, old, new in zip(rows, before, ids, strict=True):
            self.lengths[row] = old + len(new)
        last = torch.tensor([len(new) - 1 for new in ids], device=self.device)
        return hidden[torch.arange(len(rows), device=self.device), last]

    def _mask(self, columns: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Additive mask for new tokens at `columns` (rows, n); one for each kind where layers are of two kinds."""
        place = torch.arange(self._plan.length, device=self.device)
        own = columns.clamp(max=self._plan.length - 1)[..., None]  # padding too must see something, or it gives NaN

        def additive(seen: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
            return mask.masked_fill_(~seen, float("-inf"))[:, None]

        if self._window is None:
            return additive(place <= own)
        sliding = additive((place <= own) & (place > own - self._window))
        return {"full_attention": additive(place <= own), "sliding_attention": sliding} if self._mixed else sliding

    @contextmanager
    def _packed_attention(self) -> Iterator[None]:
        """Our call of SDPA in place of the stock one, for this pass only: the same model may be in training."""
        config = self.decoder.config
        stock = config._attn_implementation
        if stock == "sdpa":
            config._attn_implementation = PACKED
        try:
            yield
        finally:
            config._attn_implementation = stock


def _sliding_window(config: Any) -> tuple[int | None, bool]:
    """(columns that a sliding layer sees, None without such layers; whether other layers see all)."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{config.model_type} has layers of the kind {sorted(unknown)[0]!r}, whose state cannot be kept ragged",
            hint="choose a model whose layers all attend to earlier tokens",
        )
    window = getattr(config, "sliding_window", None)
    slides = not kinds or "sliding_attention" in kinds
    return (int(window) if window is not None and slides else None), "full_attention" in kinds
