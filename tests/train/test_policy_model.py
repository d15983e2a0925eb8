"""The model as training reads it: logits of the children alone, and a value head beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tiny
from grue.models.policy_model import WHOLE, PolicyModel, child_logits
from grue.models.value import ValueHead


def test_child_logits_are_those_of_the_output_layer() -> None:
    """With a bias too, as GPT-J has one; -1 pads."""
    torch.manual_seed(0)
    head, hidden = nn.Linear(8, 50), torch.randn(3, 8)
    children = torch.tensor([[4, 9, -1], [0, 49, 4], [7, -1, -1]])
    found, full = child_logits(head, hidden, children), head(hidden)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)):
        assert found[row, column].item() == pytest.approx(full[row, children[row, column]].item(), abs=1e-6)
    assert torch.isinf(found).tolist() == (children < 0).tolist()


def test_a_vocabulary_is_chosen_from_without_its_ids() -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(8, 50), torch.randn(3, 8)
    full = head(hidden)
    torch.testing.assert_close(child_logits(head, hidden, torch.full((3, 1), WHOLE)), full)
    found = child_logits(head, hidden, torch.tensor([[WHOLE, -1], [0, 49], [7, -1]]))
    wanted = torch.full((3, 50), float("-inf"))
    wanted[0], wanted[1, :2], wanted[2, 0] = full[0], full[1, [0, 49]], full[2, 7]
    torch.testing.assert_close(found, wanted)


def test_soft_capped_logits_are_capped_as_the_model_caps_them() -> None:
    """Gemma 2: logits are squeezed into -cap .. cap before the softmax."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        final_logit_softcapping=0.5,
        attn_logit_softcapping=None,
    )
    torch.manual_seed(0)
    lm = Gemma2ForCausalLM(config).eval()
    ids = torch.tensor([[5, 6, 7]])
    place = torch.tensor([2])
    with torch.no_grad():
        found = PolicyModel(lm)(ids, place - 2, place, torch.tensor([[3, 9]]), place - 2, place).logits_NC
        expected = lm(ids).logits[0, 2, [3, 9]]
    assert torch.allclose(found[0], expected, atol=1e-5)
    assert expected.abs().max() < 0.5


def test_a_new_critic_expects_nothing() -> None:
    assert ValueHead(16)(torch.randn(5, 16)).tolist() == [0] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_critic_reads_states_of_any_scale_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head, states = ValueHead(16), torch.randn(5, 16).to(dtype)
    nn.init.normal_(head.outer.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, larger = head(states), head(states * 128)
    assert found.dtype is torch.float32 and torch.equal(found, head(states))
    torch.testing.assert_close(larger, found, atol=1e-3, rtol=1e-3)


def test_the_value_head_lives_where_the_model_does() -> None:
    model = PolicyModel(tiny.llama().to("meta"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize("shared", [False, True])
def test_the_value_loss_reaches_the_language_model_only_if_they_share_a_trunk(shared: bool) -> None:
    model = PolicyModel(tiny.llama(), value_shares_trunk=shared)
    nn.init.normal_(model.value_head.outer.weight)
    row, place = torch.tensor([0]), torch.tensor([2])
    reading = model(torch.tensor([[5, 6, 7]]), row, place, torch.tensor([[3, 9]]), row, place)
    reading.values_T.sum().backward()
    assert model.value_head.outer.weight.grad is not None
    assert any(parameter.grad is not None for parameter in model.lm.parameters()) == shared


def test_a_soft_cap_leaves_padding_out() -> None:
    model = tiny.policy_model()
    model.softcap = 3.0
    logits = model.logits(torch.randn(1, 32), torch.tensor([[4, 5, -1]]))
    assert logits[0, 2] == -float("inf") and logits[0, :2].isfinite().all()
