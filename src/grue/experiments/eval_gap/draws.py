"""Draws of games that take account of those posing the same problem: another copy of one adds no information."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]  # indices of games in an array


def grouped(problems: Sequence[Hashable]) -> list[Places]:
    """For each problem, the places of its games."""
    places: dict[Hashable, list[int]] = {}
    for place, posed in enumerate(problems):
        places.setdefault(posed, []).append(place)
    return [np.array(group) for group in places.values()]


def redrawn(groups: Sequence[Places], rng: np.random.Generator) -> Places:
    """All games of as many problems as there are, the problems drawn with replacement."""
    return np.concatenate([groups[k] for k in rng.integers(0, len(groups), len(groups))])


def spread_draw(problems: Sequence[Hashable], count: int, rng: np.random.Generator) -> Places:
    """Places of `count` games drawn without replacement: one of each problem before a second of any."""
    order = rng.permutation(len(problems))
    seen: Counter[Hashable] = Counter()
    rounds = []
    for place in order:
        rounds.append(seen[problems[place]])
        seen[problems[place]] += 1
    drawn: Places = order[np.argsort(rounds, kind="stable")][:count]
    return drawn
