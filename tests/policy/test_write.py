"""Free text: the distribution that is recorded is the one that was sampled from, and every reply is some turn."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import decoders
import tiny
from grue import games
from grue.engine.engine import Engine
from grue.games.guard import as_played
from grue.models.policy_model import PolicyModel
from grue.policy import write
from grue.policy.decision import Decision, Decoding, Query
from grue.policy.write import WritePolicy, nucleus
from grue.prompts.tokens import Encoder
from grue.rollout.collect import collect
from grue.types import Observation, Turn

MODEL = tiny.policy_model()


def test_the_nucleus_by_hand() -> None:
    probabilities = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.05, 0.9, 0.03, 0.02]])
    assert nucleus(probabilities.log(), 0.7).tolist() == [[True, False, True, False], [False, True, False, False]]
    assert nucleus(probabilities.log(), 0.85).tolist() == [[True, True, True, False], [False, True, False, False]]
    assert nucleus(probabilities.log(), 1e-9).sum(-1).tolist() == [1, 1]  # never empty


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30), st.floats(0.01, 0.99))
def test_a_nucleus_is_the_smallest_set_of_likeliest_tokens_with_its_mass(logits: list[float], top_p: float) -> None:
    probabilities = torch.softmax(torch.tensor([logits], dtype=torch.float64), -1)[0]
    kept = nucleus(torch.tensor([logits], dtype=torch.float64), top_p)[0]
    assert float(probabilities[kept].sum()) >= top_p - 1e-9
    assert float(probabilities[kept].sum() - probabilities[kept].min()) < top_p + 1e-9
    if not kept.all():
        assert float(probabilities[kept].min()) >= float(probabilities[~kept].max()) - 1e-12


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.8), (1.3, 0.5)])
@torch.no_grad()
def test_log_probs_are_those_of_the_renormalised_nucleus_by_brute_force(temperature: float, top_p: float) -> None:
    """Hugging Face's own forward pass, one for each token that was written."""
    prompt = {"kind": "write", "reply_tokens": 6, "top_p": top_p}
    seats = [games.make("toy") for _ in range(3)]
    decoding = Decoding(temperature=temperature)
    written = 0
    for episode in collect(
        tiny.player(MODEL, **prompt), seats, tiny.tasks(3, limit=3), decoding, seed="0", context=400
    ):
        for turn in episode.turns:
            total = 0.0
            for branch in turn.branches:
                ids = episode.segments[turn.segment].ids
                logits = MODEL.lm(torch.tensor([ids[: branch.position + 1]])).logits[0, -1] / temperature
                kept = nucleus(logits[None], top_p)[0] if top_p < 1 else torch.ones_like(logits, dtype=torch.bool)
                assert list(branch.children) == kept.nonzero()[:, 0].tolist()
                token = branch.children[branch.chosen]
                assert token == ids[branch.position + 1]
                total += float(torch.log_softmax(logits.masked_fill(~kept, -math.inf).double(), -1)[token])
                written += 1
            assert turn.log_prob == pytest.approx(total, abs=1e-4)
    assert written > 20


def test_tokens_are_drawn_with_the_probabilities_of_the_model() -> None:
    """600 first tokens: each count within 4 standard errors, none from outside the nucleus."""
    prefix = [*tiny.encoder().task("Find the key.", 12), *tiny.encoder().observation("A hall.")]
    player = tiny.player(MODEL, kind="write", reply_tokens=1, top_p=0.6)
    engine = Engine(player.model.base_lm(), 1, 200)
    hidden = engine.feed([0], [prefix])
    with torch.inference_mode():
        logits = MODEL.vocabulary_logits(hidden)
    kept = nucleus(logits, 0.6)
    weights = torch.softmax(logits.masked_fill(~kept, -math.inf), -1)[0].tolist()
    rng, counts, draws = random.Random(0), [0] * len(weights), 600
    for _ in range(draws):
        engine.reset(0)
        (decision,) = player.act(engine, [Query(0, (), len(prefix), rng, prefix)], Decoding())
        counts[decision.taken[0]] += 1
    for token, weight in enumerate(weights):
        assert weight > 0 or counts[token] == 0
        assert abs(counts[token] / draws - weight) < 4 * math.sqrt(weight * (1 - weight) / draws) + 1 / draws


def test_every_reply_is_closed_and_none_is_longer_than_it_may_be() -> None:
    for prompt in ({"kind": "write", "reply_tokens": 4}, {"kind": "write", "reply_tokens": 4, "template": "chat"}):
        player = tiny.player(MODEL, **prompt)
        assert isinstance(player, WritePolicy)
        seats = [games.make("toy") for _ in range(4)]
        for episode in collect(player, seats, tiny.tasks(4), Decoding(), seed="0", context=640):
            (segment,) = episode.segments
            for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
                shown = player.encoder.observation(following.observation.text)
                end = following.state_position + 1 - len(shown)
                written = segment.ids[turn.state_position + 1 : end]
                assert segment.ids[end : following.state_position + 1] == shown
                assert len(written) <= 4 + len(player.encoder.closing(()))
                assert player.encoder.closing(written) == ()
                assert as_played(player.encoder.text(written), turn.observation.actions) == turn.action


def test_a_reply_is_judged_as_the_game_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two spaces are one to every game."""
    player = tiny.player(MODEL, kind="write", reply_tokens=30)

    def wide(model: object, encoder: Encoder, engine: object, decisions: list[Decision], *_: object) -> None:
        for decision in decisions:
            action = next(one for one in decision.query.actions if " " in one)
            decision.taken = [*encoder.action(action.replace(" ", "  "))]

    monkeypatch.setattr(write, "write_lines", wide)
    (episode,) = collect(player, [games.make("toy")], tiny.tasks(1), Decoding(), seed="0", context=640)
    assert episode.turns and all(turn.valid and turn.action in turn.observation.actions for turn in episode.turns)


def test_an_empty_reply_is_no_action_where_the_game_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    player = tiny.player(MODEL, kind="write")

    def silent(model: object, encoder: Encoder, engine: object, decisions: list[Decision], *_: object) -> None:
        for number, decision in enumerate(decisions):
            decision.taken = [*encoder.action("look")] if number else []

    monkeypatch.setattr(write, "write_lines", silent)
    queries = [Query(row, (), 4, random.Random(0), [5, 6, 7, 8]) for row in range(2)]
    empty, look = player.act(Engine(MODEL.base_lm(), 2, 64), queries, Decoding())
    assert (empty.action, empty.valid) == ("", False)
    assert (look.action, look.valid) == ("look", True)


@pytest.mark.parametrize("kind", ["write", "think"])
def test_there_is_room_for_the_longest_reply_and_what_closes_it(kind: str) -> None:
    player = tiny.player(MODEL, kind=kind, reply_tokens=7, thought_tokens=5)
    encoder, actions = player.encoder, ("look", "go east")
    longest = max(len(encoder.action(action)) for action in actions)
    closing, marker = len(encoder.closing(())), len(encoder.after_thought(()))
    assert closing > 0 and marker > 0
    assert player.room(actions) == (7 + closing if kind == "write" else 5 + marker + longest)


def test_a_listed_action_that_is_written_is_valid_and_only_such_a_one() -> None:
    encoder = tiny.prompted(kind="write")
    for action in ("go east", "open basket"):
        ids = encoder.action(action)
        assert encoder.text(ids) == action
        assert encoder.closing(ids) == ()
        assert encoder.ends(ids[-1]) and not any(encoder.ends(token) for token in ids[:-1])
        assert encoder.text([*ids, *encoder.action("look")]) == action  # what follows the line is not read


def test_what_is_longer_than_a_reply_is_never_written_even_at_the_last_place() -> None:
    places = MODEL.lm.config.max_position_embeddings
    player, long = tiny.player(MODEL, kind="write", reply_tokens=4), "open " + "very " * 40 + "old chest"
    turn = Turn(Observation("", "", "", ("x", long), 0.0), "x", 0.0, state_position=places - 5)
    shown = dict(player.weigh(turn, [5] * (places - 4), 1.0))
    assert shown[long] == 0 < shown["x"]
    alone = Turn(Observation("", "", "", (long,), 0.0), long, 0.0, state_position=8)
    assert player.weigh(alone, [5] * 9, 1.0) == [(long, 0)]


@pytest.mark.parametrize("model", [MODEL, PolicyModel(decoders.RECURRENT[0]())], ids=["attends", "recurrent"])
def test_the_weight_of_an_action_is_the_probability_that_it_is_written(model: PolicyModel) -> None:
    actions = ("go east", "look")
    prefix = [*tiny.encoder().task("Find the key.", 12), *tiny.encoder().observation("A hall.")]
    turn = Turn(Observation("A hall.", "Find the key.", "", actions, 0.0), "look", 0.0, state_position=len(prefix) - 1)
    shown = dict(tiny.player(model, kind="write").weigh(turn, prefix, 1.0))
    with torch.no_grad():
        for action in actions:
            ids = tiny.encoder().action(action)
            log_probs = torch.log_softmax(model.lm(torch.tensor([[*prefix, *ids]])).logits[0].double(), -1)
            total = sum(float(log_probs[len(prefix) - 1 + place, token]) for place, token in enumerate(ids))
            assert math.log(shown[action]) == pytest.approx(total, abs=1e-3)
