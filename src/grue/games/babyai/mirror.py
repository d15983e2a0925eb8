"""Rooms of BabyAI mirrored and in other colours, so that a way learnt by heart leads nowhere.

Left and right are exchanged, and so are colours: doors keep to the keys of their colour. In small levels a train game
could become a dev or test game so. Of 1000 games each, 405 rooms of level 0 are, but for mirroring and colours, in both
train and dev, 349 of level 2, 58 of level 7, 4 of level 4, and none of the others: only those are mirrored.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from grue.games.params import Params, values
from grue.games.renaming import Names, Renamed, reworded, with_names
from grue.types import Episode, Observation, Task

GAME = "babyai"
_SMALL_LEVELS = (0, 2, 4, 7)  # GoToRedBallNoDists, GoToObj, OpenDoor, UnlockLocal
_COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
_PAIR = re.compile(r"\b(an? [a-z ]+) ((?:\d+ steps? ahead and )?\d+ steps? to the )right, (an? [a-z ]+) \2left\b")


class RenamedRoom(Renamed):
    """A game of babyai, or what another class makes of it."""

    def _namer(self, task: Task, rng: random.Random) -> Callable[[Observation], Names]:
        return lambda _: _exchanged(rng)


def renamed_room(episode: Episode, rng: random.Random) -> Episode:
    """A played episode as its mirrored room, or the same in other colours, would have shown it."""
    return with_names(episode, _exchanged(rng))


def can_mirror(params: Params) -> bool:
    """Whether rooms of these parameters are mirrored."""
    return values(GAME, params)["level"] not in _SMALL_LEVELS


def _exchanged(rng: random.Random) -> Names:
    names = dict(zip(_COLOURS, rng.sample(_COLOURS, len(_COLOURS)), strict=True))
    return Names(names | {"left": "right", "right": "left"} if rng.random() < 0.5 else names, _mirrored)


def _mirrored(text: str, names: dict[str, str]) -> str:
    """`text` with words exchanged; of two things at one distance the left one is named first, as the game does."""
    return _PAIR.sub(r"\3 \2left, \1 \2right", reworded(text, names))
