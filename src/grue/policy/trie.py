"""Valid actions as a trie of token ids; a policy decides only where it branches.

At a node with one child there is nothing to decide, so forced tokens have probability 1. At a branching node the
model's logits are renormalised over the children: pi(a|s) is the product over the branching nodes on a's path, every
action is valid, and log-probabilities are exact. By the chain rule, the sum of the node entropies along a sampled path
is an unbiased estimate of the entropy of pi(.|s).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from grue.errors import ModelError


@dataclass(slots=True)
class Node:
    """A trie node. `action` is set where an action ends (always a leaf: actions end with a newline)."""

    tokens: tuple[int, ...] = ()  # token id of each child
    nodes: tuple[Node, ...] = ()  # the children, in the order of `tokens`
    action: str | None = None


@dataclass(slots=True)
class _Draft:
    children: dict[int, _Draft] = field(default_factory=dict)
    action: str | None = None

    def first(self) -> str | None:
        """An action at or below this node."""
        return self.action or next((child.first() for child in self.children.values()), None)

    def freeze(self) -> Node:
        return Node(tuple(self.children), tuple(child.freeze() for child in self.children.values()), self.action)


def build_trie(actions: Sequence[str], encode: Callable[[str], Sequence[int]]) -> Node:
    """The trie of `actions`, each encoded by `encode`. Raises ModelError where two actions have the same ids."""
    root = _Draft()
    for action in actions:
        draft = root
        shorter = None
        for token in encode(action):
            shorter = shorter or draft.action
            draft = draft.children.setdefault(token, _Draft())
        if shorter is not None or draft.action is not None or draft.children:
            raise ModelError(
                f"the actions {shorter or draft.first()!r} and {action!r} cannot be told apart by their tokens",
                hint="an action must not be a prefix of another once encoded; check the tokenizer",
            )
        draft.action = action
    return root.freeze()


class TrieCache:
    """Tries by action list. States repeat, within a game and between games."""

    def __init__(self, encode: Callable[[str], Sequence[int]], size: int = 20_000) -> None:
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
