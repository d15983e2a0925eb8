"""Weights laid out once as the processor's kernels need them, instead of at every product.

For 16-bit products on a CPU, torch's library (oneDNN) reorders the weights each time, which for a few hundred tokens
takes a third of the product's time. Torch has operations that do it once, made for its compiler; they are not a public
interface, so if they are missing or fail, layers stay as they are. The products are the same, bit by bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn


class _Reordered(nn.Linear):
    """A linear layer with a second, reordered copy of its weight; `reorder_again` after the weight has changed."""

    reordered: torch.Tensor | None = None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if self.reordered is None or torch.is_grad_enabled() or states.dtype is not self.weight.dtype:
            return super().forward(states)
        found: torch.Tensor = _ops()._linear_pointwise(states, self.reordered, self.bias, "none", [], "")
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"reordered": None}  # the reordered weight can be neither copied nor stored

    def reorder_again(self) -> None:
        # the old copy goes first: two at a time are not needed
        self.reordered = None
        self.reordered = _ops()._reorder_linear_weight(self.weight.detach(), None)


def reorder(model: nn.Module) -> None:
    """Reorder the weights of linear layers, if that helps, in a model that only plays; again after each change."""
    for layer in model.modules():
        if type(layer) is nn.Linear and reorders(layer.weight.device.type, layer.weight.dtype):
            layer.__class__ = _Reordered
        if isinstance(layer, _Reordered):
            layer.reorder_again()


def reorders(device: str, dtype: torch.dtype) -> bool:
    """Does `reorder` change anything for weights in this format?"""
    return device == "cpu" and dtype is torch.bfloat16 and _works()


@cache
def _works() -> bool:
    """Are the operations there, and do they compute what a linear layer does?"""
    weight, states = (torch.linspace(-1, 1, n * 64).sin().view(n, 64).bfloat16() for n in (32, 8))
    try:
        with torch.no_grad():
            if not _ops()._is_mkldnn_bf16_supported():
                return False
            reordered = _ops()._reorder_linear_weight(weight, None)
            found = _ops()._linear_pointwise(states, reordered, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool(torch.equal(found, nn.functional.linear(states, weight)))


def _ops() -> Any:
    return torch.ops.mkldnn
