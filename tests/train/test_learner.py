"""One optimiser step, the critic's fit and the reference: what they change, and what they leave alone."""

from __future__ import annotations

import math
import random
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from grue import games, load_policy
from grue.config import PPOConfig, SFTConfig
from grue.errors import CheckpointError, ConfigError, DataError, TrainingError
from grue.models.learned import load_weights
from grue.models.load import load_model
from grue.models.policy_model import PolicyModel, Reading
from grue.models.value import ValueHead
from grue.policy.decision import Decoding
from grue.prompts.tokens import Encoder
from grue.rollout.collect import collect
from grue.rollout.pack import Batch, Sample, collate, samples, tokenise
from grue.storage import checkpoint
from grue.storage.run import Run
from grue.train.critic import Critic
from grue.train.learner import Learner
from grue.train.reference import Reference
from grue.train.schedule import learning_rate_factor, policy_rate_factor
from grue.train.seeds import hash_seed
from grue.train.sft import imitation_step, sft_loss


def learner_of(model: PolicyModel, **changes: float) -> Learner:
    settings = {"learning_rate": 1e-2, "weight_decay": 0.0, "max_grad_norm": 1.0, "micro_tokens": 2048, **changes}
    return Learner(model, dtype="float32", **settings)  # type: ignore[arg-type]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def nll(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    log_probs = torch.log_softmax(reading.logits_NC, -1).gather(1, batch.chosen_N[:, None])
    return -log_probs.mean(), {}


@pytest.mark.parametrize("kind", ["choose", "aligned", "write", "think"])
def test_turns_read_again_are_those_of_play(kind: str) -> None:
    """In order, across segments and micro-batches, at a temperature; then of the weights as they are."""
    policy = tiny.player(kind=kind, min_p=0.0)
    learner = learner_of(policy.model, micro_tokens=512)
    played = collect(
        policy, [games.make("toy") for _ in range(3)], tiny.tasks(5), Decoding(temperature=1.5), seed="0", context=256
    )
    assert any(len(episode.segments) > 1 for episode in played)
    items = samples(played, [np.zeros(e.steps) for e in played])
    turns = [turn for item in items for turn in item.turns]
    log_probs, values = (torch.cat(found).numpy() for found in zip(*learner.read_turns(items, 1.5), strict=True))
    assert log_probs == pytest.approx([turn.log_prob for turn in turns], abs=1e-4)
    assert values == pytest.approx([turn.value for turn in turns], abs=1e-4)
    learner.step(items, lambda reading, _: (reading.logits_NC.clamp(min=-500).sum(), {}), 1.0)
    moved = torch.cat([found for found, _ in learner.read_turns(items, 1.5)]).numpy()
    assert abs(moved - log_probs).max() > 1e-3


def test_a_step_without_dropout_leaves_the_random_numbers_of_others_alone() -> None:
    model = tiny.policy_model()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    imitation_step(learner_of(model), items(model), SFTConfig(), 1.0, "x")
    assert torch.equal(torch.rand(3), expected)


def items(model: PolicyModel, count: int = 3) -> list[Sample]:
    return samples(tiny.rollouts(model, tiny.tasks(count)))


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("hold", [0.5, 1, 1, 1, 1, 0.75]),  # of the four steps, two thirds at the peak
        ("cosine", [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ],
)
def test_learning_rates_by_hand(schedule: str, factors: list[float]) -> None:
    """Two steps of warm-up to the peak, then four steps down."""
    found = [learning_rate_factor(schedule, step, 6, 2) for step in range(6)]
    assert found == pytest.approx(factors)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="'Linear'"):
        learning_rate_factor("Linear", 0, 6, 2)


def test_a_model_that_learnt_with_dropout_plays_without() -> None:
    model = tiny.policy_model()
    learner = learner_of(model, dropout=True)
    learner.step(items(model), nll, 1.0)
    assert not any(module.training for module in model.modules())


def test_a_short_training_reaches_its_peak() -> None:
    found = [learning_rate_factor("linear", step, 4, 10) for step in range(4)]
    assert found == pytest.approx([0.5, 1, 1, 0.5])


def test_the_critics_warm_up_does_not_use_up_the_policys_schedule() -> None:
    found = [policy_rate_factor("linear", iteration, 6, 2) for iteration in range(6)]
    assert found == pytest.approx([1, 1, 1, 0.75, 0.5, 0.25])


def test_a_short_ppo_has_a_schedule_whatever_the_critics_warm_up() -> None:
    warmup = PPOConfig(iterations=4, warmup_iterations=10).warmup
    found = [policy_rate_factor("linear", iteration, 4, warmup) for iteration in range(4)]
    assert found == pytest.approx([1, 1, 1, 0.5])
    assert policy_rate_factor("linear", 0, 1, PPOConfig(iterations=1, warmup_iterations=3).warmup) == 1


def test_steps_reduce_the_loss_and_count() -> None:
    model = tiny.policy_model()
    played, learner = items(model), learner_of(model)
    losses = [learner.step(played, nll, 1.0)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0] / 2
    assert learner.step_count == 8


def test_weights_in_16_bits_are_not_trained() -> None:
    model = tiny.policy_model().bfloat16()
    with pytest.raises(TrainingError, match=r"lm\.\S+ is to learn in bfloat16") as found:
        learner_of(model)
    assert "load_trained" in found.value.hint
    model.lm.requires_grad_(False)
    model.value_head.float()
    learner_of(model, value_learning_rate=1e-3)  # frozen ones may be in any format


def test_a_variable_of_accelerate_does_not_scale_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are divided by what they are a mean over; dividing once more would be a smaller weight, silently."""
    learned = []
    for steps in ("1", "4"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
        model = tiny.policy_model()
        learner = learner_of(model)
        learned.append(learner.step(items(model), nll, 1.0)["grad_norm"])
    assert learned[0] == learned[1]


def test_a_configuration_of_accelerate_that_compiles_models_renames_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stage, without it, has to find them."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    model = tiny.policy_model()
    assert set(learner_of(model).state()[0]["model"]) == {name for name, _ in model.named_parameters()}


def test_a_rate_of_0_moves_nothing() -> None:
    model = tiny.policy_model()
    before = weights(model)
    learner_of(model, weight_decay=0.5).step(items(model), nll, 0.0)
    assert same(before, weights(model))


def test_measuring_is_a_step_without_the_step() -> None:
    model = tiny.policy_model()
    played, learner, before = items(model), learner_of(model), weights(tiny.policy_model())
    measured = learner.measure(played, nll)
    assert same(before, weights(model))
    assert learner.step(played, nll, 1.0)["loss"] == pytest.approx(measured["loss"], rel=1e-5)


def test_a_loss_that_is_not_finite_stops_before_any_weight_changes() -> None:
    model = tiny.policy_model()
    played, learner = items(model), learner_of(model)
    learner.step(played, nll, 1.0)
    before, moments = weights(model), learner.state()[0]["optimizer"]
    moments = {name: value.clone() for name, value in moments.items()}

    def poisoned(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, _ = nll(reading, batch)
        return loss * float("nan"), {}

    with pytest.raises(TrainingError, match="loss is nan at optimiser step 1") as caught:
        learner.step(played, poisoned, 1.0)
    assert "learning rate" in caught.value.hint
    assert same(before, weights(model))
    assert same(moments, learner.state()[0]["optimizer"])
    assert learner.step_count == 1


def test_a_gradient_that_is_not_finite_stops_before_any_weight_changes() -> None:
    model = tiny.policy_model()
    played, learner, before = items(model), learner_of(model), weights(model)

    def steep(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, _ = nll(reading, batch)
        return (loss - loss.detach()).sqrt(), {}  # 0, with an infinite slope

    with pytest.raises(TrainingError, match=r"gradient's norm is (inf|nan)"):
        learner.step(played, steep, 1.0)
    assert same(before, weights(model))


def test_gradients_are_clipped_to_the_norm_of_the_weights_that_learn_here() -> None:
    """A gradient that something else has left on the value head is no part of the norm."""
    clean, spoiled = tiny.policy_model(), tiny.policy_model()
    played = items(clean)
    for parameter in spoiled.value_head.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    one = learner_of(clean).step(played, nll, 1.0)
    other = learner_of(spoiled).step(played, nll, 1.0)
    assert other["grad_norm"] == one["grad_norm"]
    assert same(weights(clean), weights(spoiled))


def test_the_state_of_a_learner_goes_through_a_checkpoint_bit_for_bit(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    model = tiny.policy_model()
    played, learner = items(model), learner_of(model, value_learning_rate=1e-3)

    def both(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return nll(reading, batch)[0] + (reading.values_T**2).mean(), {}

    learner.step(played, both, 1.0)
    stored = checkpoint.load(checkpoint.save(tmp_path, 1, *learner.state()))
    twin = learner_of(tiny.policy_model(seed=5), value_learning_rate=1e-3)
    twin.load_state(stored.tensors, stored.state)
    for _ in range(2):
        learner.step(played, both, 0.5)
        twin.step(played, both, 0.5)
    assert same(weights(model), weights(twin.policy_model))
    assert twin.step_count == 3


def test_weights_of_another_model_are_refused_by_name() -> None:
    model = tiny.policy_model()
    own = weights(model)
    name = "lm.model.embed_tokens.weight"
    with pytest.raises(CheckpointError, match=rf"only one of the two has {name}"):
        load_weights(model, {k: v for k, v in own.items() if k != name})
    with pytest.raises(CheckpointError, match=rf"{name} has shape \(3, 4\)"):
        load_weights(model, {**own, name: torch.zeros(3, 4)})
    assert same(own, weights(model))


def test_the_reference_is_swapped_in_and_out_exactly() -> None:
    model = tiny.policy_model()
    start, played = weights(model), items(model)
    reference, learner = Reference(model), learner_of(model)
    learner.step(played, nll, 1.0)
    moved = weights(model)
    assert not same(start, moved)
    with reference.in_place():
        assert same(start, weights(model))
    assert same(moved, weights(model))
    with pytest.raises(KeyError), reference.in_place():
        raise KeyError  # whatever happens inside, the trained weights come back
    assert same(moved, weights(model))
    learner.step(played, nll, 1.0)  # and it is these that go on learning
    assert not same(moved, weights(model))
    with reference.in_place():
        assert same(start, weights(model))


def critic_of(seed: int = 0, memory: int = 2) -> Critic:
    torch.manual_seed(seed)
    return Critic(ValueHead(8, 16), 1e-2, 3, memory, "7")


def turns(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    states = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return states, torch.nn.functional.layer_norm(states, (8,))[:, 0] * 2 - 1


def test_the_critic_learns_its_targets() -> None:
    critic = critic_of()
    critic.remember(*turns(900, 1))
    errors = [critic.fit() for _ in range(20)]
    assert errors[-1] < errors[0] / 10
    states, targets = turns(200, 2)
    found = critic.head(states).detach()
    assert float(((found - targets) ** 2).mean()) < float(targets.var()) / 10


def test_the_critic_keeps_the_last_iterations_only() -> None:
    critic = critic_of(memory=2)
    for seed in range(4):
        critic.remember(*turns(5, seed))
    assert [states.tolist() for states, _ in critic.kept] == [turns(5, seed)[0].tolist() for seed in (2, 3)]


def test_fitting_the_critic_leaves_no_gradient_behind() -> None:
    """It would count in the norm to which the policy's gradient is clipped."""
    critic = critic_of()
    critic.remember(*turns(50, 1))
    critic.fit()
    assert all(parameter.grad is None for parameter in critic.head.parameters())


def test_the_state_of_a_critic_goes_through_a_checkpoint_bit_for_bit(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    critic = critic_of()
    critic.remember(*turns(700, 1))
    critic.fit()
    tensors, state = critic.state()
    stored = checkpoint.load(checkpoint.save(tmp_path, 1, {"critic": tensors}, state))
    twin = critic_of(seed=9)
    twin.head.load_state_dict(critic.head.state_dict())  # the head is stored with the model
    twin.load_state(stored.tensors["critic"], stored.state)
    for one in (critic, twin):
        one.remember(*turns(700, 2))
        one.fit()
    assert same(weights(critic.head), weights(twin.head))
    assert critic.fits == twin.fits == 2


def test_a_critic_takes_over_what_another_has_learnt() -> None:
    critic, twin = critic_of(), critic_of()
    for number in range(3):
        for one in (critic, twin):
            one.remember(*turns(700, number))
        if number < 2:
            critic.fit()
            twin.take_over(critic.learnt(), critic.fits)
        else:  # from here on both fit, each on its own
            assert critic.fit() == twin.fit()
        assert same(weights(critic.head), weights(twin.head))


def test_a_critic_that_has_seen_nothing_has_a_state_too() -> None:
    critic = critic_of()
    twin = critic_of()
    twin.load_state(*critic.state())
    assert twin.fits == 0
    assert not twin.kept


def test_seeds_from_text_are_the_same_everywhere() -> None:
    # the first 7 bytes of SHA-256, from sha256sum: 775acbb2043a1a
    assert hash_seed("0/critic/0") == 0x775ACBB2043A1A
    assert hash_seed("0/critic/1") != hash_seed("0/critic/0")


def test_reading_gives_each_samples_nodes_in_the_order_of_the_samples() -> None:
    model = tiny.policy_model()
    played = items(model, 6)
    random.Random(0).shuffle(played)
    together = learner_of(model, micro_tokens=300).read(played, 1.0)
    for item, logits in zip(played, together, strict=True):
        (alone,) = learner_of(model).read([replace(item)], 1.0)
        n, c = alone.shape
        assert logits.shape[0] == n == sum(len(turn.branches) for turn in item.turns)
        assert torch.allclose(logits[:, :c], alone, atol=1e-5)


def test_gradients_are_gone_when_a_step_is_done() -> None:
    """Games are played then, for which a copy of all that learns would be in the way."""
    model = tiny.policy_model()
    learner_of(model).step(items(model), nll, 1.0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_loss_of_a_critic_is_the_mean_over_turns_whatever_its_batches() -> None:
    critic = Critic(ValueHead(8, 16), 0.0, 2, 2, "7")
    for count in (700, 30):
        critic.remember(*turns(count, count))
    states, targets = (torch.cat(part) for part in zip(*critic.kept, strict=True))
    expected = float(((critic.head(states) - targets) ** 2).mean().detach())
    assert critic.fit() == pytest.approx(expected, rel=1e-4)


def test_a_learner_has_the_settings_of_its_stage() -> None:
    changes = ("ppo.weight_decay=0.3", "ppo.max_grad_norm=0.7", "model.gradient_checkpointing=true")
    config = tiny.config(Path("none"), *changes, "model.attention=eager", "ppo.micro_tokens=777")
    learner = Learner.of(tiny.policy_model(), config.model, config.ppo)
    assert [group["weight_decay"] for group in learner.optimizer.param_groups] == [0.3, 0.0]
    assert (learner.max_grad_norm, learner.micro_tokens) == (0.7, 777)
    assert learner.recompute and learner.attention == "eager"


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), ValueError("a bug"), None])
def test_a_step_that_was_broken_off_leaves_nothing_to_the_next(trouble: BaseException | None) -> None:
    """Ctrl-C or an error in a later micro-batch; None: a loss that is not finite."""

    def broken(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        calls.append(1)
        if trouble is None:
            return nll(reading, batch)[0] * math.nan, {}
        if len(calls) == 2:
            raise trouble
        return nll(reading, batch)

    found = []
    for first in (False, True):
        model, calls = tiny.policy_model(), list[int]()
        learner = learner_of(model, micro_tokens=64)
        if first:
            with pytest.raises(TrainingError if trouble is None else type(trouble)):
                learner.step(items(model), broken, 1.0)
        found.append((learner.step(items(model), nll, 1.0), weights(model)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


def test_a_step_without_samples_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no samples to learn from"):
        learner_of(tiny.policy_model()).step([], nll, 1.0)


def test_a_loss_function_gives_a_pair_of_tensors() -> None:
    model = tiny.policy_model()
    for give, said in (
        (lambda loss: loss, r"gave Tensor, not a pair\nhint: return loss, \{\}"),
        (lambda loss: (loss, loss), "gave tuple, not a pair"),
        (lambda loss: (loss, {"nll": loss.item()}), "the metric 'nll' is a float"),
        (lambda loss: (loss.item(), {}), "the loss is a float"),
        (lambda loss: (loss[None], {}), r"the loss has the shape \(1,\)\nhint: sum it"),
        (lambda loss: (loss, {"nll": loss[None]}), r"the metric 'nll' has the shape \(1,\)"),
        (lambda loss: (loss.detach(), {}), "the loss has no gradient"),
        (lambda loss: (loss, {"loss": loss / 2}), "a metric is named 'loss'"),
        (lambda loss: (loss, {"grad_norm": loss}), "a metric is named 'grad_norm'"),
    ):
        with pytest.raises(TrainingError, match=said):
            learner_of(model).step(items(model), lambda *read, give=give: give(nll(*read)[0]), 1.0)  # type: ignore[misc]


def test_a_loss_that_reaches_nothing_that_learns_is_an_error() -> None:
    def value_loss(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return reading.values_T.square().sum(), {}

    model = tiny.policy_model()
    played = items(model)
    with pytest.raises(TrainingError, match="the loss reaches no weight that learns here") as caught:
        learner_of(model).step(played, value_loss, 1.0)
    assert "value_learning_rate" in caught.value.hint
    assert learner_of(model).measure(played, value_loss)["loss"] > 0
    assert learner_of(model, value_learning_rate=1e-3).step(played, value_loss, 1.0)["grad_norm"] > 0
    forced = [replace(item, turns=tuple(replace(turn, branches=()) for turn in item.turns)) for item in played]
    assert learner_of(model).step(forced, tiny.nll, 1.0)["grad_norm"] == 0  # there was no choice to learn from


def shown_and_played(kind: str, count: int = 3) -> tuple[PolicyModel, list[Sample], list[Sample]]:
    """(model, a teacher's games as the policy would have read them, games that the policy played)"""
    model = tiny.policy_model()
    policy = tiny.player(model, kind=kind)
    shown = [tokenise(episode, policy) for episode in tiny.scripted("gold", count)]
    seats = [games.make("toy") for _ in range(count)]
    played = collect(policy, seats, tiny.tasks(count), Decoding(), seed="0", context=640)
    return model, samples(shown), samples(played, [np.ones(episode.steps) for episode in played])


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "write"])
@pytest.mark.parametrize("micro_tokens", [64, 100_000])
def test_one_step_learns_from_games_that_were_played_and_shown(kind: str, micro_tokens: int) -> None:
    """In `aligned` they are read in different forms, which one micro-batch cannot have."""
    model, shown, played = shown_and_played(kind)
    learner = learner_of(model, micro_tokens=micro_tokens)
    together = learner.measure([*played, *shown], tiny.nll)["loss"]
    apart = learner.measure(played, tiny.nll)["loss"] + learner.measure(shown, tiny.nll)["loss"]
    assert together == pytest.approx(apart, rel=1e-4)
    assert math.isfinite(learner.step([*played, *shown], tiny.nll, 1.0)["grad_norm"])


@pytest.mark.parametrize("kind", ["choose", "aligned"])
def test_what_is_read_of_a_teachers_turns_is_what_sft_makes_likely(kind: str) -> None:
    model, shown, played = shown_and_played(kind)
    learner = learner_of(model)
    found, alone = learner.read([*shown, *played], 1.0), learner.read(shown, 1.0)
    assert all(torch.equal(one, other) for one, other in zip(found[: len(shown)], alone, strict=True))
    chosen = [branch.chosen for item in shown for turn in item.turns for branch in turn.branches]
    log_probs = [row for piece in found[: len(shown)] for row in piece]
    wanted = -sum(float(row[place]) for row, place in zip(log_probs, chosen, strict=True))
    cfg = SFTConfig(smoothing=0.0)
    loss = learner.measure(shown, partial(sft_loss, cfg=cfg, nodes=1))["nll"]
    assert wanted == pytest.approx(loss, rel=1e-4)
    if kind == "aligned":
        assert max(float(row.exp().sum()) for row in log_probs) < 0.999  # of a vocabulary the children are a part
        with pytest.raises(TrainingError, match="their log-probabilities are over the whole vocabulary"):
            learner.read(shown, 0.5)


def test_a_copy_is_read_in_the_number_format_of_the_model_that_learns() -> None:
    model, _, played = shown_and_played("choose")
    learner = Learner(
        model, learning_rate=1e-2, weight_decay=0.0, max_grad_norm=1.0, micro_tokens=2048, dtype="bfloat16"
    )
    copied = learner.read(played, 1.0, model=deepcopy(model))
    assert all(torch.equal(one, other) for one, other in zip(learner.read(played, 1.0), copied, strict=True))
    learner.products = torch.float32
    exact = learner.read(played, 1.0)
    assert not all(torch.equal(one, other) for one, other in zip(exact, copied, strict=True))


def test_a_copy_with_an_adapter_is_read_as_the_model_that_learns(tmp_path: Path) -> None:
    """The weights below an adapter are stored in 16 bits, and their products are of 16 bits in both."""
    config = tiny.config(tiny.save(tmp_path / "model"), "model.adapter=lora", "model.dtype=bfloat16")
    model = PolicyModel(load_model(config.model)[0])
    learner = Learner.of(model, config.model, config.ppo)
    played = items(model)
    copied = learner.read(played, 1.0, model=deepcopy(model))
    assert all(torch.equal(one, other) for one, other in zip(learner.read(played, 1.0), copied, strict=True))


def test_a_reference_for_some_samples_only_is_refused() -> None:
    model, _, played = shown_and_played("choose")
    some = [replace(played[0], reference=learner_of(model).read(played[:1], 1.0)[0]), *played[1:]]
    with pytest.raises(DataError, match=f"1 of {len(played)} samples have log-probabilities of the reference"):
        collate(some)


def test_an_algorithm_of_ones_own_is_kept_in_a_run(tmp_path: Path) -> None:
    """As in docs/python.md: `load_policy` finds it, and another process goes on as if nothing had ended."""
    config = tiny.config(tiny.save(tmp_path / "model"))

    def begun() -> tuple[Run, Learner]:
        lm, tokenizer = load_model(config.model)
        run = Run(tmp_path / "own", config)
        run.keep_prompt(Encoder(tokenizer, config.policy).fingerprint)
        run.begin("ppo")
        return run, Learner.of(PolicyModel(lm), config.model, config.ppo)

    run, learner = begun()
    played = items(learner.policy_model)
    learner.step(played, nll, 1.0)
    run.save("ppo", 1, *learner.state())
    loaded = load_policy(tmp_path / "own")
    assert loaded.name == "ppo"
    for one, other in zip(learner.read(played, 1.0), learner.read(played, 1.0, model=loaded.policy.model), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    again, twin = begun()
    resume = checkpoint.to_resume(again.checkpoints("ppo"))
    assert resume is not None
    stored = again.load(resume)
    twin.load_state(stored.tensors, stored.state)
    for one in (learner, twin):
        one.step(played, nll, 0.5)
    assert same(weights(learner.policy_model), weights(twin.policy_model))


def test_a_segment_that_is_longer_than_the_model_knows_is_refused() -> None:
    model = tiny.policy_model()
    known, item = model.positions, items(model)[0]
    assert known is not None
    long = replace(item, ids=(item.ids * (known // len(item.ids) + 1))[: known + 1])
    with pytest.raises(TrainingError, match=f"{known + 1} tokens is longer than the {known} positions"):
        learner_of(model).measure([long], lambda reading, batch: (reading.values_T.sum(), {}))
