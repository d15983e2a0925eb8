"""Valid actions as a trie of token ids; a policy decides only where it branches.

At a node with one child there is nothing to decide, so forced tokens have probability 1. At a branching node the
model's logits are renormalised over the children: pi(a|s) is the product over the branching nodes on a's path, every
action is valid, and log-probabilities are exact. By the chain rule, the sum of the node entropies along a sampled path
is an unbiased estimate of the entropy of pi(.|s).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from threading import RLock

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from grue.engine.tree import TokenTree
from grue.errors import ModelError

Path = tuple[tuple[int, ...], str]  # ids of an action, the action
LOOK = 32  # tokens of a trie that are read ahead; what lies beyond takes another pass


class AlikeError(ModelError):
    """A game lists actions that, once encoded, are equal or of which one is the beginning of another."""


class Node:
    """A trie node. `action` is set where an action ends (always a leaf: actions end with a newline).

    `only` is set if exactly one action lies under it: (the rest of its ids, the action).
    Children are made when they are first asked for: most of a trie is never walked.
    """

    __slots__ = ("_depth", "_groups", "_nodes", "action", "only", "tokens")

    def __init__(self, paths: Sequence[Path] = (), depth: int = 0) -> None:
        """The node above all of `paths`, which have their first `depth` ids in common."""
        groups: dict[int, list[Path]] = {}
        self.action: str | None = None
        for path in paths:
            if len(path[0]) == depth:
                self.action = path[1]
            else:
                groups.setdefault(path[0][depth], []).append(path)
        self.only = (paths[0][0][depth:], paths[0][1]) if len(paths) == 1 else None
        self.tokens = tuple(groups)  # token id of each child
        self._groups, self._depth = groups, depth
        self._nodes: dict[int, Node] = {}

    def child(self, index: int) -> Node:
        """The child that tokens[index] leads to."""
        found = self._nodes.get(index)
        if found is None:
            found = self._nodes[index] = Node(self._groups[self.tokens[index]], self._depth + 1)
        return found

    def longest(self) -> int:
        """Number of ids on the longest path down from here."""
        ends = (len(ids) for group in self._groups.values() for ids, _ in group)
        return max(ends, default=self._depth) - self._depth

    def shared(self) -> list[int]:
        """Indices of the children that lead to several actions, and so to a choice."""
        return [index for index, token in enumerate(self.tokens) if len(self._groups[token]) > 1]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The children, in the order of `tokens`."""
        return tuple(self.child(index) for index in range(len(self.tokens)))


def build_trie(actions: Sequence[str], encode: Callable[[str], Sequence[int]]) -> Node:
    """The trie of `actions`, each encoded by `encode`. Raises AlikeError where two actions cannot be told apart."""
    paths = [(tuple(encode(action)), action) for action in actions]
    ordered = sorted(ids for ids, _ in paths)
    for ids, following in pairwise(ordered):  # after sorting, a sequence comes directly before those that begin with it
        if following[: len(ids)] == ids:
            one, other = [action for found, action in paths if found in (ids, following)][:2]
            if one == other:
                raise AlikeError(f"the game lists the action {one!r} twice", hint="list each valid action once")
            raise AlikeError(
                f"the actions {one!r} and {other!r} cannot be told apart by their tokens",
                hint="an action must not be a prefix of another once encoded; check the tokenizer",
            )
    return Node(paths)


@dataclass(frozen=True, slots=True)
class Choices:
    """What to read of the trie under `root` to know each choice in it: K nodes at which something is chosen.

    `nodes`: the index of each among the K. It is predicted at read_K, 0 for the state and 1 + i for token i of `tree`;
    its children are in children_KC, padded with -1.
    """

    root: Node
    tree: TokenTree
    nodes: dict[Node, int]
    read_K: NDArray[np.int64]
    children_KC: NDArray[np.int64]


def choices(root: Node, most: int) -> Choices:
    """The choices that can be read from at most `most` tokens after the state, those near the root first."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    read: list[int] = []
    nodes: dict[Node, int] = {}
    waiting = deque([(root, -1, 0)])
    while waiting:
        node, place, depth = waiting.popleft()
        if len(node.tokens) > 1:
            nodes[node] = len(read)
            read.append(place + 1)
        for index in node.shared()[: most - len(tokens)]:
            waiting.append((node.child(index), len(tokens), depth + 1))
            tokens.append(node.tokens[index])
            parents.append(place)
            depths.append(depth)
    children_KC = np.full((len(nodes), max((len(node.tokens) for node in nodes), default=0)), -1)
    for place, node in enumerate(nodes):
        children_KC[place, : len(node.tokens)] = node.tokens
    tree = TokenTree(tuple(tokens), tuple(parents), tuple(depths))
    return Choices(root, tree, nodes, np.array(read, dtype=np.int64), children_KC)


def joined(found: Sequence[Choices], states: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(read_K, children_KC) of several `Choices` together; the tree of i follows its state, at index `states[i]`."""
    read_K = np.concatenate([each.read_K + state for each, state in zip(found, states, strict=True)])
    children_KC = np.full((len(read_K), max(1, *(each.children_KC.shape[1] for each in found))), -1)
    first = 0
    for each in found:
        count, widest = each.children_KC.shape
        children_KC[first : first + count, :widest] = each.children_KC
        first += count
    return read_K, children_KC


class TrieCache:
    """Tries by action list. States repeat, within a game and between games."""

    def __init__(self, encode: Callable[[str], Sequence[int]], size: int = 250_000) -> None:
        """`size` actions are kept, some 150 bytes each: games may list thousands in a state."""

        @cached(LRUCache(size, getsizeof=lambda known: known.size), lock=RLock())
        def known(actions: tuple[str, ...]) -> _Known:
            return _Known(build_trie(actions, encode), len(actions))

        self._known = known

    def __call__(self, actions: tuple[str, ...]) -> Node:
        return self._known(actions).root

    def longest(self, actions: tuple[str, ...]) -> int:
        """Tokens of the longest of `actions`."""
        return self._known(actions).longest

    def choices(self, actions: tuple[str, ...]) -> Choices:
        """What a look-ahead must read."""
        return self._known(actions).choices


class _Known:
    """A trie, and what is computed from it once."""

    def __init__(self, root: Node, size: int) -> None:
        self.root, self.size = root, size
        self.longest = root.longest()

    @cached_property
    def choices(self) -> Choices:
        return choices(self.root, LOOK)


def path_branches(root: Node, ids: Sequence[int], *, forced: bool = False) -> list[tuple[int, tuple[int, ...], int]]:
    """(offset, children, chosen) of each branching node on the path `ids`; offset: ids fed before the decision.

    With `forced` also of nodes where there is no choice.
    """
    node, branches = root, []
    for offset, token in enumerate(ids):
        index = node.tokens.index(token)
        if forced or len(node.tokens) > 1:
            branches.append((offset, node.tokens, index))
        node = node.child(index)
    return branches
