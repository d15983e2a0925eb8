"""The ragged KV cache: many sequences of different lengths grow together, and only new tokens are ever fed.

One buffer per layer holds keys and values for all slots. A forward pass takes some rows with the new ids of each; keys
are written at each row's own length, and the mask lets a token see the tokens of its own row up to itself. All new
tokens are concatenated as if they were one text, so that weights multiply no padding; only attention takes them row by
row; on a GPU small passes are recorded (`cuda_graphs.py`). An architecture whose attention cannot be replaced is fed
padded rows, one group after another. So is one with recurrent layers, whose states must not advance on padding
(`recurrence.py`); where that cannot be prevented, rows with equally many new tokens are read at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grue.engine.cache import CachePlan, RaggedLayer, StateLayer, ragged_cache
from grue.engine.cuda_graphs import PassRecorder, cuda_graphs
from grue.engine.passes import ON_CPU, ON_GPU, Grouping, Pass, from_last, plan_pass, stretches
from grue.engine.recurrence import Recurrence
from grue.engine.tree import Piece, TokenTree, pieces
from grue.errors import ModelError
from grue.models.architecture import (
    PASS_TOKENS,
    STEPWISE,
    cache_argument,
    check_architecture,
    check_reads_trees,
    is_recurrent,
    masks_by_kind,
    sliding_window,
    takes_places,
)
from grue.models.attention import Group, own_attention, packed_attention, takes_own_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
        self._spoilt: set[int] = set()  # rows that may hold keys or values that are not finite, until they are reset
        self._window = sliding_window(self.decoder.config)
        self._recurrent = is_recurrent(self.decoder.config)
        self._recurrence = Recurrence(self.decoder)
        self._takes_places = takes_places(self.decoder)
        self._stepwise = self.decoder.config.model_type in STEPWISE
        self._packs = takes_own_attention(self.decoder) and not self._recurrent
        self._grouping = self._grouped()
        self._plan = CachePlan()
        self._cache = ragged_cache(self.decoder.config, slots, self._grouping.columns, self._plan)
        self._states = [layer for layer in self._cache.layers if isinstance(layer, StateLayer)]
        self._cache_argument = cache_argument(self.decoder)
        self.looks_ahead = self._grouping.ahead and not self._recurrent
        on_gpu = self._packs and self.device.type == "cuda"
        self.recorder = PassRecorder(self.decoder, cuda_graphs(self.decoder, self.device)) if on_gpu else None

    def _grouped(self) -> Grouping:
        on = ON_CPU if self.device.type == "cpu" else ON_GPU
        # a state would advance on padding
        widths = None if self._recurrent and not self._recurrence.pads else on.widths
        slots = self.slots if self._packs and on is ON_GPU else None
        return replace(on, widths=widths, slots=slots, columns=on.keys(self.columns))

    @torch.inference_mode()
    def reset(self, row: int, length: int = 0) -> None:
        """Forget the sequence in `row`, but for its first `length` tokens; a recurrent state can only start over."""
        if length and self._recurrent:
            raise ModelError(f"{self.decoder.config.model_type} keeps a recurrent state, which cannot go back")
        for layer in self._states:
            layer.forget(row)
        self.lengths[row] = min(length, self.lengths[row])
        if row in self._spoilt and not length:  # what comes before an overflow in the same pass has seen it, too
            self._clear(row)

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append ids[i] (at least one) to sequence rows[i]; returns (len(rows), hidden), the last token's state."""
        lengths = [self.lengths[row] + len(new) for row, new in zip(rows, ids, strict=True)]
        self._check_fits(max(lengths))
        if self._stepwise:
            return self._feed_stepwise(rows, ids)
        return self._appended(rows, ids)

    def _feed_stepwise(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """The same for states that advance one token at a time; the beginning of a text is read at once."""
        last: dict[int, torch.Tensor] = {}
        left = dict(zip(rows, ids, strict=True))
        while left:
            parts = {row: new[:1] if self.lengths[row] else new for row, new in left.items()}
            last |= zip(parts, self._appended(list(parts), list(parts.values())), strict=True)
            left = {row: new[len(parts[row]) :] for row, new in left.items() if len(new) > len(parts[row])}
        return torch.stack([last[row] for row in rows])

    @torch.inference_mode()
    def look_ahead(self, rows: Sequence[int], ids: Sequence[Sequence[int]], trees: Sequence[TokenTree]) -> torch.Tensor:
        """Feed ids[i] and, in the same pass, read trees[i] after them; either may be empty. Large trees take several.

        Returns states (N, hidden): for each row that of the last of ids[i], if there is one, then those of its tree.
        Every token of a tree sees the sequence and the tokens above it, so many continuations share one cache
        without a copy of it. They leave no trace: what is written beyond the end of a sequence is overwritten later.
        """
        check_reads_trees(self.decoder.config, "a look ahead")
        texts = [len(new) for new in ids]
        given = list(zip(rows, texts, trees, strict=True))
        self._check_fits(max(self.lengths[row] + text + max(t.depths, default=-1) + 1 for row, text, t in given))
        cut = [pieces(tree, self._grouping.tree) for tree in trees]
        if all(len(parts) == 1 for parts in cut):
            return self._appended(rows, ids, trees)
        return self._look_in_pieces(rows, ids, cut)

    def _appended(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], trees: Sequence[TokenTree] | None = None
    ) -> torch.Tensor:
        """Read and keep the ids, and read the trees after them, if there are any."""
        hidden_NH = self._read(rows, ids, trees)
        for row, new in zip(rows, ids, strict=True):
            self.lengths[row] += len(new)
        return hidden_NH

    def _look_in_pieces(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], cut: Sequence[Sequence[Piece]]
    ) -> torch.Tensor:
        """The same; the first pieces of all trees are read together, then the second ones in their places, ..."""
        texts = [min(1, len(new)) for new in ids]
        counts = np.array(
            [text + sum(len(piece.own) for piece in parts) for text, parts in zip(texts, cut, strict=True)]
        )
        starts, hidden_NH = np.cumsum(counts) - counts, None
        for number in range(max(map(len, cut))):
            left = [place for place, parts in enumerate(cut) if number < len(parts)]
            new = [() if number else ids[place] for place in left]
            parts = [cut[place][number] for place in left]
            read_RH = self._appended([rows[place] for place in left], new, [piece.tree for piece in parts])
            if hidden_NH is None:
                hidden_NH = read_RH.new_empty(int(counts.sum()), read_RH.shape[1])
            wanted, to, held = [], [], 0
            for place, piece in zip(left, parts, strict=True):
                text = 0 if number else texts[place]
                wanted += [held + np.arange(text), held + text + piece.own]
                to += [starts[place] + np.arange(text), starts[place] + texts[place] + piece.places]
                held += text + len(piece.tree.tokens)
            read_R, to_R = (torch.from_numpy(np.concatenate(some)).to(self.device) for some in (wanted, to))
            hidden_NH[to_R] = read_RH[read_R]
        assert hidden_NH is not None
        return hidden_NH

    def _check_fits(self, longest: int) -> None:
        if longest > self.columns:
            raise ModelError(
                f"a sequence of {longest} tokens does not fit the cache of {self.columns}",
                hint="raise model.context, or shorten the game's limit",
            )

    def _read(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], trees: Sequence[TokenTree] | None
    ) -> torch.Tensor:
        """States (N, hidden): of each row that of the last of ids[i], if there is one, then those of trees[i].

        All keys are written at the ends of the rows. What would be too large for one pass is read in several.
        """
        sizes = [len(new) + (0 if trees is None else len(trees[i].tokens)) for i, new in enumerate(ids)]
        read = []
        for part in stretches(sizes, PASS_TOKENS):
            hidden_NH = self._read_at_once(rows[part], ids[part], None if trees is None else trees[part])
            wanted = from_last(sizes[part], [len(new) for new in ids[part]])
            # picked now: a pass's states are large, and those of a recorded pass are overwritten by the next
            read.append(hidden_NH[torch.from_numpy(wanted).to(self.device)])
        return read[0] if len(read) == 1 else torch.cat(read)

    def _read_at_once(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], trees: Sequence[TokenTree] | None
    ) -> torch.Tensor:
        """The states of all tokens of a pass."""
        planned = self._planned(rows, ids, trees)
        hidden_NH = self._passed(planned)
        if self.dtype is torch.float16:
            spoilt_N = ~hidden_NH.isfinite().all(-1)
            self._spoilt.update(planned.rows_N[: planned.count][spoilt_N].tolist())
        return hidden_NH

    def _clear(self, row: int) -> None:
        """Zero all columns of `row`: wherever they are read a mask gives them weight 0, but 0 times NaN is NaN."""
        for layer in self._cache.layers:
            if isinstance(layer, RaggedLayer) and layer.is_initialized:
                layer.clear(row)
        self._spoilt.discard(row)

    def _passed(self, planned: Pass) -> torch.Tensor:
        """The states (N, hidden) of a planned pass."""
        if self._packs:
            return self._packed(planned) if self.recorder is None else self._replayed(self.recorder, planned)
        hidden_NH: torch.Tensor | None = None
        for group in planned.groups:
            real_R = group.real_R.to(self.device)
            states_RH = self._padded(planned, group, real_R)
            if hidden_NH is None:
                hidden_NH = states_RH.new_empty(len(planned.ids_N), states_RH.shape[1])
            hidden_NH[group.tokens_Bn.flatten()[real_R]] = states_RH
        assert hidden_NH is not None
        return hidden_NH

    def _planned(self, rows: Sequence[int], ids: Sequence[Sequence[int]], trees: Sequence[TokenTree] | None) -> Pass:
        before, grouping = [self.lengths[row] for row in rows], self._grouping
        if self.recorder is not None:
            sizes = [len(new) + (0 if trees is None else len(trees[i].tokens)) for i, new in enumerate(ids)]
            autocast = torch.is_autocast_enabled(self.device.type)  # graphs would keep its copies of weights
            grouping = replace(grouping, coarse=not autocast and self.recorder.takes(sizes))
        planned = plan_pass(rows, ids, before, trees, self._window, self.dtype, self.device, grouping)
        self._plan.reach = max(group.length for group in planned.groups)
        return planned

    def _replayed(self, recorder: PassRecorder, planned: Pass) -> torch.Tensor:
        ragged = (layer for layer in self._cache.layers if isinstance(layer, RaggedLayer))
        made = [layer.keys.shape[2] for layer in ragged if layer.keys is not None]
        if self._plan.reach > min(made, default=0):  # the cache will move
            recorder.clear()
        elif planned.coarse:
            return recorder(planned, self._packed)[: planned.count]
        return self._packed(planned)[: planned.count]

    def _packed(self, planned: Pass) -> torch.Tensor:
        """All tokens as one text (1, N)."""
        plan = self._plan
        plan.rows = plan.real = None
        plan.write_rows, plan.write_columns = planned.rows_N, planned.columns_N
        plan.length = max(group.length for group in planned.groups)
        with packed_attention(self.decoder, planned.groups, planned.order_N) as mask:
            return self._forward(planned.ids_N[None], planned.places_N[None], mask)[0]

    def _padded(self, planned: Pass, group: Group, real_R: torch.Tensor) -> torch.Tensor:
        """The states (R, hidden) of a group's tokens, its rows as a batch."""
        assert group.rows_B is not None
        plan, real_N = self._plan, group.tokens_Bn.flatten()[real_R]
        plan.rows, plan.real = group.rows_B, real_R
        plan.write_rows, plan.write_columns = planned.rows_N[real_N], planned.columns_N[real_N]
        plan.length = group.length
        ids_Bn, places_Bn = planned.ids_N[group.tokens_Bn], planned.places_N[group.tokens_Bn]
        real_Bn = self._real(group, real_R)
        plan.sizes = None if real_Bn is None else real_Bn.sum(1)
        for layer in self._states:
            layer.take(group.rows_B)
        on_cpu = self.device.type == "cpu"
        with own_attention(self.decoder), self._recurrence.reading(ids_Bn.shape[1], real_Bn, on_cpu=on_cpu) as given:
            hidden_BnH = self._forward(ids_Bn, places_Bn, group.masks, **given)
        for layer in self._states:
            layer.keep(group.rows_B)
        return hidden_BnH.flatten(0, 1)[real_R]

    def _real(self, group: Group, real_R: torch.Tensor) -> torch.Tensor | None:
        """Which tokens (B, n) of a group are not padding, if states need to know; None: all."""
        if not self._recurrent or len(real_R) == group.tokens_Bn.numel():
            return None
        real = torch.zeros(group.tokens_Bn.numel(), dtype=torch.bool, device=self.device)
        return real.index_fill_(0, real_R, True).view_as(group.tokens_Bn)

    def _forward(
        self, ids_BL: torch.Tensor, places_BL: torch.Tensor, masks: torch.Tensor | dict[str, torch.Tensor], **given: Any
    ) -> torch.Tensor:
        seeing = given
        if self._takes_places:
            masks = masks_by_kind(masks) if self._recurrent else masks
            seeing = given | {"position_ids": places_BL, "attention_mask": masks}
        hidden: torch.Tensor = self.decoder(
            input_ids=ids_BL, use_cache=True, **seeing, **{self._cache_argument: self._cache}
        ).last_hidden_state
        return hidden
