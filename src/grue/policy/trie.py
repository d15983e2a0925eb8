"""Valid actions as a trie of token ids; a policy decides only where it branches.

At a node with one child there is nothing to decide, so forced tokens have probability 1. At a branching node the
model's logits are renormalised over the children: pi(a|s) is the product over the branching nodes on a's path, every
action is valid, and log-probabilities are exact. By the chain rule, the sum of the node entropies along a sampled path
is an unbiased estimate of the entropy of pi(.|s).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from grue.errors import ModelError


@dataclass(slots=True)
class Node:
    """A trie node. `action` is set where an action ends (always a leaf: actions end with a newline)."""

    tokens: tuple[int, ...] = ()  # token id of each child
    nodes: tuple[Node, ...] = ()  # the children, in the order of `tokens`
    action: str | None = None


def build_trie(actions: Sequence[str], encode: Callable[[str], Sequence[int]]) -> Node:
    """The trie of `actions`, each encoded by `encode`. Raises ModelError where two actions cannot be told apart."""
    return _subtree([(tuple(encode(action)), action) for action in actions], 0)


def _subtree(paths: list[tuple[tuple[int, ...], str]], depth: int) -> Node:
    """The node under which all of `paths` (ids, action) lie, which have their first `depth` ids in common."""
    if len(paths) == 1:
        ids, action = paths[0]
        return _chain(ids[depth:], action)
    groups: dict[int, list[tuple[tuple[int, ...], str]]] = {}
    for path in paths:
        if len(path[0]) == depth:
            one, other = (path, paths[1]) if path is paths[0] else (paths[0], path)
            raise ModelError(
                f"the actions {one[1]!r} and {other[1]!r} cannot be told apart by their tokens",
                hint="an action must not be a prefix of another once encoded; check the tokenizer",
            )
        groups.setdefault(path[0][depth], []).append(path)
    return Node(tuple(groups), tuple(_subtree(group, depth + 1) for group in groups.values()))


@lru_cache(maxsize=50_000)
def _chain(ids: tuple[int, ...], action: str) -> Node:
    """Forced tokens down to an action. Most of a trie is these, and the same ones return in most tries."""
    return Node((ids[0],), (_chain(ids[1:], action),)) if ids else Node(action=action)


class TrieCache:
    """Tries by action list. States repeat, within a game and between games."""

    def __init__(self, encode: Callable[[str], Sequence[int]], size: int = 4_000) -> None:
        self._build = lru_cache(maxsize=size)(lambda actions: build_trie(actions, encode))

    def __call__(self, actions: tuple[str, ...]) -> Node:
        return self._build(actions)


def path_branches(root: Node, ids: Sequence[int]) -> list[tuple[int, tuple[int, ...], int]]:
    """(offset, children, chosen) of each branching node on the path `ids`; offset: ids fed before the decision."""
    node, branches = root, []
    for offset, token in enumerate(ids):
        index = node.tokens.index(token)
        if len(node.tokens) > 1:
            branches.append((offset, node.tokens, index))
        node = node.nodes[index]
    return branches
