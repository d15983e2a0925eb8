"""RMS norms by torch's kernel: the same numbers, on a GPU alone, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn
from transformers import PreTrainedModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import decoders
from grue.models.norms import _Fused, fuse_norms
from pretended_gpu import pretended

WITHOUT = (decoders.gpt2, decoders.falcon, decoders.phi)  # their norms subtract the mean
# of experts transformers gives to a kernel that CPUs have not
RUNNING = [make for make in decoders.ARCHITECTURES if make not in (decoders.gpt_oss, decoders.deepseek)]


needs_stand_in = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.13"), reason="the stand-in needs torch 2.13"
)


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


@needs_stand_in
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


@needs_stand_in
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [decoders.llama, decoders.gemma3])
def test_norms_of_both_kinds_have_the_numbers_and_gradients_that_they_had(
    make: Callable[[], PreTrainedModel], dtype: torch.dtype
) -> None:
    """Gemma adds 1 to the weight, which in 16 bits must not cost the weight its digits."""
    model = made(make).to(dtype)
    fuse_norms(model)
    norm: Any = fused(model)[0]
    assert norm.grue_offset == (make is decoders.gemma3)
    found: list[list[torch.Tensor]] = []
    for place in (nullcontext(), pretended()):
        with place:
            device = "cpu" if not found else "cuda"
            there = deepcopy(norm).to(device)
            states = torch.linspace(-2, 3, 3 * len(norm.weight)).view(3, -1).to(dtype).requires_grad_()
            out = there(states.to(device))
            out.float().square().sum().backward()
            found.append([out.detach().cpu(), states.grad, there.weight.grad.cpu()])
            assert out.dtype is dtype
    rough = 1e-5 if dtype is torch.float32 else 0.03  # gradients of states are differences, which 16 bits round
    for usual, kernel in zip(*found, strict=True):
        assert float((kernel - usual).float().norm()) < rough * float(usual.float().norm())


@needs_stand_in
@pytest.mark.parametrize("make", [decoders.llama, decoders.gemma3])
def test_autocast_does_not_make_float32_of_16_bits(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.12 does on a GPU, where the pretended one has a CPU's autocast."""
    kernel = nn.functional.rms_norm
    seen: list[bool] = []

    def as_on_a_gpu(states: torch.Tensor, shape: Any, weight: torch.Tensor, eps: float) -> torch.Tensor:
        raised = torch.is_autocast_enabled("cuda")
        seen.append(raised)
        return kernel(states.float(), shape, weight.float(), eps) if raised else kernel(states, shape, weight, eps)

    model = made(make).to(torch.bfloat16)
    fuse_norms(model)
    norm: Any = fused(model)[0]
    states = torch.ones(2, len(norm.weight), dtype=torch.bfloat16)
    monkeypatch.setattr(nn.functional, "rms_norm", as_on_a_gpu)
    with pretended(), torch.autocast("cuda", dtype=torch.bfloat16):
        there, given = norm.to("cuda"), states.to("cuda")
        assert as_on_a_gpu(given, (states.shape[1],), there.weight, 1e-6).dtype is torch.float32
        seen.clear()
        assert there(given).dtype is torch.bfloat16
    assert seen and not any(seen)


@needs_stand_in
@torch.no_grad()
def test_a_norm_keeps_its_epsilon_and_what_its_weight_has_learnt() -> None:
    plain, added = nn.Sequential(LlamaRMSNorm(64, eps=1e-2)), nn.Sequential(Gemma3RMSNorm(64)).to(torch.bfloat16)
    added[0].weight.copy_(torch.linspace(0.001, 0.01, 64))  # beside 1 bfloat16 knows 0 and 0.008
    for model, states in ((plain, torch.linspace(-0.1, 0.1, 64)), (added, torch.linspace(-3, 3, 64).bfloat16())):
        expected = model(states)
        fuse_norms(model)
        assert len(fused(model)) == 1
        with pretended():
            found = deepcopy(model).to("cuda")(states.to("cuda")).cpu()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@needs_stand_in
@torch.no_grad()
def test_states_in_another_format_are_left_to_the_norm_itself() -> None:
    model, states = nn.Sequential(LlamaRMSNorm(64)).to(torch.bfloat16), torch.linspace(-3, 3, 64)
    expected = model(states)
    fuse_norms(model)
    with pretended():
        found = deepcopy(model).to("cuda")(states.to("cuda")).cpu()
    assert found.dtype is expected.dtype and torch.equal(found, expected)


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


class LateRMSNorm(HalfRMSNorm):
    """Adds epsilon after the root."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states / (states.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight


class HeadsRMSNorm(HalfRMSNorm):
    """Has a weight for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(states.unflatten(-1, (2, 4)), (4,), None, self.eps).mul(self.weight).flatten(-2)


def test_what_computes_something_else_stays_as_it_is() -> None:
    late = LateRMSNorm()
    late.eps = 1e-3
    model = nn.Sequential(HalfRMSNorm(), GatedRMSNorm(), nn.LayerNorm(8), late, HeadsRMSNorm())
    model.append(LlamaRMSNorm(8).to("meta"))  # without data nothing can be tried
    kinds = [type(module) for module in model]
    fuse_norms(model)
    assert [type(module) for module in model] == kinds


def test_norms_that_are_fused_stay_so() -> None:
    model = made(decoders.llama)
    fuse_norms(model)
    kinds = [type(module) for module in model.modules()]
    fuse_norms(model)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", [0.0, 40.0, 60.0, 400.0])
def test_large_weights_do_not_hide_what_is_added_to_them(weight: float, dtype: torch.dtype) -> None:
    """With weights of 60, the norm without the 1 is off by 1.6 %: small enough to be taken for rounding."""
    for make, added in ((Gemma3RMSNorm, 1.0), (LlamaRMSNorm, 0.0)):
        norm = make(64).to(dtype)
        nn.init.constant_(norm.weight, weight)
        fuse_norms(nn.ModuleList([norm]))
        if added or weight:  # of weights 0, all is 0
            assert isinstance(norm, _Fused) and norm.grue_offset == added
