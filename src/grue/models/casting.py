"""Weights in another number format, and nothing else with them."""

from __future__ import annotations

import torch
from torch import nn


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Change the format of the weights, as transformers does when it loads a model in `dtype`.

    Buffers stay as they are, which `Module.to` would round as well: with rotary frequencies in bfloat16, the phase of a
    token at position 1000 is wrong by up to a radian. So do the weights that an architecture wants in float32.
    """
    float32 = tuple(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not any(part in name for part in float32):
            weight.data = weight.data.to(dtype)
