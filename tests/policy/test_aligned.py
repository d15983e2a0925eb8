"""The aligned policy: what the model would write, given that it is valid. Checked by brute force over whole texts."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from grue import games
from grue.config import preset_config
from grue.engine.engine import Engine
from grue.engine.tree import TokenTree
from grue.models.policy_model import PolicyModel
from grue.policy import menu
from grue.policy.aligned import AlignedPolicy
from grue.policy.decision import Decision, Decoding, Query
from grue.policy.menu import Menus, likely_parts
from grue.rollout.collect import collect
from grue.rollout.pack import collate, samples
from grue.train.ppo_update import ppo_loss
from grue.types import Observation, Turn

MODEL = tiny.policy_model(2, spread=0.1)
ACTIONS = ("go east", "go west", "look", "open basket", "open chest", "take gem", "take key")


def policy(min_p: float) -> AlignedPolicy:
    return AlignedPolicy(MODEL, tiny.prompted(kind="aligned", min_p=min_p))


def prefix_of(text: str = "You are in the hall. There is a sack.") -> list[int]:
    return [*tiny.encoder().task("Find the key.", 12), *tiny.encoder().observation(text)]


@torch.no_grad()
def written(model: PolicyModel, prefix: list[int], action: str) -> float:
    """log-probability of the action's text, its line end left out, from plain forward passes of the model."""
    ids = tiny.encoder().without_end(tiny.encoder().action(action))
    total = 0.0
    for place, token in enumerate(ids):
        logits = model.lm(torch.tensor([[*prefix, *ids[:place]]])).logits[0, -1].double()
        total += float(torch.log_softmax(logits, 0)[token])
    return total


def weighed(min_p: float, temperature: float = 1.0) -> dict[str, float]:
    turn = Turn(Observation("", "", "", ACTIONS, 0.0), ACTIONS[0], 0.0, state_position=len(prefix_of()) - 1)
    return dict(policy(min_p).weigh(turn, prefix_of(), temperature))


@pytest.mark.parametrize("temperature", [1.0, 8.0])
def test_probabilities_equal_brute_force_over_whole_texts(temperature: float) -> None:
    weights = {action: math.exp(written(MODEL, prefix_of(), action) / temperature) for action in ACTIONS}
    total = sum(weights.values())
    expected = {action: weight / total for action, weight in weights.items()}
    assert weighed(0.0, temperature) == pytest.approx(expected, abs=1e-5)
    assert max(expected.values()) > 2 / len(ACTIONS)  # the model is not uniform, so this could fail


def test_what_was_weighed_when_it_was_played_is_what_is_shown() -> None:
    """At the edge of the cut rounding decides, and a second reading left out what had been weighed."""
    player = policy(0.0)
    turn = Turn(Observation("", "", "", ACTIONS, 0.0), ACTIONS[0], 0.0, state_position=len(prefix_of()) - 1)
    every = player.weigh(turn, prefix_of(), 1.0)
    kept = [action for action, _ in every[:2]]
    candidates = tuple(candidate for action, candidate in player._kept.shortened(ACTIONS) if action in kept)
    shown = dict(policy(0.9).weigh(replace(turn, candidates=candidates), prefix_of(), 1.0))
    total = every[0][1] + every[1][1]
    assert {action for action, share in shown.items() if share} == {*kept}
    assert shown[kept[1]] == pytest.approx(every[1][1] / total, rel=1e-5)


def test_what_ppo_raises_is_the_probability_that_free_writing_is_valid() -> None:
    player = tiny.player(MODEL, kind="aligned", min_p=0.0)
    episodes = collect(
        player, [games.make("toy")], tiny.tasks(1, limit=3), Decoding(temperature=8.0), seed="0", context=512
    )
    (episode,), (segment,) = episodes, episodes[0].segments
    nlls = []
    for turn in episode.turns:
        prefix = list(segment.ids[: turn.state_position + 1])
        listed = turn.observation.actions or ()
        nlls.append(-math.log(sum(math.exp(written(MODEL, prefix, action)) for action in listed)))
    batch = collate(samples(episodes))
    reading = MODEL(*batch.inputs)
    cfg = preset_config("toy").ppo.model_copy(update={"temperature": 8.0, "kl_coef": 0.0})
    plain, _ = ppo_loss(reading, batch, cfg, 3, 0.0, policy=True)
    held = cfg.model_copy(update={"valid_coef": 0.5})
    raised, metrics = ppo_loss(reading, batch, held, 3, 0.0, policy=True)
    assert float(metrics["valid_nll"]) == pytest.approx(sum(nlls) / 3, abs=1e-4)
    assert (raised - plain).item() == pytest.approx(0.5 * sum(nlls) / 3, abs=1e-4)
    apart = [ppo_loss(reading, batch, c, 3, 0.0, policy=False)[0] for c in (cfg, held)]
    assert torch.equal(*apart)  # while the critic alone learns


def test_unlikely_actions_are_left_out_by_first_token_and_as_a_whole() -> None:
    encode = tiny.encoder().action
    firsts = {action: written_first(encode(action)[0]) for action in ACTIONS}
    wholes = {action: written(MODEL, prefix_of(), action) for action in ACTIONS}
    by_first, by_whole, likely_as_a_whole = set(), set(), set()
    for share in (0.9, 0.5, 0.2, 0.1, 0.03, 0.01):
        least = math.log(share)
        left = {action for action in ACTIONS if firsts[action] >= max(firsts.values()) + least}
        best = max(wholes[action] for action in left)
        kept = {action for action in left if wholes[action] >= best + least}
        found = weighed(share)
        assert {action for action, probability in found.items() if probability > 0} == kept, share
        assert sum(found.values()) == pytest.approx(1.0)
        by_first |= set(ACTIONS) - left
        by_whole |= left - kept
        likely_as_a_whole |= {action for action in set(ACTIONS) - left if wholes[action] >= best + least}
    assert by_first and by_whole  # both were put to the test
    assert likely_as_a_whole  # and the first alone, where the second would not do the same


@torch.no_grad()
def written_first(token: int) -> float:
    logits = MODEL.lm(torch.tensor([prefix_of()])).logits[0, -1].double()
    return float(torch.log_softmax(logits, 0)[token])


class Letters:
    """A tokenizer of letters whose line end comes before or after all of them in the order of ids."""

    def __init__(self, end: int) -> None:
        self.end = end

    def action(self, text: str) -> tuple[int, ...]:
        return (*map(ord, text), self.end)

    def without_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids[:-1]


@pytest.mark.parametrize("end", [1, 9999])
def test_an_action_with_which_another_begins_is_told_apart_by_its_end(end: int) -> None:
    """Otherwise it would be given the probability of the longer one, too."""
    encoder: Any = Letters(end)
    actions = ("go", "go east", "go east again", "go west", "look", "take key")
    spoken = {action: candidate.ids for action, candidate in Menus(encoder).shortened(actions)}
    whole = {action for action, ids in spoken.items() if ids == encoder.action(action)}
    assert whole == {"go", "go east"}
    assert all(spoken[action] == tuple(map(ord, action)) for action in {*actions} - whole)


@pytest.mark.parametrize("min_p", [0.0, 1e-5])
def test_what_is_played_is_drawn_from_what_is_weighed(min_p: float) -> None:
    seats = [games.make("toy") for _ in range(8)]
    player = tiny.player(MODEL, kind="aligned", min_p=min_p)
    (task,) = tiny.tasks(1, limit=1)
    plays = collect(player, seats, [task] * 400, Decoding(temperature=8.0), seed="0", context=640)
    first = replace(plays[0].turns[0], candidates=())
    expected = dict(player.weigh(first, plays[0].segments[0].ids, 8.0))
    left = [action for action, probability in expected.items() if probability > 0]
    assert (len(left) < len(expected)) == (min_p > 0)
    assert len(plays[0].turns[0].candidates) == len(left)
    counts = Counter(play.turns[0].action for play in plays)
    for action, probability in expected.items():
        error = math.sqrt(probability * (1 - probability) / len(plays))
        assert abs(counts[action] / len(plays) - probability) < 5 * error + 1e-9
    for play in plays[:20]:
        (turn,) = play.turns
        assert turn.log_prob == pytest.approx(math.log(expected[turn.action]), abs=1e-4)
    assert len(counts) > 1


NAMES = ("box", "blue key", "red key", "red gem", "old rusty lamp", "table", "sack", "chest in the hall")
MANY = tuple(
    sorted(
        [
            *(f"put {a} on {b}" for a in NAMES for b in NAMES if a != b),
            *(f"{v} {a}" for v in ("take", "see") for a in NAMES),
        ]
    )
)


class Counting(Engine):
    """Counts the tokens of trees that it reads."""

    ahead = 0

    def look_ahead(self, rows: Sequence[int], ids: Sequence[Sequence[int]], trees: Sequence[TokenTree]) -> torch.Tensor:
        self.ahead += sum(len(tree.tokens) for tree in trees)
        return super().look_ahead(rows, ids, trees)


@pytest.mark.parametrize("min_p", [0.5, 0.01, 1e-6])
def test_of_large_trees_only_what_can_count_is_read(min_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same is decided as by reading whole trees."""
    model = tiny.policy_model(2, spread=0.15)
    texts = [prefix_of(), prefix_of("A cave."), prefix_of("It is dark. You see a box and a table here.")]
    actions = [MANY, MANY[::2], MANY[:3]]

    def decided() -> tuple[list[Decision], int]:
        engine = Counting(model.base_lm(), len(texts), 512)
        queries = [Query(row, actions[row], len(ids), random.Random(0), ids) for row, ids in enumerate(texts)]
        player = AlignedPolicy(model, tiny.prompted(kind="aligned", min_p=min_p))
        return player.act(engine, queries, Decoding(temperature=2.0)), engine.ahead

    monkeypatch.setattr(menu, "FIRST", 8)
    parts, few = decided()
    monkeypatch.setattr(menu, "AT_ONCE", 10**6)
    whole, all_of_them = decided()
    assert few < 0.7 * all_of_them
    for one, other in zip(whole, parts, strict=True):
        assert (one.action, one.candidates) == (other.action, other.candidates)
        assert (other.log_prob, other.entropy) == pytest.approx((one.log_prob, one.entropy), abs=1e-4)


@given(st.integers(0, 2**32), st.sampled_from([0.5, 0.05, 1e-3]), st.floats(0.1, 8.0), st.integers(1, 9))
def test_what_is_read_is_enough_to_know_who_counts(seed: int, min_p: float, spread: float, first: int) -> None:
    """Against all tokens known, for tokens of random probability."""
    rng = np.random.default_rng(seed)
    actions = tuple(sorted(rng.choice(MANY, size=rng.integers(2, len(MANY)), replace=False).tolist()))
    menus = Menus(tiny.prompted(kind="aligned"))
    encoded = frozenset(candidate.ids[0] for _, candidate in menus.shortened(actions))
    of = menus.menu(actions, encoded)
    keys = list(zip(of.read_P.tolist(), of.token_P.tolist(), strict=True))
    log_prob = {key: -spread * rng.exponential() for key in sorted(set(keys))}
    all_P = np.array([log_prob[key] for key in keys])
    found_P = np.where(of.read_P == 0, all_P, -np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(menu, "AT_ONCE", 0)
        patch.setattr(menu, "FIRST", first)
        read = 0
        for part in likely_parts(of, found_P, math.log(min_p)):
            read += len(set(part.state_I.tolist()))
            assert np.isneginf(found_P[part.token_I]).all()  # nothing is read twice
            found_P[part.token_I] = all_P[part.token_I]
    whole_K, found_K = (np.bincount(of.action_P, log_P, len(of.actions)) for log_P in (all_P, found_P))
    counts_K = whole_K >= whole_K.max() + math.log(min_p)
    assert found_K[counts_K] == pytest.approx(whole_K[counts_K])
    assert (found_K[~counts_K] < whole_K.max() + math.log(min_p)).all()
    assert read <= len(of.tree.tokens)
