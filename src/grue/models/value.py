"""The critic: a small head on the hidden state of the last token before the action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def state_width(lm: PreTrainedModel) -> int:
    """Width of the hidden states that the output layer and the critic read: not always the width of the layers."""
    head: Any = lm.get_output_embeddings()
    return int(head.weight.shape[1])


class ValueHead(nn.Module):
    """Two layers from a hidden state to one number, kept in float32. Starts at 0 for every state."""

    def __init__(self, hidden: int, width: int = 256) -> None:
        super().__init__()
        # hidden states of different models differ a hundredfold in scale
        self.norm = nn.LayerNorm(hidden)
        self.inner = nn.Linear(hidden, width)
        self.outer = nn.Linear(width, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., hidden) -> (...)."""
        with torch.autocast(hidden.device.type, enabled=False):
            inner = torch.nn.functional.gelu(self.inner(self.norm(hidden.float())))
            values: torch.Tensor = self.outer(inner).squeeze(-1)
            return values
