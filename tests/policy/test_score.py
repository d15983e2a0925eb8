"""Scores of whole actions: equal to one plain forward pass for each action, whatever the normalisation."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

import tiny
from decoders import ARCHITECTURES
from grue.engine.engine import Engine
from grue.engine.tree import candidate_tree, lay_out
from grue.models.policy_model import PolicyModel
from grue.models.scores import CHUNK, token_log_probs
from grue.policy.decision import Decision, Decoding, Query
from grue.policy.score import ScorePolicy
from grue.policy.weigh import candidate_weights
from grue.types import Candidate

MODEL = tiny.policy_model()
ACTIONS = ("go east", "go west", "look", "open basket", "open chest", "take gem", "take key", "go")


def prefix_of(text: str = "You are in the hall. There is a sack.") -> list[int]:
    return [*tiny.encoder().task("Find the key.", 12), *tiny.encoder().observation(text)]


@torch.no_grad()
def brute_force(lm: PreTrainedModel, prefix: list[int], ids: tuple[int, ...]) -> float:
    """log p of `ids` over the whole vocabulary, from Hugging Face's own forward pass."""
    logits_LV = lm(torch.tensor([[*prefix, *ids]]), use_cache=False).logits[0].double()
    log_probs_LV = torch.log_softmax(logits_LV, -1)
    return sum(float(log_probs_LV[len(prefix) - 1 + place, token]) for place, token in enumerate(ids))


@pytest.mark.parametrize("normalise", ["sum", "token", "word"])
def test_scores_are_those_of_one_forward_pass_for_each_action(normalise: str) -> None:
    player, prefix = tiny.player(MODEL, kind="score", normalise=normalise), prefix_of()
    assert isinstance(player, ScorePolicy)
    engine = Engine(player.model.base_lm(), 2, 200)
    query = Query(1, ACTIONS, len(prefix), random.Random(0), prefix)
    decision = Decision(query, candidates=player.candidates(ACTIONS))
    hidden, (scores,) = player.scores(engine, [decision])
    assert torch.allclose(hidden, Engine(player.model.base_lm(), 1, 200).feed([0], [prefix]), atol=1e-5)
    divisors = {
        "sum": [1.0] * len(ACTIONS),
        "token": [len(tiny.encoder().action(action)) for action in ACTIONS],
        "word": [len(action.split()) for action in ACTIONS],
    }[normalise]
    expected = [
        brute_force(MODEL.lm, prefix, tiny.encoder().action(action)) / divisor
        for action, divisor in zip(ACTIONS, divisors, strict=True)
    ]
    assert scores.tolist() == pytest.approx(expected, abs=1e-4)
    assert candidate_weights(MODEL, decision.candidates, prefix).tolist() == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.5


@pytest.mark.parametrize("make", ARCHITECTURES)
def test_every_architecture_scores_the_same_with_trees_and_without(make: Callable[[], PreTrainedModel]) -> None:
    """In the engine and in training; a prefix of 40 is longer than the windows."""
    model = PolicyModel(make())
    draw = random.Random(2)
    prefix = [draw.randrange(300) for _ in range(40)]
    candidates = tuple(Candidate(ids, 1.0) for ids in ((5, 6, 7), (5, 6, 8, 9), (1, 2), (3,), (5, 1, 1)))
    expected = [brute_force(model.lm, prefix, candidate.ids) for candidate in candidates]
    assert candidate_weights(model, candidates, prefix).tolist() == pytest.approx(expected, abs=1e-3)
    policy = ScorePolicy(model, tiny.encoder())
    engine = Engine(policy.model.base_lm(), 1, 64)
    decision = Decision(Query(0, (), len(prefix), random.Random(0), prefix), candidates=candidates)
    assert policy.scores(engine, [decision])[1][0].tolist() == pytest.approx(expected, abs=1e-3)


def test_actions_are_drawn_from_the_softmax_of_the_scores() -> None:
    player, prefix = tiny.player(MODEL, kind="score", normalise="word"), prefix_of()
    engine = Engine(player.model.base_lm(), 1, 200)
    query = Query(0, ACTIONS, len(prefix), random.Random(0), prefix)
    assert isinstance(player, ScorePolicy)
    scores = candidate_weights(MODEL, player.candidates(ACTIONS), prefix)
    for temperature in (1.0, 0.5):
        weights = torch.softmax(scores / temperature, -1)
        entropy = -float((weights * weights.log()).sum())
        counts = dict.fromkeys(ACTIONS, 0)
        for _ in range(300):
            engine.reset(0)
            (decision,) = player.act(engine, [query], Decoding(temperature=temperature))
            counts[decision.action] += 1
            assert decision.log_prob == pytest.approx(math.log(weights[ACTIONS.index(decision.action)]), abs=1e-4)
            assert decision.entropy == pytest.approx(entropy, abs=1e-4)
            assert tuple(decision.taken) == player.encoder.action(decision.action)
        for action, weight in zip(ACTIONS, weights.tolist(), strict=True):
            error = math.sqrt(weight * (1 - weight) / 300)
            assert abs(counts[action] / 300 - weight) < 4 * error + 1 / 300


def test_a_single_action_is_taken_without_a_choice() -> None:
    player = tiny.player(MODEL, kind="score")
    engine = Engine(player.model.base_lm(), 1, 64)
    (decision,) = player.act(engine, [Query(0, ("look",), 3, random.Random(0), [1, 2, 3])], Decoding())
    assert (decision.action, decision.branches, decision.log_prob) == ("look", [], 0.0)
    assert tuple(decision.taken) == player.encoder.action("look")


def test_the_tree_of_candidates_by_hand() -> None:
    """1-2-3, 1-2-4 and 5 share what they have in common; last tokens are predicted, never fed."""
    candidates = [Candidate(ids, 1.0) for ids in ((1, 2, 3), (1, 2, 4), (5,))]
    tree = candidate_tree(candidates)
    assert (tree.tokens, tree.parents, tree.depths) == ((1, 2), (-1, 0), (0, 1))
    assert tree.paths == ((-1, 0, 1), (-1, 0, 1), (-1,))
    assert tree.lines() == [(0,), (0, 1)]
    assert [side.tolist() for side in tree.sights()] == [[0, 1, 1], [0, 0, 1]]
    ids, trees = lay_out([((7, 8, 9), [(1, tuple(candidates)), (2, (Candidate((6, 6), 2.0), Candidate((3,), 1.0)))])])
    assert ids.tolist() == [[7, 8, 9, 1, 2, 6]]
    assert trees.places_BL.tolist() == [[0, 1, 2, 2, 3, 3]]
    assert trees.seen_BLL[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],  # the first turn's tree sees the text up to its state
        [1, 1, 0, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]
    assert list(zip(trees.read_row_R.tolist(), trees.read_column_R.tolist(), strict=True)) == [
        (0, 1), (0, 3), (0, 4), (0, 2), (0, 5)
    ]  # fmt: skip
    assert trees.paths.read_P.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert trees.paths.token_P.tolist() == [1, 1, 5, 2, 2, 3, 4, 6, 3, 6]
    assert trees.paths.candidate_P.tolist() == [0, 1, 2, 0, 1, 0, 1, 3, 4, 3]
    assert (trees.paths.node_K.tolist(), trees.paths.place_K.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1])
    assert trees.paths.divisor_K.tolist() == [1, 1, 1, 2, 1]


def test_log_probs_in_chunks_are_those_of_one_piece_with_their_gradients() -> None:
    torch.manual_seed(0)
    count = CHUNK + 5
    weight = torch.randn(11, 4, requires_grad=True)
    hidden = torch.randn(count, 4, requires_grad=True)
    read = torch.randint(count, (40,)).sort().values
    token = torch.randint(11, (40,))
    found = token_log_probs(lambda part: part @ weight.T, hidden, read, token)
    expected = torch.log_softmax(hidden @ weight.T, -1)[read, token]
    torch.testing.assert_close(found, expected)
    wanted = torch.randn(40)
    mine = torch.autograd.grad((found * wanted).sum(), (hidden, weight))
    theirs = torch.autograd.grad((expected * wanted).sum(), (hidden, weight))
    torch.testing.assert_close(mine, theirs)
