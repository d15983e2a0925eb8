"""Whole actions as one tree of tokens, so that all of them can be read in one pass, or few, after a shared prefix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import RLock
from typing import NamedTuple

import numpy as np
import torch
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from grue.models.scores import Paths, Trees
from grue.types import Candidate

Row = tuple[Sequence[int], Sequence[tuple[int, tuple[Candidate, ...]]]]
KEPT = 250_000  # tokens of the trees that a cache keeps, some 200 bytes each: games may list thousands of actions


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Tokens ordered so that parents come first. Index -1 means the state, the last token of the prefix."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]  # 0 for tokens that follow the state

    def lines(self) -> list[tuple[int, ...]]:
        """For each token what it sees: its ancestors, from the top, and itself."""
        return _lines(self.parents)

    def part(self, places: Mapping[int, int]) -> TokenTree:
        """The tokens at `places` (in this tree -> in the part, in the part's order), which hold those above them."""
        return TokenTree(
            tuple(self.tokens[place] for place in places),
            tuple(places.get(self.parents[place], -1) for place in places),
            tuple(self.depths[place] for place in places),
        )

    def sights(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same as pairs: which token, and which one it sees. Do not write to them."""
        return _sights(self.parents)


@dataclass(frozen=True, slots=True)
class CandidateTree(TokenTree):
    """The last token of a candidate is not part of the tree: nothing is read after it."""

    paths: tuple[tuple[int, ...], ...]  # for each candidate, where each of its tokens is predicted: -1 or an index


class Piece(NamedTuple):
    """A part of a tree, with the ancestors of its tokens, which another part may hold, too."""

    tree: TokenTree
    own: NDArray[np.int64]  # which of its tokens no earlier piece holds
    places: NDArray[np.int64]  # of those in the whole tree


def pieces(tree: TokenTree, most: int) -> list[Piece]:
    """`tree` cut into pieces of `most` tokens with their ancestors, or of half as many tokens below a longer line."""
    everything = np.arange(len(tree.tokens))
    return [Piece(tree, everything, everything)] if len(everything) <= most else _pieces(tree, most)


def _tokens_of(found: list[Piece]) -> int:
    return sum(len(piece.tree.tokens) for piece in found)


@cached(LRUCache(KEPT, getsizeof=_tokens_of), lock=RLock())
def _pieces(tree: TokenTree, most: int) -> list[Piece]:
    below: dict[int, list[int]] = defaultdict(list)
    for place, parent in enumerate(tree.parents):
        below[parent].append(place)
    held: list[dict[int, int]] = [{}]  # place in the tree -> place in the piece
    waiting = below[-1][::-1]
    own: list[list[int]] = [[]]
    while waiting:  # depth first, so that a piece repeats one line of ancestors only
        place = waiting.pop()
        if len(held[-1]) >= most and len(own[-1]) >= max(1, most // 2):  # else a long line would be repeated for each
            line, above = [], tree.parents[place]
            while above >= 0:
                line.append(above)
                above = tree.parents[above]
            held.append({ancestor: number for number, ancestor in enumerate(reversed(line))})
            own.append([])
        held[-1][place] = len(held[-1])
        own[-1].append(place)
        waiting += below[place][::-1]
    found = []
    for known, places in zip(held, own, strict=True):
        found.append(Piece(tree.part(known), np.array([known[place] for place in places]), np.array(places)))
    return found


def _lines(parents: tuple[int, ...]) -> list[tuple[int, ...]]:
    lines: list[tuple[int, ...]] = []
    for place, parent in enumerate(parents):
        lines.append((*(lines[parent] if parent >= 0 else ()), place))
    return lines


@cached(LRUCache(4 * KEPT, getsizeof=lambda found: len(found[0])), lock=RLock())
def _sights(parents: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lines = _lines(parents)
    seeing = np.repeat(np.arange(len(lines)), [len(line) for line in lines])
    return seeing, np.array([place for line in lines for place in line], dtype=np.int64)


def state_places(trees: Sequence[TokenTree]) -> list[int]:
    """Where a look-ahead's output holds the state before each of `trees`, whose tokens follow it."""
    return list(accumulate((1 + len(tree.tokens) for tree in trees[:-1]), initial=0))


def candidate_tree(candidates: Sequence[Candidate]) -> CandidateTree:
    """The tree of candidates, each at least one token."""
    return _tree(tuple(candidate.ids for candidate in candidates))


@cached(LRUCache(KEPT, getsizeof=lambda found: len(found.tokens) + len(found.paths)), lock=RLock())
def _tree(candidates: tuple[tuple[int, ...], ...]) -> CandidateTree:
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    known: dict[tuple[int, ...], int] = {(): -1}
    paths = []
    for ids in candidates:
        path = [-1]
        for depth in range(1, len(ids)):
            beginning = ids[:depth]
            if beginning not in known:
                known[beginning] = len(tokens)
                tokens.append(ids[depth - 1])
                parents.append(known[ids[: depth - 1]])
                depths.append(depth - 1)
            path.append(known[beginning])
        paths.append(tuple(path))
    return CandidateTree(tuple(tokens), tuple(parents), tuple(depths), tuple(paths))


def flat_paths(turns: Sequence[Sequence[Candidate]]) -> Paths:
    """The paths of the candidates of several turns, with states numbered through: a turn's own, then its tree's."""
    paths: list[tuple[int, int, int]] = []
    places: list[tuple[int, int, float]] = []
    first = 0
    for node, candidates in enumerate(turns):
        tree = candidate_tree(candidates)
        for place, (candidate, path) in enumerate(zip(candidates, tree.paths, strict=True)):
            states = [(first + 1 + state, token) for state, token in zip(path, candidate.ids, strict=True)]
            paths += [(read, token, len(places)) for read, token in states]
            places.append((node, place, candidate.divisor))
        first += 1 + len(tree.tokens)
    path_PX = torch.tensor(sorted(paths, key=lambda path: path[0]), dtype=torch.long).reshape(-1, 3)
    return Paths(
        read_P=path_PX[:, 0].contiguous(),
        token_P=path_PX[:, 1],
        candidate_P=path_PX[:, 2],
        divisor_K=torch.tensor([divisor for *_, divisor in places], dtype=torch.float32),
        node_K=torch.tensor([node for node, _, _ in places], dtype=torch.long),
        place_K=torch.tensor([place for _, place, _ in places], dtype=torch.long),
    )


def lay_out(rows: Sequence[Row]) -> tuple[NDArray[np.int64], Trees]:
    """(ids (B, L), what a forward pass must know about them) for rows of (text, [(state, candidates) per turn])."""
    turns = [(row, *turn) for row, (_, answered) in enumerate(rows) for turn in answered]
    trees = [candidate_tree(candidates) for _, _, candidates in turns]
    sizes = [len(text) for text, _ in rows]
    for (row, _, _), tree in zip(turns, trees, strict=True):
        sizes[row] += len(tree.tokens)
    length = max(sizes)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    places = np.zeros((len(rows), length), dtype=np.int64)
    seen = np.tile(np.tri(length, dtype=np.bool_), (len(rows), 1, 1))  # whatever padding sees is never read
    ends = [len(text) for text, _ in rows]
    for row, (text, _) in enumerate(rows):
        ids[row, : len(text)] = text
        places[row, : len(text)] = np.arange(len(text))
    reads: list[tuple[int, int]] = []
    for (row, state, _), tree in zip(turns, trees, strict=True):
        start, end = ends[row], ends[row] + len(tree.tokens)
        ids[row, start:end] = tree.tokens
        places[row, start:end] = state + 1 + np.array(tree.depths, dtype=np.int64)
        seen[row, start:end] = False
        seen[row, start:end, : state + 1] = True
        seen[row, start:end, start:end][tree.sights()] = True
        reads += [(row, state), *((row, column) for column in range(start, end))]
        ends[row] = end
    read_RX = torch.tensor(reads, dtype=torch.long).reshape(-1, 2)
    return ids, Trees(
        places_BL=torch.from_numpy(places),
        seen_BLL=torch.from_numpy(seen),
        read_row_R=read_RX[:, 0],
        read_column_R=read_RX[:, 1],
        paths=flat_paths([candidates for _, _, candidates in turns]),
    )
