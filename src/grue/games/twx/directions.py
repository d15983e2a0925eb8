"""Mazes of coin turned and mirrored: directions exchanged, so that a way learnt by heart leads nowhere.

In small mazes a train game turned would often be a dev or test game. Without doors, 978 of the 1000 train games with
five rooms could become one, four with nine, and none with ten: only mazes of ten rooms or more are turned.
"""

from __future__ import annotations

import random
import re

from grue.games.copies import has_copies
from grue.games.params import Params
from grue.games.renaming import reworded

_DIRECTIONS = ("north", "south", "east", "west")  # in the order in which the game names exits
_PLACE = {direction.title(): place for place, direction in enumerate(_DIRECTIONS)}
_EXIT = r"(?:To|Through [^.]*, to) the (North|South|East|West) [^.]*\."
_EXITS = re.compile(rf"^{_EXIT}(?: {_EXIT})+$", re.MULTILINE)


def can_turn(params: Params) -> bool:
    """Whether mazes of these parameters are turned."""
    return not has_copies("coin", params)


def draw_directions(rng: random.Random) -> dict[str, str]:
    """Another direction for each, or the same: one of the eight symmetries, so that the way back stays the way back."""
    axes = [_DIRECTIONS[:2], _DIRECTIONS[2:]]
    rng.shuffle(axes)
    there = dict(zip(_DIRECTIONS, (way for axis in axes for way in rng.sample(axis, 2)), strict=True))
    return there | {old.title(): new.title() for old, new in there.items()}


def turn(text: str, names: dict[str, str]) -> str:
    """`text` with directions exchanged; the exits of a room are named in the game's order, as it would name them."""
    return _EXITS.sub(_sorted_exits, reworded(text, names))


def _sorted_exits(line: re.Match[str]) -> str:
    exits = sorted(re.finditer(_EXIT, line[0]), key=lambda found: _PLACE[found[1]])
    return " ".join(found[0] for found in exits)
