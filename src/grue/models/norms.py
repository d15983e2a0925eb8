"""RMS norms in a single GPU kernel. Transformers starts eight, and keeps float32 copies for the backward pass."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import Any

import torch
from torch import nn


class _Fused(nn.Module):
    """Mixed into an RMS norm. On a CPU, or if number formats differ, the norm computes as before."""

    weight: torch.Tensor
    grue_eps: float
    grue_offset: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if not hidden_states.is_cuda or hidden_states.dtype is not self.weight.dtype:
            stock: torch.Tensor = super().forward(hidden_states)
            return stock
        states, weight = hidden_states, self.weight
        if self.grue_offset:  # 1 + weight in 16 bits would lose what the weight has learnt
            states, weight = states.float(), weight.float() + self.grue_offset
        with torch.autocast("cuda", enabled=False):  # since torch 2.12 autocast would turn 16 bits into float32
            found = nn.functional.rms_norm(states, weight.shape, weight, self.grue_eps)
        return found.to(hidden_states.dtype)


def fuse_norms(model: nn.Module) -> None:
    """Have torch's kernel compute those RMS norms of `model` for which it gives the same as their own code.

    Their classes are created here, so such a model can be copied and saved, but not pickled whole.
    """
    known: dict[type, float | None] = {}  # class of norm -> what is added to its weight; None: something else
    fused: dict[type, type] = {}  # class of norm -> ours, a single one, as torch.compile compiles anew for each
    for module in model.modules():
        kind = type(module)
        if not kind.__name__.endswith("RMSNorm") or issubclass(kind, _Fused) or _eps(module) is None:
            continue
        if kind not in known:
            known[kind] = _offset(module)
            fused[kind] = type(kind.__name__, (_Fused, kind), {})
        if (offset := known[kind]) is not None:
            norm: Any = module
            norm.grue_eps, norm.grue_offset = _eps(module), offset
            norm.__class__ = fused[kind]


def _eps(module: nn.Module) -> float | None:
    """The norm's epsilon, if the norm takes a single argument and has a weight for each number of a state."""
    weight = getattr(module, "weight", None)
    plain = isinstance(weight, torch.Tensor) and weight.dim() == 1 and not weight.is_meta
    if not plain or len(inspect.signature(module.forward).parameters) != 1:
        return None
    eps: Any = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return eps if isinstance(eps, float) else None


@torch.no_grad()
def _offset(module: Any) -> float | None:
    """What a norm adds to its weight (1 in Gemma), found by trying; None if it is not such an RMS norm."""
    exact = deepcopy(module).float()  # in 16 bits, a weight of 300 is the same as one of 301
    weight = exact.weight
    states = torch.linspace(-3, 5, 4 * len(weight), device=weight.device).view(4, -1)
    states[1] /= 1_000  # where epsilon counts
    expected = exact(states)
    for offset in (0.0, 1.0):
        found = nn.functional.rms_norm(states, weight.shape, weight + offset, _eps(module))
        if torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
            return offset
    return None
