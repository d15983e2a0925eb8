"""A causal LM with a value head, read where training needs it: at branching tokens and before actions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from grue.models.value import ValueHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def child_logits(head: nn.Module, hidden_NH: torch.Tensor, children_NC: torch.Tensor) -> torch.Tensor:
    """Logits (N, C) of the token ids in children_NC (-1 pads, gives -inf), in float32.

    Only the rows of the output matrix that some node needs are multiplied: a vocabulary of 150,000 costs no more
    than one of 1,000.
    """
    with torch.autocast(hidden_NH.device.type, enabled=False):
        weight, bias = head.weight, getattr(head, "bias", None)
        assert isinstance(weight, torch.Tensor)
        used, index_NC = torch.unique(children_NC.clamp(min=0), return_inverse=True)
        logits_NU = hidden_NH.float() @ weight[used].float().T
        if bias is not None:
            logits_NU = logits_NU + bias[used].float()
        return logits_NU.gather(1, index_NC).masked_fill(children_NC < 0, float("-inf"))


class Reading(NamedTuple):
    """What one forward pass gives: N branching nodes of at most C children, and T turns."""

    logits_NC: torch.Tensor
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
        self.value_head = (value_head or ValueHead(config.hidden_size)).to(next(lm.parameters()).device)
        self.value_shares_trunk = value_shares_trunk
        self.softcap = getattr(config, "final_logit_softcapping", None)

    @property
    def has_adapter(self) -> bool:
        return hasattr(self.lm, "disable_adapter")

    def base_lm(self) -> PreTrainedModel:
        """The Hugging Face model under the adapter, if there is one."""
        return self.lm.get_base_model() if self.has_adapter else self.lm  # type: ignore[operator]

    def logits(self, hidden_NH: torch.Tensor, children_NC: torch.Tensor) -> torch.Tensor:
        logits = child_logits(self.base_lm().get_output_embeddings(), hidden_NH, children_NC)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def forward(
        self,
        ids_BL: torch.Tensor,
        node_row_N: torch.Tensor,
        node_position_N: torch.Tensor,
        children_NC: torch.Tensor,
        turn_row_T: torch.Tensor,
        turn_position_T: torch.Tensor,
        reference: bool = False,
    ) -> Reading:
        """Right padding needs no attention mask: attention is causal, and padded positions are never read.

        reference=True reads the model with its adapter off.
        """
        with self.lm.disable_adapter() if reference and self.has_adapter else nullcontext():  # type: ignore[operator]
            hidden_BLH = self.base_lm().get_decoder()(input_ids=ids_BL, use_cache=False).last_hidden_state
        logits_NC = self.logits(hidden_BLH[node_row_N, node_position_N], children_NC)
        before_TH = hidden_BLH[turn_row_T, turn_position_T]
        values_T = self.value_head(before_TH if self.value_shares_trunk else before_TH.detach())
        return Reading(logits_NC, values_T, before_TH)
