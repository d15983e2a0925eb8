"""The valid actions of a state as one tree of tokens, and which of its tokens to read: those of likely actions."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from grue.engine.tree import CandidateTree, TokenTree, candidate_tree
from grue.prompts.tokens import Encoder
from grue.types import Candidate

AT_ONCE = 96  # tokens of a tree that is read in one pass
FIRST = 64  # new tokens of the first part of a larger one; each part may have twice as many as the one before ...
LARGEST = 512  # ... up to this
KEPT = 120_000  # actions that a cache keeps, some 200 and 600 bytes each: games may list thousands in a state


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
        self.shortened = cached(LRUCache(KEPT, getsizeof=len), lock=RLock())(self._shortened)
        self.menu = cached(LRUCache(KEPT, getsizeof=lambda menu: len(menu.actions)), lock=RLock())(self._menu)

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


def likely_parts(menu: Menu, log_probs_P: NDArray[np.float64], least: float) -> Iterator[Part]:
    """What to read of a menu to know the actions that are at least exp(`least`) times as likely as the likeliest.

    A small tree is read whole. Of a large one, the beginnings that are likeliest so far are read first, each with what
    follows as if all continuations were equally likely. An action is no likelier than its beginning, so what begins
    less likely than `least` allows beside an action that is known whole is never read.

    `log_probs_P` is that of each of the menu's tokens, -inf where it is not known. It holds those that the state itself
    predicts, and before the next part is asked for, the caller writes those of the last one into it.
    """
    tree = menu.tree
    if len(tree.tokens) <= AT_ONCE or least == -math.inf:
        if tree.tokens:
            deep_I = np.flatnonzero(menu.read_P)
            yield Part(tree, menu.read_P[deep_I] - 1, deep_I)
        return
    below: dict[int, list[int]] = defaultdict(list)
    for place, parent in enumerate(tree.parents):
        below[parent].append(place)
    number_of = {pair: p for p, pair in enumerate(zip(menu.read_P.tolist(), menu.token_P.tolist(), strict=True))}
    own = [number_of[parent + 1, token] for parent, token in zip(tree.parents, tree.tokens, strict=True)]
    log_prob = {place: float(log_probs_P[own[place]]) for place in below[-1]}  # of a whole beginning
    waiting, size = [*log_prob], FIRST  # tokens that could be read next
    while True:
        known_K = np.bincount(menu.action_P, log_probs_P, len(menu.actions))
        bound = float(known_K.max()) + least
        # not >=: nothing that overflowed is left out. Such a decision is found later, by `is_finite`
        waiting = [place for place in waiting if not log_prob[place] < bound]
        if not waiting:
            return
        new = _likeliest({place: log_prob[place] for place in waiting}, below, bound, size)
        yield _part(menu, new)
        read, size = set(new), min(LARGEST, 2 * size)
        for place in new:
            for child in below[place]:
                log_prob[child] = log_prob[place] + float(log_probs_P[own[child]])
                waiting.append(child)
        waiting = [place for place in waiting if place not in read]


def _likeliest(beginnings: Mapping[int, float], below: Mapping[int, list[int]], bound: float, most: int) -> list[int]:
    """At most `most` tokens to read next, those above others first: from the `beginnings` downwards."""
    heap = [(-log_prob, place) for place, log_prob in beginnings.items()]
    heapq.heapify(heap)
    found: list[int] = []
    while heap and len(found) < most:
        cost, place = heapq.heappop(heap)
        found.append(place)
        guess = cost + math.log(max(1, len(below[place])))
        for child in below[place] if not -guess < bound else ():
            heapq.heappush(heap, (guess, child))
    return found


def _part(menu: Menu, new: Sequence[int]) -> Part:
    """These tokens of the tree, with those above them."""
    tree, held = menu.tree, set(new)
    for place in new:
        while (place := tree.parents[place]) >= 0 and place not in held:
            held.add(place)
    at = {place: number for number, place in enumerate(sorted(held))}  # parents come first, as in the whole tree
    at_S = np.full(1 + len(tree.tokens), -1)  # by state: where a new token is in the part
    at_S[1 + np.array(new)] = [at[place] for place in new]
    token_I = np.flatnonzero(at_S[menu.read_P] >= 0)
    return Part(tree.part(at), at_S[menu.read_P[token_I]], token_I)
