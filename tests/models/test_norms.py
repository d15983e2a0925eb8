"""RMS norms by torch's kernel: the same numbers, on a GPU alone, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from packaging.version import Version
from torch import nn
from transformers import PreTrainedModel

import decoders
from grue.models.norms import _Fused, fuse_norms
from pretended_gpu import pretended

WITHOUT = (decoders.gpt2, decoders.falcon, decoders.phi)  # their norms subtract the mean
# of experts transformers gives to a kernel that CPUs have not
RUNNING = [make for make in decoders.ARCHITECTURES if make not in (decoders.gpt_oss, decoders.deepseek)]


def fused(model: nn.Module) -> list[_Fused]:
    return [module for module in model.modules() if isinstance(module, _Fused)]


def made(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """With norms that scale each number by its own weight."""
    model = make()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += 0.2 * torch.randn_like(weight)
    return model


@pytest.mark.skipif(Version(torch.__version__) < Version("2.13"), reason="the stand-in needs torch 2.13")
@pytest.mark.parametrize("make", RUNNING)
@torch.no_grad()
def test_a_model_on_a_gpu_computes_what_it_computes_on_a_cpu(make: Callable[[], PreTrainedModel]) -> None:
    model, ids = made(make), torch.arange(12)[None]
    expected = model(ids, use_cache=False).logits
    fuse_norms(model)
    assert (len(fused(model)) == 0) == (make in WITHOUT)
    assert torch.equal(model(ids, use_cache=False).logits, expected)  # nothing changes on a CPU
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    copied = deepcopy(model)  # as the one that plays is
    assert len(fused(copied)) == len(fused(model))
    with pretended():
        found = copied.to("cuda")(ids.to("cuda"), use_cache=False).logits.cpu()
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("make", [decoders.llama, decoders.gemma3])
def test_norms_of_both_kinds_have_the_gradients_that_they_had(make: Callable[[], PreTrainedModel]) -> None:
    """Gemma adds 1 to the weight."""
    model = made(make)
    fuse_norms(model)
    norm = fused(model)[0]
    kernel: list[torch.Tensor] = []
    for forward in (type(norm).__mro__[2].forward, kernel_of):  # type: ignore[attr-defined]
        states = torch.linspace(-2, 3, 3 * len(norm.weight)).view(3, -1).requires_grad_()
        norm.weight.grad = None
        forward(norm, states).square().sum().backward()
        assert states.grad is not None and norm.weight.grad is not None
        kernel += [states.grad, norm.weight.grad]
    assert torch.allclose(kernel[0], kernel[2], atol=1e-5) and torch.allclose(kernel[1], kernel[3], atol=1e-4)
    assert norm.grue_offset == (make is decoders.gemma3)


def kernel_of(norm: _Fused, states: torch.Tensor) -> torch.Tensor:
    weight = norm.weight + norm.grue_offset
    return nn.functional.rms_norm(states, weight.shape, weight, norm.grue_eps)


class HalfRMSNorm(nn.Module):
    """By its name one of them, but it gives half."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(states, (8,), self.weight, self.eps) / 2


class GatedRMSNorm(HalfRMSNorm):
    """Takes a second argument."""

    def forward(self, states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(states) * 2 * (1 if gate is None else gate)


def test_what_computes_something_else_stays_as_it_is() -> None:
    model = nn.Sequential(HalfRMSNorm(), GatedRMSNorm(), nn.LayerNorm(8))
    kinds = [type(module) for module in model]
    fuse_norms(model)
    assert [type(module) for module in model] == kinds
