"""The trie of valid actions: where it branches, what is forced, what it refuses."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grue.errors import ModelError
from grue.policy.decision import Decision, Decoding, Query, draw
from grue.policy.trie import Node, TrieCache, build_trie, choices, joined, path_branches


def letters(action: str) -> list[int]:
    """One id a character and a closing newline: a tokenizer that can be followed by eye."""
    return [ord(character) for character in f"{action}\n"]


def bare(action: str) -> list[int]:
    return letters(action)[:-1]


def leaves(node: Node, probability: float = 1.0) -> list[tuple[str, float]]:
    """Every action with its probability when each branching node is a fair die."""
    if node.action is not None:
        return [(node.action, probability)]
    return [leaf for child in node.nodes for leaf in leaves(child, probability / len(node.nodes))]


def ords(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def test_a_trie_branches_where_actions_part_and_nowhere_else() -> None:
    root = build_trie(("go east", "go west", "look"), letters)
    assert root.tokens == ords("gl")
    # after "g" come "o" and " " by force; "e" or "w" is the second choice
    assert path_branches(root, letters("go east")) == [(0, ords("gl"), 0), (3, ords("ew"), 0)]
    assert path_branches(root, letters("go west")) == [(0, ords("gl"), 0), (3, ords("ew"), 1)]
    assert path_branches(root, letters("look")) == [(0, ords("gl"), 1)]


def test_forced_tokens_are_walked_without_a_choice() -> None:
    actions = ("go east", "go west", "look")
    root = build_trie(actions, letters)
    decision = Decision(Query(0, actions, 10, random.Random(0), [1]), node=root)
    assert not decision.follow_forced()  # the root branches: nothing is forced yet
    assert decision.taken == []
    decision.node, decision.taken = root.nodes[0], [ord("g")]
    assert not decision.follow_forced()
    assert decision.taken == letters("go ")[:-1]  # it stands where "e" or "w" has to be chosen
    decision.node = decision.node.nodes[1]
    decision.taken.append(ord("w"))
    assert decision.follow_forced()
    assert (decision.action, decision.taken) == ("go west", letters("go west"))


def test_what_has_to_be_read_before_all_choices_are_known() -> None:
    """g-o-space behind the root, which branches, and "e" of "go east" and "go easy", which goes on to "s"."""
    root = build_trie(("go east", "go easy", "go west", "look"), letters)
    found = choices(root, 32)
    assert found.tree.tokens == ords("go eas")
    assert (found.tree.parents, found.tree.depths) == ((-1, 0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5))
    assert [node.tokens for node in found.nodes] == [ords("gl"), ords("ew"), ords("ty")]
    assert found.read_K.tolist() == [0, 3, 6]  # the state, behind "go ", behind "go eas"
    assert found.children_KC.tolist() == [list(ords("gl")), list(ords("ew")), list(ords("ty"))]
    short = choices(root, 4)
    assert (short.tree.tokens, list(short.nodes.values())) == (ords("go e"), [0, 1])
    assert len(choices(root, 0).tree.tokens) == 0 and list(choices(root, 0).nodes) == [root]
    alone = choices(build_trie(("wait",), letters), 32)
    assert (alone.tree.tokens, alone.nodes, alone.children_KC.shape) == ((), {}, (0, 0))


def test_choices_of_several_tries_as_one() -> None:
    many, alone = build_trie(("go", "look", "wait"), letters), build_trie(("wait",), letters)
    found = [choices(root, 32) for root in (many, alone, build_trie(("go east", "go west"), letters))]
    read_K, children_KC = joined(found, [0, 1, 2])
    assert read_K.tolist() == [0, 5]  # "go " stands behind the third state
    assert children_KC.tolist() == [list(ords("glw")), [*ords("ew"), -1]]


@given(st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=12, unique=True), st.integers(0, 12))
def test_a_look_ahead_is_a_part_of_the_trie(actions: list[str], most: int) -> None:
    """Each node is where the tokens above it lead; with room enough it knows every choice there is."""
    root = build_trie(actions, letters)
    found = choices(root, most)
    assert len(found.tree.tokens) <= most
    for node, place in found.nodes.items():
        line, at, here = [], int(found.read_K[place]) - 1, root
        while at >= 0:
            line, at = [found.tree.tokens[at], *line], found.tree.parents[at]
        for token in line:
            here = here.child(here.tokens.index(token))
        assert here is node and len(node.tokens) > 1
    every = choices(root, 1_000)
    for action in actions:
        for offset, children, _ in path_branches(root, letters(action)):
            assert any(node.tokens == children and node._depth == offset for node in every.nodes)


def test_a_single_action_is_forced_from_end_to_end() -> None:
    root = build_trie(("wait",), letters)
    assert path_branches(root, letters("wait")) == []
    decision = Decision(Query(0, ("wait",), 0, random.Random(0), [1]), node=root)
    assert decision.follow_forced()
    assert decision.follow_forced()  # where it has arrived it stays
    assert (decision.taken, decision.action, decision.log_prob) == (letters("wait"), "wait", 0.0)


@pytest.mark.parametrize("actions", [("go", "go east"), ("go east", "go"), ("a", "ab", "abc")])
def test_actions_that_tokens_cannot_tell_apart_are_refused(actions: tuple[str, ...]) -> None:
    with pytest.raises(ModelError, match=f"actions '{actions[0]}' and '{actions[1]}' cannot be told apart"):
        build_trie(actions, bare)
    with pytest.raises(ModelError, match="the game lists the action 'look' twice"):
        build_trie(("look", "go", "look"), bare)


def test_one_action_may_begin_like_another_when_each_ends_with_a_newline() -> None:
    root = build_trie(("go", "go east"), letters)
    assert path_branches(root, letters("go")) == [(2, ords("\n "), 0)]
    assert path_branches(root, letters("go east")) == [(2, ords("\n "), 1)]


WORDS = st.sampled_from([" ".join(words) for words in product(("take", "open", "chop"), ("key", "keys", "red key"))])
ACTIONS = st.lists(st.one_of(WORDS, st.text("abc ", min_size=1, max_size=6)), min_size=1, max_size=12, unique=True)


@given(ACTIONS)
def test_every_action_is_a_leaf_and_fair_dice_give_probabilities_that_sum_to_1(actions: list[str]) -> None:
    root = build_trie(actions, letters)
    found = dict(leaves(root))
    assert sorted(found) == sorted(actions)
    assert sum(found.values()) == pytest.approx(1)
    for action in actions:
        probability = 1.0
        for offset, children, chosen in path_branches(root, letters(action)):
            assert len(children) > 1
            assert children[chosen] == letters(action)[offset]
            probability /= len(children)
        assert found[action] == pytest.approx(probability)


def test_what_has_no_probability_is_never_drawn() -> None:
    class Least(random.Random):
        def random(self) -> float:
            return 0.0

    logits_BC = torch.tensor([[-torch.inf, 0.0, 1.0], [2.0, 0.0, -torch.inf]])
    picks, log_probs, _ = draw(logits_BC, [3, 2], [Least(), Least()], Decoding())
    assert picks == [1, 0]
    assert min(log_probs) > -2


def test_equal_states_share_a_trie() -> None:
    tries = TrieCache(letters)
    assert tries(("go east", "look")) is tries(("go east", "look"))
    assert tries(("go east", "look")) is not tries(("go west", "look"))


def test_what_a_cache_keeps_is_bounded_by_its_actions() -> None:
    """Four thousand lists of a game with hundreds of actions would take gigabytes."""
    tries, lists = TrieCache(letters, size=6), [("a", "b", "c"), ("d", "e"), ("f", "g", "h"), ("i",)]
    kept = {actions: tries(actions) for actions in lists}
    assert [tries(actions) is kept[actions] for actions in (lists[3], lists[2], lists[1])] == [True] * 3
    assert tries(lists[0]) is not kept[lists[0]]  # went for the third; now the fourth and the third go
    assert [tries(actions) is kept[actions] for actions in lists[1:]] == [True, False, False]
    large = ("a", "b", "c", "d", "e", "f", "g")
    assert tries(large) is not tries(large)  # larger than all that may be kept: used all the same


def test_padding_adds_nothing_to_an_entropy() -> None:
    _, _, (entropy,) = draw(torch.tensor([[0.0, 0.0, -float("inf")]]), [2], [random.Random(0)], Decoding())
    assert entropy == pytest.approx(torch.log(torch.tensor(2.0)))
