"""What memory savers and number formats change in an optimiser step, and what they must leave alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from grue.errors import TrainingError
from grue.models.checkpointing import prepare_recomputing, training
from grue.models.policy_model import PolicyModel, Reading
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.rollout.pack import Batch, Sample, collate, micro_batches, samples
from grue.storage import checkpoint
from grue.train.critic import Critic
from grue.train.learner import Learner
from grue.train.ppo_update import Updater
from grue.train.precision import GROWTH_INTERVAL, PATIENCE, LossScale
from grue.train.reference import Reference


def learner_of(model: PolicyModel, **changes: Any) -> Learner:
    fixed = {"learning_rate": 1e-2, "weight_decay": 0.01, "max_grad_norm": 1.0, "micro_tokens": 300, "dtype": "float32"}
    return Learner(model, **{**fixed, **changes})


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def items(model: PolicyModel, count: int = 3) -> list[Sample]:
    return samples(tiny.rollouts(model, tiny.tasks(count)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_is_bit_for_bit_the_plain_one(dtype: str) -> None:
    """Against the loop that anyone would write: backward, clip, AdamW. No scale, no sum over processes creeps in."""
    ours, plain = tiny.policy_model(), tiny.policy_model()
    played = items(tiny.policy_model())
    learner = learner_of(ours, dtype=dtype)
    body = list(plain.lm.parameters())
    groups = [
        {"params": [p for p in body if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in body if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.99), fused=True)
    for _ in range(3):
        learner.step(played, tiny.nll, 1.0)
        optimizer.zero_grad()
        for group in micro_batches(played, 300):
            batch = collate(group)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                reading = plain(*batch.inputs)
            tiny.nll(Reading(*(part.float() for part in reading)), batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(body, 1.0)
        optimizer.step()
    assert same(weights(ours.lm), weights(plain.lm))


def test_float16_learns_and_says_its_scale() -> None:
    model = tiny.policy_model()
    played, learner = items(model), learner_of(model, dtype="float16", learning_rate=3e-3)
    rows = [learner.step(played, tiny.nll, 1.0) for _ in range(30)]
    assert rows[-1]["loss"] < rows[0]["loss"] / 2
    assert rows[-1]["skipped"] == 0
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())


def test_an_overflow_is_left_out_and_halves_the_scale_until_it_fits() -> None:
    model = tiny.policy_model()
    played, learner = items(model), learner_of(model, dtype="float16")

    def steep(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return tiny.nll(reading, batch)[0] * 1000, {}  # finite, but not its gradient times 2^16 in float16

    before = weights(model)
    first = learner.step(played, steep, 1.0)
    assert first["skipped"] == 1
    assert first["loss_scale"] == 2**16
    assert same(before, weights(model))
    assert learner.step_count == 1  # the batch is passed over, as every loop over batches expects
    rows = [learner.step(played, steep, 1.0) for _ in range(20)]
    assert rows[0]["loss_scale"] == 2**15
    assert [row["skipped"] for row in rows] == sorted((row["skipped"] for row in rows), reverse=True)
    assert rows[-1]["skipped"] == 0
    assert not same(before, weights(model))


def test_an_overflow_that_no_scale_mends_stops_the_training() -> None:
    model = tiny.policy_model()
    played, learner, before = items(model, 1), learner_of(model, dtype="float16"), weights(model)

    def broken(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return tiny.nll(reading, batch)[0] * float("inf"), {}

    for _ in range(PATIENCE - 1):
        assert learner.step(played, broken, 1.0)["skipped"] == 1
    with pytest.raises(TrainingError, match=r"loss is inf .*whatever the loss scale") as caught:
        learner.step(played, broken, 1.0)
    assert "bfloat16" in caught.value.hint
    assert same(before, weights(model))


def test_the_loss_scale_by_hand() -> None:
    scale = LossScale()
    scale.skip("inf", 0)
    assert scale.scale == 2**15
    for _ in range(GROWTH_INTERVAL):
        scale.accept()
    assert scale.scale == 2**16
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([2.0**16, -(2.0**17)])
    scale.unscale([parameter])
    assert parameter.grad.tolist() == [1, -2]


KINDS = [
    {"dtype": "float16"},
    {"optimizer": "adamw-8bit"},
    {"optimizer": "paged-adamw"},
    {"optimizer": "paged-adamw-8bit"},
]


@pytest.mark.filterwarnings("ignore::UserWarning:bitsandbytes")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: next(iter(kind.values())))
def test_a_learner_of_any_kind_goes_through_a_checkpoint_bit_for_bit(kind: dict[str, str], tmp_path: Path) -> None:
    if "optimizer" in kind:
        pytest.importorskip("bitsandbytes")
    model = tiny.policy_model()
    played, learner = items(model), learner_of(model, **kind)
    losses = [learner.step(played, tiny.nll, 1.0)["loss"] for _ in range(6)]
    assert losses[-1] < losses[0]
    stored = checkpoint.load(checkpoint.save(tmp_path, 6, *learner.state()))
    twin = learner_of(tiny.policy_model(seed=5), **kind)
    twin.load_state(stored.tensors, stored.state)
    for _ in range(2):
        learner.step(played, tiny.nll, 0.5)
        twin.step(played, tiny.nll, 0.5)
    assert same(weights(model.lm), weights(twin.policy_model.lm))
    assert learner.state()[1] == twin.state()[1]


def test_moments_in_8_bits_are_small_and_end_near_those_in_32() -> None:
    pytest.importorskip("bitsandbytes")
    ends, played = {}, items(tiny.policy_model(hidden=64))
    for kind in ("adamw", "adamw-8bit"):
        model = tiny.policy_model(hidden=64)  # bitsandbytes keeps 32 bits for weights of fewer than 4096 numbers
        learner = learner_of(model, optimizer=kind, learning_rate=1e-3)
        for _ in range(5):
            learner.step(played, tiny.nll, 1.0)
        size = sum(t.numel() * t.element_size() for t in learner.state()[0]["optimizer"].values())
        ends[kind] = (size, model.lm.get_input_embeddings().weight.detach())
    assert ends["adamw-8bit"][0] < ends["adamw"][0] / 2
    start = tiny.policy_model(hidden=64).lm.get_input_embeddings().weight.detach()
    moved = [(end - start).norm() for _, end in ends.values()]
    assert (ends["adamw"][1] - ends["adamw-8bit"][1]).norm() < 0.2 * moved[0]


def _saved_bytes(model: PolicyModel, played: list[Sample], recompute: bool) -> tuple[int, dict[str, torch.Tensor]]:
    """(bytes kept for the backward pass, gradients) of one micro-batch."""
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.zero_grad()
    batch = collate(played)
    with training(model, dropout=False, recompute=recompute):
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = tiny.nll(model(*batch.inputs), batch)[0]
        kept_now = sum(kept.values())
        loss.backward()
    return kept_now, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["llama", "falcon", "gpt2"])
def test_recomputing_gives_the_same_gradients_from_less_memory(name: str, tmp_path: Path) -> None:
    """Falcon has dropout inside its layers, read from the switch that makes them recompute."""
    from transformers import AutoModelForCausalLM

    import architectures

    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(architectures.ALL[name]()).eval()
    model = PolicyModel(lm)
    played = items(tiny.policy_model())
    plain_bytes, plain = _saved_bytes(model, played, recompute=False)
    prepare_recomputing(lm)
    small_bytes, again = _saved_bytes(model, played, recompute=True)
    assert small_bytes < 0.6 * plain_bytes
    assert set(plain) == set(again)
    for key, gradient in plain.items():
        # the two ways go through different kernels of attention, which round differently
        assert torch.allclose(gradient, again[key], rtol=0, atol=1e-5 * gradient.abs().max().item()), key
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["choose", "score"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma2", "gemma4", "gpt2", "gpt_oss", "deepseek", "cohere"])
def test_a_step_that_recomputes_moves_as_one_that_keeps(name: str, kind: str, dtype: str) -> None:
    """The backward pass computes with the attention of the forward pass, where we have put ours in place of torch's."""
    from transformers import AutoModelForCausalLM

    import architectures
    from grue import games

    seats = [games.make("toy") for _ in range(3)]
    played = samples(collect(tiny.player(kind=kind), seats, tiny.tasks(3), Decoding(), seed="0", context=512))
    norms = []
    for recompute in (False, True):
        torch.manual_seed(0)
        lm = AutoModelForCausalLM.from_config(architectures.ALL[name]()).eval()
        if recompute:
            prepare_recomputing(lm)
        model = PolicyModel(lm)
        learner = learner_of(model, dtype=dtype, recompute=recompute)
        norms.append(learner.step(played, tiny.nll, 1.0)["grad_norm"])
        assert model.base_lm().get_decoder().config._attn_implementation in ("sdpa", "eager")
    assert norms[0] == pytest.approx(norms[1], rel=1e-4 if dtype == "float32" else 0.05)


def test_attention_of_training_is_put_back_afterwards() -> None:
    model = tiny.policy_model()
    config = model.base_lm().get_decoder().config
    with training(model, dropout=False, recompute=False, attention="flash_attention_2"):
        assert config._attn_implementation == "flash_attention_2"
    assert config._attn_implementation == "sdpa"


def test_a_pass_that_overflows_in_float16_leaves_the_critic_whole() -> None:
    """The step is left out, and what it has read is no number."""
    settings = ("ppo.value_passes=4", "ppo.minibatches=2", "ppo.epochs=1", "ppo.target_kl=0", "ppo.kl_coef=0")
    config = tiny.config(Path("none"), *settings)
    model = tiny.policy_model()
    learner = learner_of(model, dtype="float16")
    assert learner.loss_scale is not None
    learner.loss_scale.scale = 1.0
    critic = Critic(model.value_head, 1e-3, 4, 4, "0")
    updater = Updater(config, learner, 0.01, critic)
    plain, calls = model.forward, []

    def sometimes(*inputs: Any) -> Reading:
        reading = plain(*inputs)
        calls.append(1)
        return Reading(*(part * float("inf") for part in reading)) if len(calls) == 3 else reading

    model.forward = sometimes  # type: ignore[method-assign]
    row = updater.update(tiny.rollouts(model, tiny.tasks(4)), 9, 1.0, Reference(model)).metrics
    assert row["skipped"] == 0.5 and math.isfinite(row["value_loss"])
    assert all(torch.isfinite(parameter).all() for parameter in model.value_head.parameters())


def test_the_gradient_is_as_long_in_float16() -> None:
    """Clipping would otherwise see it multiplied by the loss scale, and cut every step."""
    norms = []
    for dtype in ("float32", "float16"):
        model = tiny.policy_model()
        norms.append(learner_of(model, dtype=dtype).step(items(model), tiny.nll, 1.0)["grad_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=0.05)
