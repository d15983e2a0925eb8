"""One iteration's update: on-policy at its first step, blind to failed games, and with a state that can be restored."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from grue.config import Config, PPOConfig, override
from grue.errors import ConfigError, TrainingError
from grue.models.policy_model import PolicyModel
from grue.rollout.pack import Sample, collate, samples
from grue.storage import checkpoint
from grue.train.credit import credit, discounted_return
from grue.train.critic import Critic
from grue.train.game_baseline import GameBaseline
from grue.train.learner import Learner
from grue.train.ppo_update import Update, Updater, _mean, explained_variance, ppo_loss, rollout_metrics, with_reference
from grue.train.reference import Reference
from grue.types import Branch, Episode, Observation, Outcome, Task, Turn


@cache
def played(count: int = 8) -> tuple[Episode, ...]:
    """Games of the tiny model with seed 0."""
    return tuple(tiny.rollouts(tiny.policy_model(), tiny.tasks(count)))


def settings(*changes: str) -> Config:
    """No limit on the KL: these games are learnt from more than once, and soon are not those of the present policy."""
    plain = ("ppo.warmup_iterations=0", "ppo.minibatches=2", "ppo.epochs=1", "ppo.target_kl=0")
    return tiny.config(Path("none"), *plain, *changes)


def updater_of(config: Config, model: PolicyModel, *, apart: bool = True) -> Updater:
    """`apart`: the critic is fitted apart from the language model."""
    cfg = config.ppo
    learner = Learner(
        model,
        learning_rate=cfg.learning_rate,
        value_learning_rate=0.0 if apart else cfg.value_learning_rate,
        weight_decay=0.0,
        max_grad_norm=1.0,
        micro_tokens=2048,
        dtype="float32",
    )
    critic = Critic(model.value_head, cfg.value_learning_rate, 2, 2, "0") if apart else None
    baseline = GameBaseline({}, cfg, "0") if cfg.game_baseline else None
    return Updater(config, learner, cfg.entropy_coef, critic, baseline)


def updated(
    episodes: Sequence[Episode], *changes: str, iteration: int = 0, apart: bool = True
) -> tuple[Update, PolicyModel]:
    """(what it did, the model after it) of one update of the model that played `played()`."""
    model = tiny.policy_model()
    config = settings(*changes) if apart else settings("ppo.value_passes=0", *changes)
    updater = updater_of(config, model, apart=apart)
    return updater.update(episodes, iteration, 1.0, Reference(model)), model


def update(
    episodes: Sequence[Episode], *changes: str, iteration: int = 0, apart: bool = True
) -> tuple[dict[str, float], PolicyModel]:
    """(metrics, the model after it) of one update of the model that played `played()`."""
    did, model = updated(episodes, *changes, iteration=iteration, apart=apart)
    return did.metrics, model


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def body(model: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights(model).items() if name.startswith("lm.")}


def test_an_updater_has_what_its_settings_ask_for() -> None:
    model, config = tiny.policy_model(), settings("ppo.game_baseline=true")
    learner = Learner.of(model, config.model, config.ppo, value_learning_rate=config.ppo.value_rate_in_loss)
    made = Updater.of(config, learner, {3: 5})
    assert made.critic is not None and made.baseline is not None and not learner.learns_values
    assert (made.critic.head, made.entropy_coef) == (model.value_head, config.ppo.entropy_coef)
    assert made.baseline._demo_steps == {3: 5} and made.critic.memory == config.ppo.value_memory
    changed = Updater.of(config, learner, entropy_coef=0.5, critic=made.critic)
    assert changed.entropy_coef == 0.5 and changed.critic is made.critic
    shared = settings("ppo.value_passes=0")
    plain = Learner.of(model, config.model, shared.ppo)
    learning = Learner.of(model, config.model, shared.ppo, value_learning_rate=shared.ppo.value_rate_in_loss)
    assert Updater.of(shared, learning).critic is None and learning.learns_values
    # advantages that use no critic need none
    alone = settings("ppo.group_weight=1", "ppo.plays_per_game=2", "ppo.game_baseline=false")
    assert Updater(alone, plain, 0.0).critic is None
    for asked, by, said in (
        (settings(), learner, "ppo.value_passes=8 asks for a critic"),
        (shared, plain, "this learner does not move it"),
        (config, learner, "ppo.game_baseline asks for a baseline"),
    ):
        with pytest.raises(ConfigError, match=said) as found:
            Updater(asked, by, 0.0)
        assert "Updater.of" in found.value.hint or "value_rate_in_loss" in found.value.hint


def test_an_advantage_of_ones_own_is_what_is_learnt() -> None:
    """Nothing is learnt from zeros, and the settings' own credit from a function that gives just that."""
    start, cfg, asked = body(tiny.policy_model()), settings("ppo.kl_coef=0", "ppo.entropy_coef=0"), []

    def times(
        factor: float, episodes: Sequence[Episode], ppo: PPOConfig, values: Sequence[np.ndarray], divisor: float
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        asked.append([e.task.seed for e in episodes])
        advantages, targets = credit(episodes, ppo, values, divisor)
        return [factor * each for each in advantages], targets

    found = []
    for factor in (1.0, 0.0, -1.0):
        model = tiny.policy_model()
        updater = Updater.of(cfg, Learner.of(model, cfg.model, cfg.ppo), credit_of=partial(times, factor))
        failed = replace(played()[0], outcome=Outcome.FAILED)
        updater.update([*played(), failed], 0, 1.0, Reference(model))
        found.append(body(model))
    assert asked == 3 * [[e.task.seed for e in played()]]
    assert same(found[1], start) and not same(found[0], start) and not same(found[0], found[2])
    model = tiny.policy_model()
    Updater.of(cfg, Learner.of(model, cfg.model, cfg.ppo)).update(played(), 0, 1.0, Reference(model))
    assert same(body(model), found[0])


def test_a_divergence_from_nothing_is_an_error() -> None:
    items, cfg = samples(played()[:2]), PPOConfig(kl_coef=0.02)
    learner = updater_of(settings(), tiny.policy_model()).learner
    with pytest.raises(TrainingError, match=r"ppo.kl_coef=0\.02 needs the reference's log-probabilities") as found:
        learner.step(items, lambda r, b: ppo_loss(r, b, cfg, 10, 0.0, policy=True), 1.0)
    assert "with_reference" in found.value.hint
    known = with_reference(items, learner.read(items, 1.0))
    assert learner.step(known, lambda r, b: ppo_loss(r, b, cfg, 10, 0.0, policy=True), 1.0)["kl_ref"] == 0


def test_at_the_first_step_the_policy_is_the_one_that_played() -> None:
    metrics, _ = update(played(), "ppo.minibatches=1")
    assert metrics["engine_gap"] < 1e-5
    assert metrics["kl_old"] == pytest.approx(0, abs=1e-7)
    assert metrics["kl_ref"] == pytest.approx(0, abs=1e-6)
    assert metrics["clip_fraction"] == 0
    # the ratio is 1, so the surrogate is minus the mean advantage, which is normalised to 0
    assert metrics["policy_loss"] == pytest.approx(0, abs=1e-5)


def test_the_gap_is_that_of_the_first_step_and_the_kl_that_of_the_last() -> None:
    metrics, _ = update(played(), "ppo.epochs=3", "ppo.minibatches=4", "ppo.learning_rate=0.003")
    assert metrics["updates"] == 12
    assert metrics["engine_gap"] < 1e-5
    assert metrics["kl_old"] > 1e-4


@pytest.mark.parametrize("group_weight", [0, 1])
def test_games_that_all_returned_the_same_do_not_move_the_policy(group_weight: int) -> None:
    """The entropy bonus alone moved it by 0.9 nats in an iteration: AdamW makes full steps of small gradients."""
    nothing = [
        replace(e, turns=tuple(replace(turn, reward=0.0, value=0.0) for turn in e.turns), last_value=0.0)
        for e in (*played()[:4], *played()[:4])
    ]
    groups = (f"ppo.group_weight={group_weight}", "ppo.plays_per_game=2", "ppo.episodes_per_iteration=8")
    changes = (*groups, "ppo.entropy_coef=0.01", "ppo.kl_coef=0", "ppo.learning_rate=0.01")
    start = body(tiny.policy_model())
    metrics, model = update(nothing, *changes)
    assert metrics["updates"] == 0 and same(start, body(model))
    told = [replace(nothing[0], turns=(replace(nothing[0].turns[0], reward=1.0), *nothing[0].turns[1:])), *nothing[1:]]
    assert not same(start, body(update(told, *changes)[1]))


def test_the_ratio_may_be_the_mean_over_the_decisions_of_a_turn() -> None:
    """Of a policy that has moved by log 1.5 a turn: 1.5 to the power of 1 over the decisions, which is less clipped."""
    moved = [
        replace(e, turns=tuple(replace(turn, log_prob=turn.log_prob - math.log(1.5)) for turn in e.turns))
        for e in played()
    ]
    counts = [max(1, len(turn.branches)) for e in moved for turn in e.turns]
    assert len({*counts}) > 1
    turn, decision = (update(moved, "ppo.minibatches=1", f"ppo.ratio={ratio}")[0] for ratio in ("turn", "decision"))
    assert turn["clip_fraction"] == 1
    assert decision["clip_fraction"] == pytest.approx(np.mean([1.5 ** (1 / n) > 1.2 for n in counts]), abs=1e-6)
    assert decision["kl_old"] == pytest.approx(turn["kl_old"])  # what is measured is the policy


def test_turns_are_counted_as_often_as_they_are_read() -> None:
    steps = sum(episode.steps for episode in played())
    assert updated(played(), "ppo.epochs=3")[0].turns == 3 * steps


def test_a_wider_bound_upwards_clips_fewer_turns() -> None:
    def after(*settings: str) -> dict[str, float]:
        return update(
            played(), "ppo.epochs=3", "ppo.learning_rate=0.01", "ppo.target_kl=0", "ppo.clip=0.05", *settings
        )[0]

    plain, same_bound, wider = after(), after("ppo.clip_high=0.05"), after("ppo.clip_high=10")
    assert same_bound == plain
    assert wider["policy_loss"] != plain["policy_loss"]
    assert wider["clip_fraction"] < plain["clip_fraction"]


def test_dropout_is_off_while_the_policy_learns_from_what_it_did() -> None:
    """Else the ratio would not be 1 at the first step. The model here drops half of all attention."""
    config, model = settings("ppo.minibatches=1"), tiny.policy_model()
    model.lm.config.attention_dropout = 0.5
    for layer in model.lm.get_decoder().layers:
        layer.self_attn.attention_dropout = 0.5
    updater = updater_of(config, model)
    metrics = updater.update(played(), 0, 1.0, Reference(model)).metrics
    assert metrics["engine_gap"] < 1e-5


def test_the_entropy_of_the_update_is_that_of_the_play() -> None:
    metrics, _ = update(played(), "ppo.minibatches=1")
    turns = [turn for episode in played() for turn in episode.turns]
    assert metrics["entropy"] == pytest.approx(np.mean([turn.entropy for turn in turns]), abs=1e-5)


def test_actions_with_an_advantage_become_likelier_and_the_others_less_likely() -> None:
    model, config = tiny.policy_model(), settings("ppo.kl_coef=0", "ppo.entropy_coef=0", "ppo.learning_rate=0.001")
    items = samples(played())
    draw = random.Random(0)
    items = [replace(s, advantages=tuple(draw.choice((-1.0, 1.0)) for _ in s.turns)) for s in items]
    turns = sum(len(s.turns) for s in items)

    def log_probs() -> np.ndarray:
        batch = collate(items)
        with torch.no_grad():
            found = torch.log_softmax(model(*batch.inputs).logits_NC, -1).gather(1, batch.chosen_N[:, None])
        return torch.zeros(turns).index_add(0, batch.node_turn_N, found[:, 0]).numpy()

    before, learner = log_probs(), updater_of(config, model).learner
    for _ in range(3):
        learner.step(items, lambda r, b: ppo_loss(r, b, config.ppo, turns, 0.0, policy=True), 1.0)
    gained = (log_probs() - before) * np.array([a for s in items for a in s.advantages])
    assert gained.mean() > 0.01


def broken(seed: int = 900) -> Episode:
    """A game that crashed after a turn with an absurd reward: nothing of it may be learned."""
    one = played()[0]
    turns = (replace(one.turns[0], reward=1e6, value=1e6),)
    return replace(one, task=replace(one.task, seed=seed), turns=turns, outcome=Outcome.FAILED, error="Java is gone")


def test_failed_games_are_left_out_of_the_update() -> None:
    clean, with_none = update(played(), "ppo.normalise_rewards=true")
    mixed, with_some = update([broken(), *played(), broken()], "ppo.normalise_rewards=true")
    assert same(weights(with_none), weights(with_some))
    assert mixed == clean


def test_what_a_policy_wrote_without_a_choice_and_in_vain_is_learnt_from() -> None:
    """With a small policy.top_p a reply may have no branches; the critic has to know where it leads."""
    forced = [
        replace(episode, turns=tuple(replace(turn, branches=(), valid=False, log_prob=0.0) for turn in episode.turns))
        for episode in played()
    ]
    metrics, model = update(forced)
    assert metrics["entropy"] == 0 and not same(weights(model), weights(tiny.policy_model()))
    assert same(body(model), body(tiny.policy_model()))
    turns = sum(len(episode.turns) for episode in forced)
    zeros = [np.zeros(len(episode.turns)) for episode in forced]
    assert sum(len(item.turns) for item in samples(forced, zeros, zeros)) == turns
    assert samples(forced) == []  # of a teacher they would be context


def test_a_turn_without_a_choice_has_a_ratio_of_1_whatever_it_is_divided_by() -> None:
    four = played()[:4]
    forced = [replace(e, turns=tuple(replace(turn, branches=(), log_prob=0.0) for turn in e.turns)) for e in four]
    metrics, _ = update([*played()[4:], *forced], "ppo.ratio=decision", "ppo.minibatches=1")
    assert all(map(math.isfinite, metrics.values())) and metrics["clip_fraction"] == 0


def test_the_cut_into_micro_batches_changes_no_loss() -> None:
    found = []
    for tokens in (2048, 1):
        model = tiny.policy_model()
        updater = updater_of(settings("ppo.value_passes=0", "ppo.kl_coef=0.1"), model, apart=False)
        updater.learner.micro_tokens = tokens
        found.append((updater.update(played(), 0, 1.0, Reference(model)).metrics, weights(model)))
    (whole, after), (cut, after_cut) = found
    assert cut == pytest.approx(whole, rel=1e-3, abs=1e-5)
    assert all(torch.allclose(after[name], after_cut[name], atol=1e-5) for name in after)


def test_the_kl_from_the_reference_is_a_penalty() -> None:
    model, other = tiny.policy_model(), tiny.policy_model(5)
    items = samples(list(played()), *[[np.ones(e.steps) for e in played()] for _ in range(2)])
    learner = updater_of(settings(), model).learner
    batch = collate(with_reference(items, learner.read(items, 1.0, model=other)))
    turns, reading = len(batch.turn_row_T), model(*batch.inputs)
    cfg = settings("ppo.kl_coef=0").ppo
    held = cfg.model_copy(update={"kl_coef": 0.5})
    (free, _), (near, metrics) = (ppo_loss(reading, batch, c, turns, 0.0, policy=True) for c in (cfg, held))
    assert metrics["kl_ref"] > 0.01
    assert (near - free).item() == pytest.approx(0.5 * metrics["kl_ref"].item(), rel=1e-3)


def test_half_of_the_games_may_fail_but_no_more() -> None:
    four = played()[:4]
    update([*four, *[broken()] * 4])
    for game, hint in (("cookingworld", "grue doctor checks Java"), ("toy", "grue check-game toy ")):
        with pytest.raises(TrainingError, match="5 of 9 games failed in iteration 3: Java is gone") as caught:
            update([*four, *[broken()] * 5], f"game.name={game}", iteration=3)
        assert caught.value.hint.startswith(hint)


def test_when_every_game_fails_the_error_says_so() -> None:
    """Also where the metrics of the play, which have nothing to be means of, come first."""
    with pytest.raises(TrainingError, match="2 of 2 games failed"):
        update([broken(), broken()])
    metrics = rollout_metrics([broken(), broken()], 1.0, PPOConfig())
    assert (metrics["failed"], metrics["episodes"]) == (2, 2)


def test_rollout_metrics_by_hand() -> None:
    seen = Observation("", "", "", None, 0.5)

    def game(outcome: Outcome, steps: int) -> Episode:
        final = replace(seen, score=1.0 if outcome is Outcome.WON else 0.5)
        decided = Turn(seen, "", 0.0, branches=(Branch(0, (1, 2), 0),))
        turns = (Turn(seen, "", 0.0), *(decided,) * (steps - 1))
        return Episode(Task("toy", "", "train", 0, 12), "choose", turns, outcome, final)

    games = [game(Outcome.WON, 3), game(Outcome.LOST, 5), game(Outcome.LIMIT, 12), game(Outcome.WON, 4)]
    found = rollout_metrics([*games, replace(game(Outcome.FAILED, 6), error="x")], 2.0, PPOConfig())
    assert (found["success"], found["lost"], found["limit"]) == (0.5, 0.25, 0.25)
    assert found["score"] == 0.75
    assert found["steps_mean"] == 6
    assert found["forced"] == 4 / 24
    assert (found["failed"], found["episodes"]) == (1, 5)
    assert found["env_steps_per_s"] == 15  # all 30 steps were played


@pytest.mark.parametrize("apart", [True, False])
def test_while_the_critic_warms_up_the_policy_stands_still(apart: bool) -> None:
    start = tiny.policy_model()
    metrics, model = update(played(), "ppo.warmup_iterations=1", apart=apart)
    assert same(body(start), body(model))
    assert not same(weights(start.value_head), weights(model.value_head))
    metrics, model = update(played(), "ppo.warmup_iterations=1", iteration=1, apart=apart)
    assert not same(body(start), body(model))
    assert metrics["value_loss"] > 0


def test_what_only_a_critic_learns_from_is_read_once() -> None:
    changes = ("ppo.warmup_iterations=1", "ppo.epochs=3")
    assert update(played(), *changes)[0]["passes"] == 1
    assert update(played(), *changes, apart=False)[0]["passes"] == 3
    assert update(played(), *changes, iteration=1)[0]["passes"] == 3


def test_a_critic_fitted_apart_keeps_each_turn_once_however_many_passes_there_are() -> None:
    model = tiny.policy_model()
    updater = updater_of(settings("ppo.epochs=3"), model)
    updater.update(played(), 0, 1.0, Reference(model))
    assert updater.critic is not None
    assert len(updater.critic.kept[0][1]) == sum(episode.steps for episode in played())


def test_a_step_that_float16_leaves_out_does_not_hide_the_gradients_of_the_others() -> None:
    assert _mean([1.0, math.nan, 3.0]) == 2.0
    assert math.isnan(_mean([math.nan]))


def test_the_critics_warm_up_takes_at_most_half_of_the_iterations() -> None:
    start, changes = body(tiny.policy_model()), ("ppo.warmup_iterations=3", "ppo.iterations=3")
    assert same(start, body(update(played(), *changes, iteration=0)[1]))
    assert not same(start, body(update(played(), *changes, iteration=1)[1]))
    assert not same(start, body(update(played(), "ppo.warmup_iterations=3", "ppo.iterations=1")[1]))


def test_a_value_loss_that_shares_the_trunk_moves_it_only_after_the_warm_up() -> None:
    def after(shared: bool) -> list[dict[str, torch.Tensor]]:
        """The language model before, after the warm-up, and after an iteration in which the policy learns too."""
        model = tiny.policy_model()
        model.value_shares_trunk = shared
        own = ("ppo.value_passes=0", f"ppo.value_shares_trunk={shared}", "ppo.warmup_iterations=1")
        updater, reference, found = updater_of(settings(*own), model, apart=False), Reference(model), [body(model)]
        for iteration in range(2):
            updater.update(played(), iteration, 1.0, reference)
            found.append(body(model))
        return found

    start, warm, moved = after(shared=True)
    assert same(start, warm)
    assert not same(moved, after(shared=False)[2])


def test_a_critic_fitted_apart_does_not_touch_the_policy() -> None:
    """The policy's weights after an update do not depend on how the critic is fitted after it."""
    _, one = update(played())
    model = tiny.policy_model()
    updater = updater_of(settings(), model)
    assert updater.critic is not None
    updater.critic.passes = 9
    updater.update(played(), 0, 1.0, Reference(model))
    assert same(body(one), body(model))
    assert not same(weights(one.value_head), weights(model.value_head))


def test_of_free_text_the_reference_is_read_a_minibatch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the whole vocabulary for each token. The update is the same."""
    sizes: list[int] = []
    read = Learner.read

    def noted(learner: Learner, items: Sequence[Sample], temperature: float) -> list[torch.Tensor]:
        sizes.append(len(items))
        return read(learner, items, temperature)

    monkeypatch.setattr(Learner, "read", noted)
    found = []
    for kind in ("choose", "write"):
        model = tiny.policy_model()
        updater = updater_of(settings("ppo.kl_coef=0.5", "ppo.epochs=2", f"policy.kind={kind}"), model)
        reference = Reference(model)
        metrics = [updater.update(played(), iteration, 1.0, reference).metrics for iteration in range(2)]
        found.append((metrics[1]["kl_ref"], weights(model)))
    assert sizes == [8] * 2 + [4] * 8  # iterations; minibatches, of two passes each
    (one, before), (other, after) = found
    assert one > 1e-6 and other == pytest.approx(one, rel=1e-3)
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)


def test_the_kl_from_the_reference_grows_from_0_and_is_watched_where_it_costs_nothing() -> None:
    model = tiny.policy_model()
    updater, reference = updater_of(settings("ppo.kl_coef=0.1", "ppo.learning_rate=0.003"), model), Reference(model)
    found = [updater.update(played(), i, 1.0, reference).metrics["kl_ref"] for i in range(3)]
    assert 0 <= found[0] < found[1] < found[2]
    assert "kl_ref" in update(played(), "ppo.kl_coef=0", iteration=5)[0]
    assert "kl_ref" not in update(played(), "ppo.kl_coef=0", iteration=6)[0]


@pytest.mark.parametrize("kind", ["write", "think"])
def test_of_free_text_no_reference_is_built_to_be_watched_only(kind: str) -> None:
    """It would hold a number for each token and entry of the vocabulary."""
    assert "kl_ref" not in update(played(), "ppo.kl_coef=0", f"policy.kind={kind}", iteration=5)[0]
    assert "kl_ref" in update(played(), "ppo.kl_coef=0.1", f"policy.kind={kind}", iteration=5)[0]


def test_passes_stop_above_the_target_kl() -> None:
    wild = ("ppo.epochs=6", "ppo.learning_rate=0.02", "ppo.kl_coef=0")
    assert update(played(), *wild, "ppo.target_kl=0.01")[0]["passes"] < 6
    assert update(played(), *wild, "ppo.target_kl=0")[0]["passes"] == 6


@pytest.mark.parametrize("apart", [True, False])
def test_the_target_kl_stops_the_policy_inside_a_pass(apart: bool) -> None:
    """The first minibatch is that of the play, so it is the second at which the KL can be seen, and after its step."""
    wild = ("ppo.minibatches=8", "ppo.learning_rate=0.02", "ppo.kl_coef=0")
    metrics, model = update(played(), *wild, "ppo.target_kl=0.001", apart=apart)
    assert (metrics["updates"], metrics["passes"]) == (2, 1)
    assert metrics["kl_old"] > 0.001
    assert metrics["learning_rate"] == pytest.approx(0.02)  # a mean over the steps, not over what was measured
    free, other = update(played(), *wild, "ppo.target_kl=0", apart=apart)
    assert free["updates"] == 8
    assert not same(body(model), body(other))


def test_where_the_target_kl_stops_the_policy_the_critic_still_sees_every_turn() -> None:
    model = tiny.policy_model()
    wild = ("ppo.minibatches=8", "ppo.epochs=2", "ppo.learning_rate=0.02", "ppo.kl_coef=0", "ppo.target_kl=0.001")
    updater = updater_of(settings(*wild), model)
    assert updater.update(played(), 0, 1.0, Reference(model)).metrics["updates"] == 2
    assert updater.policy_steps == 2
    assert updater.critic is not None
    assert len(updater.critic.kept[0][1]) == sum(episode.steps for episode in played())


def test_the_target_kl_does_not_stop_the_critics_warm_up() -> None:
    """The policy stands still, and what is left of a gap is rounding."""
    far = [replace(e, turns=tuple(replace(turn, log_prob=turn.log_prob - 1) for turn in e.turns)) for e in played()]
    changes = ("ppo.warmup_iterations=1", "ppo.epochs=2", "ppo.target_kl=0.001")
    assert update(far, *changes, apart=False)[0]["updates"] == 4
    metrics, _ = update(far, *changes)
    assert (metrics["updates"], metrics["passes"]) == (0, 1)  # the whole of the one pass that its critic needs


def test_the_policys_rate_rises_over_its_first_steps() -> None:
    """The steps in which only the critic learns do not count."""
    model = tiny.policy_model()
    changes = ("ppo.iterations=9", "ppo.rate_warmup=4", "ppo.warmup_iterations=1", "ppo.learning_rate=0.001")
    updater, reference = updater_of(settings(*changes), model), Reference(model)
    rates = [
        updater.update(played(), i, factor, reference).metrics["learning_rate"]
        for i, factor in enumerate((1, 1, 1, 0.5))
    ]
    assert rates == pytest.approx([0, 0.001 * (1 / 4 + 2 / 4) / 2, 0.001 * (3 / 4 + 1) / 2, 0.0005])


def test_a_low_rate_at_the_first_step_moves_little() -> None:
    start = weights(tiny.policy_model())

    def moved(*changes: str) -> float:
        after = weights(update(played(), "ppo.minibatches=1", "ppo.iterations=99", *changes)[1])
        return max((after[name] - start[name]).abs().max().item() for name in start if name.startswith("lm."))

    assert moved("ppo.rate_warmup=10") == pytest.approx(moved() / 10, rel=0.05)


def test_in_a_short_training_the_rate_rises_over_half_of_the_steps() -> None:
    few = ("ppo.iterations=3", "ppo.warmup_iterations=1", "ppo.epochs=2", "ppo.minibatches=3")
    assert [settings(*few, f"ppo.rate_warmup={steps}").ppo.rate_warmup_steps for steps in (0, 5, 6, 12)] == [0, 5, 6, 6]


def test_the_entropy_bonus_is_steered_towards_its_target() -> None:
    """By a tenth at each update, between 0.0001 and 0.1. The entropy of these games is between 0.001 and 5."""

    def steered(coef: float, *target: str) -> float:
        config, model = settings(f"ppo.entropy_coef={coef}", *target), tiny.policy_model()
        updater = updater_of(config, model)
        assert updater.update(played(), 0, 1.0, Reference(model)).metrics["entropy_coef"] == coef  # that of this update
        return updater.entropy_coef

    up, down = "ppo.entropy_target=5", "ppo.entropy_target=0.001"
    assert steered(0.02) == 0.02
    assert steered(0.02, up) == pytest.approx(0.022)
    assert steered(0.02, down) == pytest.approx(0.02 / 1.1)
    assert steered(0.099, up) == 0.1
    assert steered(0.5, up) == 0.5  # as was asked for
    assert steered(0.0001, down) == 1e-4


def won(seed: int, steps: int) -> Episode:
    """A win in `steps` turns, cut out of a played game."""
    source = next(episode for episode in played() if episode.steps >= steps)
    return replace(source, task=replace(source.task, seed=seed), turns=source.turns[:steps], outcome=Outcome.WON)


def test_rewards_are_divided_by_the_running_deviation_of_returns() -> None:
    """That of all games so far, these included; what has been kept before stays as it was."""
    model, config = tiny.policy_model(), settings("ppo.normalise_rewards=true", "ppo.game_baseline=true", "ppo.lam=1")
    updater, reference = updater_of(config, model), Reference(model)
    assert updater.baseline is not None
    games = [*played()[:6], won(40, 3), won(41, 4)]
    rich = [replace(e, turns=tuple(replace(t, reward=t.reward * 1000, value=0.0) for t in e.turns)) for e in games]
    updater.update(rich, 0, 1.0, reference)
    returns = [discounted_return(e, config.ppo) for e in rich]
    assert updater.divisor == pytest.approx(np.std(returns)) and updater.divisor > 10
    assert updater.critic is not None
    targets = updater.critic.kept[0][1].clone()
    assert float(targets.max()) == pytest.approx(max(returns) / updater.divisor, rel=0.1)
    middle = np.mean(returns) / updater.divisor
    assert updater.baseline.plays[40][1] == pytest.approx(returns[-2] / updater.divisor - middle, rel=1e-5)
    updater.update([*rich[:6], won(42, 1)], 1, 1.0, reference)
    more = [discounted_return(e, config.ppo) for e in (*rich[:6], won(42, 1))]
    assert updater.divisor == pytest.approx(np.std([*returns, *more]))
    assert torch.equal(updater.critic.kept[0][1], targets)


def test_advantages_are_against_the_baseline() -> None:
    """One that has learnt the returns of these games changes what is learnt from them, as `credit` says."""
    config = settings("ppo.game_baseline=true", "ppo.minibatches=1", "ppo.normalise_rewards=true")
    updater = updater_of(config, tiny.policy_model())
    assert updater.baseline is not None
    _, targets = credit(played(), config.ppo)
    for _ in range(30):
        updater.baseline.learn(played(), targets)
    values = updater.baseline.values(played())
    read: list[torch.Tensor] = []
    step = updater.learner.step
    updater.learner.step = lambda items, loss_of, rate: step(  # type: ignore[method-assign]
        items, lambda reading, batch: (read.append(batch.advantages_T), loss_of(reading, batch))[1], rate
    )
    metrics = updater.update(played(), 0, 1.0, Reference(updater.learner.policy_model)).metrics
    advantages, _ = credit(played(), config.ppo, values, updater.divisor)
    plain, _ = credit(played(), config.ppo, None, updater.divisor)
    expected, other = (np.sort(np.concatenate(found)) for found in (advantages, plain))
    assert torch.cat(read).sort().values.numpy() == pytest.approx(expected, abs=1e-5)
    assert abs(expected - other).max() > 0.01
    said = explained_variance(played(), config.ppo, values, updater.divisor)
    assert metrics["baseline_explained_variance"] == pytest.approx(said)
    assert said != pytest.approx(explained_variance(played(), config.ppo, values), abs=0.01)


def test_an_updater_goes_through_a_checkpoint_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    changes = ("ppo.entropy_target=1", "ppo.normalise_rewards=true", "ppo.rate_warmup=9")
    games = [*played()[:6], won(40, 3), won(41, 4)]
    one = tiny.policy_model()
    mine, reference = updater_of(settings(*changes), one), Reference(one)
    mine.update(games, 0, 1.0, reference)
    (tensors, state), (more, rest) = mine.learner.state(), mine.state()
    stored = checkpoint.load(checkpoint.save(tmp_path, 1, tensors | more, {**state, **rest}))
    json.dumps(stored.state)

    two = tiny.policy_model()
    theirs, their_reference = updater_of(settings(*changes), two), Reference(two)
    theirs.learner.load_state(stored.tensors, stored.state)
    theirs.load_state(stored.tensors, stored.state)
    results = [u.update(games, 1, 0.7, r) for u, r in ((mine, reference), (theirs, their_reference))]
    assert results[0] == results[1]
    assert same(weights(one), weights(two))


def test_settings_can_be_changed_from_text() -> None:
    """The settings used above are those of the configuration, not names of their own."""
    assert override(settings(), ["ppo.entropy_coef=0.5"], None).ppo.entropy_coef == 0.5


def test_turns_below_and_above_the_bounds_are_clipped() -> None:
    """Another model's view of these games: some of its actions are likelier than they were, some less likely."""
    zeros = [np.zeros(episode.steps) for episode in played()]
    batch = collate(samples(list(played()), zeros, zeros))
    turns = len(batch.turn_row_T)
    with torch.no_grad():
        reading = tiny.policy_model(2)(*batch.inputs)
        chosen_N = torch.log_softmax(reading.logits_NC, -1).gather(1, batch.chosen_N[:, None]).squeeze(1)
        log_probs_T = torch.zeros(turns).index_add(0, batch.node_turn_N, chosen_N)
        cfg = PPOConfig(clip=0.2, kl_coef=0.0)
        _, metrics = ppo_loss(reading, batch, cfg, turns, 0.0, policy=True)
    ratio_T = (log_probs_T - batch.old_log_probs_T).exp()
    low, high = int((ratio_T < 0.8).sum()), int((ratio_T > 1.2).sum())
    assert low > 0 < high
    assert float(metrics["clip_fraction"]) == pytest.approx((low + high) / turns)
