"""A causal LM with a value head, read where training needs it: at branching tokens and before actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from grue.models.architecture import layer_masks, sliding_window
from grue.models.attention import NAME as OWN_ATTENTION
from grue.models.attention import own_attention, rows_attention, takes_rows
from grue.models.causal import row_groups
from grue.models.scores import Trees, candidate_scores, log_normalisers
from grue.models.value import ValueHead, state_width

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHOLE = -2  # the only child of a node that chooses among the whole vocabulary
HiddenAt = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # rows (n,), columns (n,) -> states (n, hidden)


def child_logits(head: nn.Module, hidden_NH: torch.Tensor, children_NC: torch.Tensor) -> torch.Tensor:
    """Logits (N, C) of the token ids in children_NC (-1 pads, gives -inf), in float32; (N, V) where a row is WHOLE.

    Only the rows of the output matrix that some node needs are multiplied: a vocabulary of 150,000 costs no more
    than one of 1,000. Logits of nodes that choose among the whole vocabulary (free text) come from the output layer.
    """
    whole_N = children_NC[:, 0] == WHOLE
    if bool(whole_N.any()):
        logits_NC = vocabulary_logits(head, hidden_NH[whole_N])
        if bool(whole_N.all()):
            return logits_NC
        some_NC = child_logits(head, hidden_NH[~whole_N], children_NC[~whole_N])
        vocabulary, padding = logits_NC.shape[1], logits_NC.shape[1] - some_NC.shape[1]
        padded_NC = torch.nn.functional.pad(some_NC, (0, padding), value=float("-inf"))
        logits_NC = logits_NC.new_zeros(len(children_NC), vocabulary).index_put((whole_N.nonzero()[:, 0],), logits_NC)
        return logits_NC.index_put(((~whole_N).nonzero()[:, 0],), padded_NC)
    with torch.autocast(hidden_NH.device.type, enabled=False):
        weight, bias = head.weight, getattr(head, "bias", None)
        assert isinstance(weight, torch.Tensor)
        used, index_NC = torch.unique(children_NC.clamp(min=0), return_inverse=True)
        logits_NU = hidden_NH.float() @ weight[used].float().T
        if bias is not None:
            logits_NU = logits_NU + bias[used].float()
        return logits_NU.gather(1, index_NC).masked_fill(children_NC < 0, float("-inf"))


def vocabulary_logits(head: nn.Module, hidden_NH: torch.Tensor) -> torch.Tensor:
    """Logits (N, V) of all tokens, in float32, multiplied in the number format of the output layer."""
    with torch.autocast(hidden_NH.device.type, enabled=False):
        weight, bias = head.weight, getattr(head, "bias", None)
        assert isinstance(weight, torch.Tensor)
        return torch.nn.functional.linear(hidden_NH.to(weight.dtype), weight, bias).float()


class Reading(NamedTuple):
    """What one forward pass gives: N branching nodes of at most C children, and T turns."""

    logits_NC: torch.Tensor  # log-probabilities over the whole vocabulary, if `over_vocabulary` asked for them
    values_T: torch.Tensor
    states_TH: torch.Tensor  # hidden states that the values were read from


class PolicyModel(nn.Module):
    """`lm` is any Hugging Face causal LM, with or without an adapter. Full right-padded sequences in, a Reading out."""

    def __init__(
        self, lm: PreTrainedModel, value_head: ValueHead | None = None, *, value_shares_trunk: bool = False
    ) -> None:
        super().__init__()
        self.lm = lm
        config = lm.config.get_text_config() if hasattr(lm.config, "get_text_config") else lm.config
        self.value_head = (value_head or ValueHead(state_width(lm))).to(next(lm.parameters()).device)
        self.value_shares_trunk = value_shares_trunk
        self.softcap = getattr(config, "final_logit_softcapping", None)
        self.logit_scale = _logit_scale(config)
        self.compiled = False  # see `models.compiled`: torch's attention alone is part of compiled layers
        # for a sharded model, the whole copy that plays (`models.sharding`); in a tuple, so that it is not a submodule
        self.playing: tuple[PolicyModel, ...] = ()

    @property
    def has_adapter(self) -> bool:
        return hasattr(self.lm, "disable_adapter")

    def base_lm(self) -> PreTrainedModel:
        """The Hugging Face model under the adapter, if there is one."""
        return self.lm.get_base_model() if self.has_adapter else self.lm  # type: ignore[operator]

    @property
    def positions(self) -> int | None:
        """Tokens that a sequence may have; None where the architecture sets no limit."""
        return getattr(self.lm.config.get_text_config(), "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """Tokens that the output layer knows; more than the tokenizer's where it is padded."""
        return len(self.base_lm().get_output_embeddings().weight)

    def logits(self, hidden_NH: torch.Tensor, children_NC: torch.Tensor) -> torch.Tensor:
        return self._scaled(child_logits(self.base_lm().get_output_embeddings(), hidden_NH, children_NC))

    def vocabulary_logits(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """Logits (N, V) of all tokens, in float32."""
        return self._scaled(vocabulary_logits(self.base_lm().get_output_embeddings(), hidden_NH))

    @torch.inference_mode()
    def values(self, hidden_BH: torch.Tensor) -> list[float]:
        """The critic's estimates at states, for play."""
        values: list[float] = self.value_head(hidden_BH).tolist()
        return values

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply the architecture's scale and soft cap to the products of its output layer."""
        if self.logit_scale != 1:
            logits = logits * self.logit_scale
        if self.softcap is None:
            return logits
        # padding stays at -inf
        return torch.where(torch.isinf(logits), logits, self.softcap * torch.tanh(logits / self.softcap))

    def forward(
        self,
        ids_BL: torch.Tensor,
        node_row_N: torch.Tensor,
        node_position_N: torch.Tensor,
        children_NC: torch.Tensor,
        turn_row_T: torch.Tensor,
        turn_position_T: torch.Tensor,
        trees: Trees | None = None,
        over_vocabulary: bool = False,
        sizes: Sequence[int] | None = None,
    ) -> Reading:
        """Logits of the children (-1 pads) of N nodes, and values of T turns, each at its row and position in ids_BL.

        Right padding needs no attention mask: attention is causal, and padded positions are never read. `sizes` are the
        lengths of the rows: with them, padding is left out where this can be done.
        `trees` says where rows hold the candidates of turns after their text; children_NC then means whole
        actions, and the logits are their scores. `over_vocabulary` gives log-probabilities over the whole vocabulary
        instead.
        """
        decoder = self.base_lm().get_decoder()
        if sizes is not None and not self.compiled and takes_rows(decoder, ids_BL):
            hidden_at = _read_rows(decoder, ids_BL, sizes, trees)
        else:
            with nullcontext() if self.compiled else own_attention(decoder):
                hidden_at = _read_padded(decoder, ids_BL, trees)
        if trees is None:
            hidden_NH = hidden_at(node_row_N, node_position_N)
            logits_NC = self.logits(hidden_NH, children_NC)
            if over_vocabulary:
                logits_NC = logits_NC - log_normalisers(self.vocabulary_logits, hidden_NH)[:, None]
        else:
            hidden_RH = hidden_at(trees.read_row_R, trees.read_column_R)
            logits_NC = candidate_scores(self.vocabulary_logits, hidden_RH, trees.paths, tuple(children_NC.shape))
        before_TH = hidden_at(turn_row_T, turn_position_T)
        values_T = self.value_head(before_TH if self.value_shares_trunk else before_TH.detach())
        return Reading(logits_NC, values_T, before_TH)


def _logit_scale(config: Any) -> float:
    """What logits are multiplied by. Granite and MiniCPM divide by what HyperCLOVA X multiplies by."""

    def named(name: str) -> float:
        return float(getattr(config, name, None) or 1.0)

    factor = named("logit_scale") * named("lm_head_multiplier")  # Cohere's and Falcon H1's
    scaling = named("logits_scaling")
    return factor * scaling if config.model_type.startswith("hyperclovax") else factor / scaling


def _read_padded(decoder: Any, ids_BL: torch.Tensor, trees: Trees | None) -> HiddenAt:
    seeing = {} if trees is None else _tree_masks(decoder.config, trees, hidden_dtype=next(decoder.parameters()).dtype)
    hidden_BLH = decoder(input_ids=ids_BL, use_cache=False, **seeing).last_hidden_state
    return lambda row, column: hidden_BLH[row, column]


def _read_rows(decoder: Any, ids_BL: torch.Tensor, sizes: Sequence[int], trees: Trees | None) -> HiddenAt:
    """All rows, without their padding, as one text whose rows do not see each other."""
    columns = torch.arange(ids_BL.shape[1])
    real_BL = columns < torch.tensor(sizes)[:, None]
    places_BL = columns.expand_as(ids_BL) if trees is None else trees.places_BL
    starts_B = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    with rows_attention(decoder, row_groups(sizes, None if trees is None else trees.seen_BLL)) as mask:
        hidden_NH = decoder(
            input_ids=ids_BL[real_BL][None],
            position_ids=places_BL[real_BL][None],
            attention_mask=mask,
            use_cache=False,
        ).last_hidden_state[0]
    return lambda row, column: hidden_NH[starts_B[row] + column]


def _tree_masks(config: Any, trees: Trees, hidden_dtype: torch.dtype) -> dict[str, Any]:
    """Positions and masks of a forward pass with trees. SDPA takes bool masks, which autocast leaves alone."""
    window = sliding_window(config)
    dtype = None if config._attn_implementation in ("sdpa", OWN_ATTENTION) else hidden_dtype
    masks = layer_masks(window, trees.seen_BLL, trees.places_BL[..., None], trees.places_BL[:, None], dtype)
    return {"attention_mask": masks, "position_ids": trees.places_BL}
