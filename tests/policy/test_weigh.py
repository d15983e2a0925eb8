"""pi(a|s) of every action, exact: checked by brute force over whole actions, and against what sampling does."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decoders
import tiny
from grue import games
from grue.algos.losses import branch_log_probs, node_entropies
from grue.engine.engine import Engine
from grue.engine.tree import TokenTree
from grue.models.policy_model import PolicyModel
from grue.policy.decision import Decoding
from grue.policy.trie import build_trie, path_branches
from grue.policy.weigh import CachedText, action_probabilities
from grue.rollout.collect import collect
from grue.rollout.pack import Sample, collate
from grue.types import Branch, Observation, Turn

MODEL = tiny.policy_model()
ACTIONS = ("go east", "go west", "look", "open basket", "open chest", "take gem", "take key")


def prefix_of(text: str = "You are in the hall. There is a sack.") -> list[int]:
    return [*tiny.encoder().task("Find the key.", 12), *tiny.encoder().observation(text)]


@torch.no_grad()
def brute_force(
    model: PolicyModel, prefix: list[int], actions: tuple[str, ...], temperature: float
) -> dict[str, float]:
    """pi of each action from plain forward passes of the Hugging Face model, one for each token of each action.

    A token's probability is the softmax over the tokens with which some action that agrees so far goes on.
    """
    encoded = {action: list(tiny.encoder().action(action)) for action in actions}
    found = {}
    for action, ids in encoded.items():
        probability = 1.0
        for place, token in enumerate(ids):
            following = sorted({other[place] for other in encoded.values() if other[:place] == ids[:place]})
            logits = model.lm(torch.tensor([[*prefix, *ids[:place]]])).logits[0, -1].double() / temperature
            probability *= float(torch.softmax(logits[following], 0)[following.index(token)])
        found[action] = probability
    return found


def test_actions_of_hundreds_of_tokens_are_weighed() -> None:
    long = "examine " + "\u00f6" * 1000
    assert len(tiny.encoder().action(long)) > 1000
    root = build_trie((long, "wait"), tiny.encoder().action)
    assert sum(dict(action_probabilities(MODEL, root, prefix_of())).values()) == pytest.approx(1)


@pytest.mark.parametrize("model", [MODEL, PolicyModel(decoders.RECURRENT[0]())], ids=["attends", "recurrent"])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_probabilities_equal_brute_force_over_whole_actions(model: PolicyModel, temperature: float) -> None:
    root = build_trie(ACTIONS, tiny.encoder().action)
    found = dict(action_probabilities(model, root, prefix_of(), temperature))
    expected = brute_force(model, prefix_of(), ACTIONS, temperature)
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(found.values()) > 1.1 / len(ACTIONS)  # the model is not uniform, so this could fail


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "write", "think"])
def test_a_text_is_read_once_turn_after_turn(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    player = tiny.player(MODEL, kind=kind, **({"min_p": 0.1} if kind == "aligned" else {}))
    games_played = [games.make("toy"), games.make("toy")]
    one, other = collect(player, games_played, tiny.tasks(2, limit=6), Decoding(), seed="0", context=320)
    pairs = [(turn, episode.segments[turn.segment].ids) for episode in (one, other, one) for turn in episode.turns]
    alone = [player.weigh(turn, ids, 1.0) for turn, ids in pairs]

    read: list[int] = []
    look_ahead = Engine.look_ahead

    def counted(engine: Engine, rows: list[int], ids: list[list[int]], trees: list[TokenTree]) -> torch.Tensor:
        read.append(len(ids[0]))
        return look_ahead(engine, rows, ids, trees)

    monkeypatch.setattr(Engine, "look_ahead", counted)
    text = CachedText(player.model)
    for (turn, ids), expected in zip(pairs, alone, strict=True):
        assert dict(player.weigh(turn, ids, 1.0, text)) == pytest.approx(dict(expected), abs=1e-4)
    # each text once, and the last id of a text again where a second question is asked
    whole = sum(len(segment.ids) for episode in (one, other, one) for segment in episode.segments)
    assert len(one.turns) > 2 and sum(read) <= whole + len(read)


def test_a_read_that_fails_leaves_nothing_wrong_behind() -> None:
    prefix, root = prefix_of(), build_trie(ACTIONS, tiny.encoder().action)
    text, expected = CachedText(MODEL), action_probabilities(MODEL, root, prefix)
    action_probabilities(MODEL, root, prefix[:5], text=text)
    with pytest.raises(IndexError):
        action_probabilities(MODEL, root, [*prefix[:-1], 10**6], text=text)  # no such token
    assert dict(action_probabilities(MODEL, root, prefix, text=text)) == pytest.approx(dict(expected), abs=1e-5)


@settings(max_examples=15)
@given(
    st.lists(
        st.one_of(st.sampled_from(ACTIONS), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)),
        min_size=1,
        max_size=8,
        unique=True,
    )
)
def test_probabilities_of_any_actions_sum_to_1(actions: list[str]) -> None:
    actions = [action for action in actions if "\n" not in action]
    if not actions:
        return
    found = action_probabilities(MODEL, build_trie(actions, tiny.encoder().action), prefix_of())
    assert sorted(action for action, _ in found) == sorted(actions)
    assert sum(probability for _, probability in found) == pytest.approx(1, abs=1e-5)
    assert found == sorted(found, key=lambda pair: -pair[1])


def test_a_single_action_has_probability_1() -> None:
    assert action_probabilities(MODEL, build_trie(("look",), tiny.encoder().action), prefix_of()) == [("look", 1.0)]


def test_node_entropies_along_a_path_are_an_unbiased_estimate_of_the_entropy() -> None:
    """The chain rule, by exact enumeration: sum over actions of pi(a) * (node entropies on a's path) = H(pi)."""
    prefix, root = prefix_of(), build_trie(ACTIONS, tiny.encoder().action)
    found = dict(action_probabilities(MODEL, root, prefix))
    entropy = -sum(p * math.log(p) for p in found.values())
    seen = Observation("", "", "", ACTIONS, 0.0)
    expected, summed = 0.0, []
    for action, probability in found.items():
        ids = tiny.encoder().action(action)
        branches = tuple(
            Branch(len(prefix) - 1 + offset, children, chosen) for offset, children, chosen in path_branches(root, ids)
        )
        turn = Turn(seen, action, 0.0, state_position=len(prefix) - 1, branches=branches)
        batch = collate([Sample((*prefix, *ids), (turn,), (0.0,), (0.0,))])
        with torch.no_grad():
            summed.append(float(node_entropies(branch_log_probs(MODEL(*batch.inputs).logits_NC, 1.0)).sum()))
        expected += probability * summed[-1]
    assert expected == pytest.approx(entropy, abs=1e-5)
    assert max(summed) - min(summed) > 0.01  # no single path would do as the answer


def test_actions_are_drawn_with_the_probabilities_that_are_shown() -> None:
    """600 draws of one decision: each action's count within 4 standard errors."""
    (task,) = tiny.tasks(1, limit=1)
    player, draws = tiny.policy(MODEL), 600
    seats = [games.make("toy") for _ in range(60)]
    played = collect(player, seats, [task] * draws, Decoding(), seed="0", context=320)
    shown = player.weigh(played[0].turns[0], played[0].segments[0].ids, 1.0)
    counts = Counter(episode.turns[0].action for episode in played)
    assert set(counts) <= {action for action, _ in shown}
    assert sum(probability for _, probability in shown) == pytest.approx(1, abs=1e-5)
    for action, probability in shown:
        error = math.sqrt(probability * (1 - probability) / draws)
        assert abs(counts[action] / draws - probability) < 4 * error + 1 / draws
