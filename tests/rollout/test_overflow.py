"""A game in which the model's numbers overflow, as they may in float16, is lost alone."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from grue import games
from grue.engine.engine import Engine
from grue.engine.tree import candidate_tree
from grue.errors import ModelError
from grue.models.policy_model import PolicyModel
from grue.policy.actor import Actor
from grue.policy.decision import Decoding, Query
from grue.policy.policy import make_policy
from grue.policy.weigh import CachedText
from grue.prompts.tokens import Encoder
from grue.rollout.collect import collect
from grue.rollout.player import PolicyPlayer
from grue.rollout.seat import Seat
from grue.train.critic import Critic
from grue.train.game_baseline import GameBaseline
from grue.train.learner import Learner
from grue.train.ppo_update import Updater
from grue.train.reference import Reference
from grue.types import Candidate, Episode, Outcome

SHORT, LONG, OVERFLOWS = [*range(20, 25)], [*range(50, 75)], 300


def overflowing(token: int) -> PolicyModel:
    """A tiny model in which `token`, and no other, overflows float16, in its first layer."""
    model = tiny.policy_model(spread=0.1, layers=3)
    lm: Any = model.lm
    lm.lm_head.weight = torch.nn.Parameter(lm.lm_head.weight.detach().clone())
    layer, embeddings = lm.model.layers[0], lm.model.embed_tokens.weight
    with torch.no_grad():
        embeddings[:, 31], embeddings[token, 31] = 0, 50
        layer.self_attn.o_proj.weight[31] = 0
        for weight in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
            weight[0] = 0
            weight[0, 31] = 100
        layer.mlp.down_proj.weight[:, 0] = 1e-5 * torch.randn(32)
    return model


def playing(token: int = OVERFLOWS) -> PolicyModel:
    return Actor(overflowing(token), "float16").model


def finite(states: torch.Tensor) -> list[bool]:
    return states.isfinite().all(-1).tolist()  # type: ignore[no-any-return]


def test_the_next_text_in_a_row_of_the_cache_is_not_spoilt() -> None:
    lm = playing().lm
    engine, fresh = Engine(lm, 2, 128), Engine(lm, 2, 128)
    assert finite(engine.feed([0, 1], [[*LONG[:10], OVERFLOWS, *LONG[10:]], LONG])) == [False, True]
    engine.reset(0)
    fresh.feed([1], [LONG])
    for row in (engine, fresh):
        row.feed([0], [SHORT])
    # beside a longer row, masked columns of the text before are read
    assert torch.equal(engine.feed([0, 1], [[7], [8]]), fresh.feed([0, 1], [[7], [8]]))


def test_a_text_that_is_shown_is_read_anew_after_an_overflow() -> None:
    """What comes before the overflow in the same pass has seen it, too."""
    model, none = playing(), candidate_tree([Candidate((70, 71), 1.0)])
    tree = candidate_tree([Candidate((60, 61, OVERFLOWS, 62), 1.0), Candidate((70, 71, 72), 1.0)])
    text = CachedText(model)
    assert not all(finite(text.read(SHORT, tree)))
    assert torch.equal(text.read([*SHORT, 70, 7], none), CachedText(model).read([*SHORT, 70, 7], none))


def test_a_listed_action_that_overflows_is_no_traceback() -> None:
    policy = make_policy(playing(), Encoder(tiny.tokenizer(), tiny.config(Path("none"), "policy.kind=aligned").policy))
    actions = (tiny.tokenizer().decode([OVERFLOWS]) + " east", "look", "open sack")
    query = Query(0, actions, len(LONG), random.Random(0), LONG)
    (decision,) = policy.act(Engine(policy.model.lm, 1, 128), [query], Decoding())
    assert not decision.is_finite and decision.action in actions


def collected(token: int, slots: int, *settings: str, values_limit: bool = False) -> list[Episode]:
    config = tiny.config(Path("none"), *settings)
    policy = make_policy(playing(token), Encoder(tiny.tokenizer(), config.policy))
    seats = [games.make("toy") for _ in range(slots)]
    return collect(
        policy, seats, tiny.tasks(32), Decoding(), seed="0", context=512, values_limit=values_limit, player="x"
    )


def rare(episodes: list[Episode]) -> int:
    """A token that few of the games show, and none in its actions."""
    told = {action for episode in episodes for turn in episode.turns for action in turn.observation.actions or ()}
    spoken = {token for action in told for token in tiny.encoder().action(action)}
    shown = [{token for segment in episode.segments for token in segment.ids} for episode in episodes]
    counts = {token: sum(token in one for one in shown) for token in set.union(*shown) - spoken}
    return min(token for token, count in counts.items() if 3 <= count <= 10)


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "write", "think"])
def test_only_the_game_that_overflows_fails(kind: str) -> None:
    settings = (f"policy.kind={kind}", "policy.thought_tokens=3", "policy.reply_tokens=4")
    token = rare(collected(OVERFLOWS, 8, *settings))
    by_slots = [collected(token, slots, *settings) for slots in (1, 8, 32)]
    failed = [[episode.failed for episode in episodes] for episodes in by_slots]
    assert failed[0] == failed[1] == failed[2]
    assert 0 < sum(failed[0]) < 32
    for episode, lost in zip(by_slots[1], failed[1], strict=True):
        assert all(math.isfinite(turn.value) and math.isfinite(turn.log_prob) for turn in episode.turns)
        assert ("not finite; in float16 numbers overflow: set model.dtype to" in episode.error) == lost


def test_a_value_at_the_limit_that_overflows_is_no_value() -> None:
    token = rare(collected(OVERFLOWS, 8, values_limit=True))
    episodes = collected(token, 8, values_limit=True)
    assert any(episode.failed for episode in episodes)
    assert all(math.isfinite(episode.last_value) for episode in episodes)
    seat = Seat(0, games.make("toy"), tiny.policy(), "x", 512, values_limit=True)
    seat.start(tiny.tasks(1)[0], random.Random(0))
    assert seat.close(math.nan).outcome is Outcome.FAILED


def test_training_goes_on_without_the_games_that_overflow() -> None:
    """One turn that was no number used to make every advantage, the critic and the baseline no number."""
    token = rare(collected(OVERFLOWS, 8))
    episodes = sorted(collected(token, 8), key=lambda one: one.failed)[:12]
    assert 0 < sum(episode.failed for episode in episodes) <= 6
    settings = ("ppo.warmup_iterations=0", "ppo.game_baseline=true", "ppo.value_passes=2", "ppo.entropy_target=0.5")
    config = tiny.config(Path("none"), *settings, "ppo.kl_coef=0", "ppo.target_kl=0", "model.dtype=float16")
    model = overflowing(token)
    learner = Learner.of(model, config.model, config.ppo)
    critic, baseline = Critic(model.value_head, 1e-3, 2, 2, "0"), GameBaseline({}, config.ppo, "0")
    updater = Updater(config, learner, 0.01, critic, baseline)
    row = updater.update(episodes, 0, 1.0, Reference(model)).metrics
    assert math.isfinite(row["value_loss"]) and math.isfinite(row["baseline_loss"])
    for head in (model.value_head, baseline.critic.head):
        assert all(parameter.isfinite().all() for parameter in head.parameters())
    before = updater.entropy_coef
    updater._steer_entropy(math.nan)  # all steps were skipped
    assert updater.entropy_coef == before != 0.01


def test_a_player_says_that_numbers_overflowed() -> None:
    config, token = tiny.config(Path("none")), rare(collected(OVERFLOWS, 8))
    policy = make_policy(playing(token), Encoder(tiny.tokenizer(), config.policy))
    player = PolicyPlayer(policy, name="x", context=512, limit=tiny.LIMIT, decoding=Decoding())
    game = games.make("toy")
    seen = replace(game.reset(tiny.tasks(1)[0]), text=tiny.tokenizer().decode([token]))
    with pytest.raises(ModelError, match="number that is not finite"):
        player.act(seen)
    player.reset()
    plain = next(episode for episode in collected(token, 1) if episode.turns)  # at first nothing overflows in it
    assert player.act(plain.turns[0].observation)
