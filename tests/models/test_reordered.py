"""Reordered weights change nothing but the time: the same products, also after the weights have changed."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import tiny
from grue.models.reordered import _Reordered, reorder, reorders
from grue.policy.actor import Actor
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decoding
from grue.rollout.collect import collect

needs_reordering = pytest.mark.skipif(
    not reorders("cpu", torch.bfloat16), reason="this processor, or this torch, has no reordered products in bfloat16"
)


@needs_reordering
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(256, 704), (704, 256), (64, 64), (33, 70)])
def test_products_are_the_same_bit_by_bit(shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*shape, bias=bias)).to(torch.bfloat16)
    inputs = [torch.randn(*size, shape[0], dtype=torch.bfloat16) for size in ((1,), (7,), (200,), (1, 33), (3, 1, 65))]
    with torch.inference_mode():
        before = [model(states) for states in inputs]
        reorder(model)
        assert isinstance(model[0], _Reordered)
        assert all(torch.equal(model(states), one) for states, one in zip(inputs, before, strict=True))


@needs_reordering
def test_a_weight_that_has_changed_is_reordered_anew() -> None:
    trained = tiny.policy_model()
    actor = Actor(trained, "bfloat16")
    tasks = tiny.tasks(6)

    def log_probs(actor: Actor) -> list[float]:
        seats = [tiny.games.make("toy") for _ in range(6)]
        played = collect(ChoosePolicy(actor.model, tiny.encoder()), seats, tasks, Decoding(), seed="0", context=512)
        return [turn.log_prob for episode in played for turn in episode.turns]

    assert any(isinstance(layer, _Reordered) for layer in actor.model.modules())
    assert log_probs(actor) == log_probs(Actor(trained, "bfloat16", reordered=False))
    before = log_probs(actor)
    with torch.no_grad():
        for weight in trained.lm.parameters():
            weight.mul_(1.1)
    assert log_probs(actor) == before
    actor.sync()
    assert log_probs(actor) == log_probs(Actor(trained, "bfloat16", reordered=False)) != before


@needs_reordering
def test_a_reordered_layer_still_has_gradients() -> None:
    layer = nn.Sequential(nn.Linear(64, 64)).to(torch.bfloat16)
    reorder(layer)
    layer(torch.randn(3, 64, dtype=torch.bfloat16)).sum().backward()
    assert layer[0].weight.grad is not None


@needs_reordering
def test_a_reordered_layer_can_be_copied() -> None:
    layer, states = nn.Sequential(nn.Linear(64, 64)).to(torch.bfloat16), torch.randn(3, 64, dtype=torch.bfloat16)
    reorder(layer)
    other = deepcopy(layer)
    with torch.no_grad():
        assert torch.equal(other(states), layer(states))
        other[0].weight.zero_()
        assert not torch.equal(other(states), layer(states))


def test_other_formats_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    reorder(model)
    assert type(model[0]) is nn.Linear
    assert not reorders("cpu", torch.float32)
    assert not reorders("cuda", torch.bfloat16)
