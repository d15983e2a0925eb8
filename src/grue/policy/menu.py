"""The valid actions of a state as one tree of tokens, and which of its tokens to read: those of likely actions."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grue.engine.tree import CandidateTree, TokenTree, candidate_tree
from grue.prompts.tokens import Encoder
from grue.types import Candidate

AT_ONCE = 96  # tokens of a tree that is read in one pass
FIRST, LARGEST = (
    64,
    512,
)  # new tokens of the first part of a larger one, and of the largest: each may have twice as many


@dataclass(frozen=True, slots=True)
class Menu:
    """The actions weighed at a state: P tokens of K actions. State 0 is the state itself; those of the tree follow."""

    actions: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    tree: CandidateTree
    read_P: NDArray[np.int64]  # ascending: the state that predicts the token
    token_P: NDArray[np.int64]
    action_P: NDArray[np.int64]


class Menus:
    """A cache of menus by valid actions. It holds no model, so that a dropped policy frees its weights at once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.shortened = lru_cache(maxsize=2_000)(self._shortened)
        self.menu = lru_cache(maxsize=2_000)(self._menu)

    def _shortened(self, actions: tuple[str, ...]) -> tuple[tuple[str, Candidate], ...]:
        """The actions with the ids that tell them apart: forced endings are left out."""
        every = [self._encoder.action(action) for action in actions]
        ordered = sorted(every)  # ids with the same beginning become neighbours
        place_of = {ids: place for place, ids in enumerate(ordered)}
        found = []
        for action, ids in zip(actions, every, strict=True):
            place, short = place_of[ids], self._encoder.without_end(ids)
            beside = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
            shared = any(other[: len(short)] == short for other in beside)
            found.append((action, Candidate(ids if shared else short, 1.0)))
        return tuple(found)

    def _menu(self, actions: tuple[str, ...], firsts: frozenset[int]) -> Menu:
        """The menu of those `actions` that begin with one of `firsts`."""
        pairs = [(action, candidate) for action, candidate in self.shortened(actions) if candidate.ids[0] in firsts]
        tree = candidate_tree([candidate for _, candidate in pairs])
        steps = sorted(
            (read + 1, token, number)
            for number, (path, (_, candidate)) in enumerate(zip(tree.paths, pairs, strict=True))
            for read, token in zip(path, candidate.ids, strict=True)
        )
        read_P, token_P, action_P = (np.array([step[i] for step in steps], dtype=np.int64) for i in range(3))
        actions, candidates = zip(*pairs, strict=True)
        return Menu(actions, candidates, tree, read_P, token_P, action_P)


class Part(NamedTuple):
    """Tokens of a menu's tree to read together, with those above them, and what the states of the new ones predict."""

    tree: TokenTree
    state_I: NDArray[np.int64]  # index in `tree` of the token after whose state ...
    token_I: NDArray[np.int64]  # ... this one of the menu's P tokens comes


class Search:
    """Reads of a menu what must be known of actions that are at least exp(`least`) times as likely as the likeliest.

    A small tree is read whole. Of a large one, the beginnings that are likeliest so far are read first, each with what
    follows as if all continuations were equally likely. An action is no likelier than its beginning, so what begins
    less likely than `least` allows beside an action that is known whole is never read. `log_probs_P` is that of each of
    the menu's tokens, which the caller fills in part by part; it stays -inf where nothing was read.
    """

    def __init__(self, menu: Menu, log_probs_P: NDArray[np.float64], least: float) -> None:
        self._menu, self._log_probs_P, self._least = menu, log_probs_P, least
        self._whole = len(menu.tree.tokens) <= AT_ONCE or least == -math.inf
        self._done = not menu.tree.tokens
        if self._whole or self._done:
            return
        self._size = FIRST
        self._below: dict[int, list[int]] = {}
        for place, parent in enumerate(menu.tree.parents):
            self._below.setdefault(parent, []).append(place)
        place_of = {pair: p for p, pair in enumerate(zip(menu.read_P.tolist(), menu.token_P.tolist(), strict=True))}
        tokens = zip(menu.tree.parents, menu.tree.tokens, strict=True)
        self._own = [place_of[parent + 1, token] for parent, token in tokens]  # where log_probs_P holds a tree's token
        self._log_prob = {place: float(log_probs_P[self._own[place]]) for place in self._below[-1]}  # of a beginning
        self._waiting = list(self._log_prob)  # tokens that could be read next
        self._new: list[int] = []  # those of the part that is being read

    def next(self) -> Part | None:
        """What to read now that the tokens of the part before are in `log_probs_P`; None when enough is known."""
        if self._done:
            return None
        if self._whole:
            self._done = True
            deep_I = np.flatnonzero(self._menu.read_P)
            return Part(self._menu.tree, self._menu.read_P[deep_I] - 1, deep_I)
        self._learn()
        known = np.bincount(self._menu.action_P, self._log_probs_P, len(self._menu.actions))
        bound = float(known.max()) + self._least
        # not >=: nothing that overflowed is left out. Such a decision is found later, by `is_finite`
        self._waiting = [place for place in self._waiting if not self._log_prob[place] < bound]
        self._new = self._likeliest(bound)
        self._done = not self._new
        return None if self._done else self._part()

    def _learn(self) -> None:
        """How likely the beginnings are that go on from what was read."""
        for place in self._new:
            for child in self._below.get(place, ()):
                self._log_prob[child] = self._log_prob[place] + float(self._log_probs_P[self._own[child]])
        read = set(self._new)
        self._waiting = [place for place in self._waiting if place not in read]
        self._waiting += [child for place in self._new for child in self._below.get(place, ()) if child not in read]

    def _likeliest(self, bound: float) -> list[int]:
        """Tokens to read next, from those that are waiting downwards."""
        heap = [(-self._log_prob[place], place) for place in self._waiting]
        heapq.heapify(heap)
        found: list[int] = []
        while heap and len(found) < self._size:
            cost, place = heapq.heappop(heap)
            found.append(place)
            below = self._below.get(place, ())
            guess = cost + math.log(max(1, len(below)))
            for child in below if not -guess < bound else ():
                heapq.heappush(heap, (guess, child))
        self._size = min(LARGEST, 2 * self._size)
        return found

    def _part(self) -> Part:
        tree = self._menu.tree
        held = set(self._new)
        for place in self._new:
            while (place := tree.parents[place]) >= 0 and place not in held:
                held.add(place)
        order = sorted(held)  # parents come first, as in the whole tree
        at = {place: number for number, place in enumerate(order)}
        part = TokenTree(
            tuple(tree.tokens[place] for place in order),
            tuple(at.get(tree.parents[place], -1) for place in order),
            tuple(tree.depths[place] for place in order),
        )
        at_N = np.full(1 + len(tree.tokens), -1)  # by state: where a new token is in the part
        at_N[1 + np.array(self._new)] = [at[place] for place in self._new]
        token_I = np.flatnonzero(at_N[self._menu.read_P] >= 0)
        return Part(part, at_N[self._menu.read_P[token_I]], token_I)


def read_first(menus: Sequence[Menu]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(menu, token) of all tokens that the states themselves predict; tokens are numbered through all menus."""
    rows_P = np.repeat(np.arange(len(menus)), [len(menu.read_P) for menu in menus])
    first_I = np.flatnonzero(np.concatenate([menu.read_P for menu in menus]) == 0)
    return rows_P[first_I], first_I
