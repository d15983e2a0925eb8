"""Games of a fold that are the same as one which a later fold measures.

Seeds of folds are disjoint, but where few games are possible, two seeds can make the same one: of the 1000 test games
of coin with five rooms 43 were also train games. Here such games are recognised, so that `tasks` can leave them out.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from grue.games.base import fold_range
from grue.games.jvm import JvmSettings
from grue.games.native import values
from grue.games.params import FAMILIES, parse
from grue.types import Task

# Levels of BabyAI in which games were found twice: GoToRedBallNoDists, GoToObj, UnlockLocal. In the 3000 games of each
# of the other small levels there were none, and there is far more to draw in the large ones.
_SMALL_LEVELS = (0, 2, 7)
_MANY_ROOMS = 10  # of coin: with as many no game was found twice, with 8 five, with 5 more than a hundred


class Reader(Protocol):
    """Reads what the seed of a task has drawn."""

    def glance(self, task: Task) -> Hashable:
        """Equal for equal games; cheap."""
        ...

    def look(self, task: Task) -> Hashable:
        """Equal for equal games, and for them alone."""
        ...

    def close(self) -> None: ...


def has_copies(game: str, params: str) -> bool:
    """Whether folds of this game are searched for copies. TextWorld's games take seconds each to make: they are not."""
    if game == "coin":
        return parse(params).get("numLocations", FAMILIES["coin"]["numLocations"][0]) < _MANY_ROOMS
    return game == "toy" or (game == "babyai" and values(game, params)["level"] in _SMALL_LEVELS)


def open_reader(game: str, params: str, settings: JvmSettings) -> Reader:
    """A reader of a game that `has_copies`; to be closed."""
    if game == "coin":
        return _CoinReader(params, settings)
    return _ToyReader() if game == "toy" else _BabyAIReader()


class Fold:
    """The games of one fold, read as far as the questions about them need."""

    def __init__(self, game: str, params: str, fold: str, reader: Reader) -> None:
        self._alike: dict[Hashable, list[Task]] = {}
        self._looks: dict[Hashable, set[Hashable]] = {}
        for seed in fold_range(fold):
            task = Task(game, params, fold, seed, limit=1)
            self._alike.setdefault(reader.glance(task), []).append(task)

    def has(self, task: Task, reader: Reader) -> bool:
        """Whether a game of this fold is the same as `task`."""
        glance = reader.glance(task)
        if glance not in self._alike:
            return False
        if glance not in self._looks:
            self._looks[glance] = {reader.look(other) for other in self._alike[glance]}
        return reader.look(task) in self._looks[glance]


class _CoinReader:
    """By what is seen in the first room, then in all."""

    def __init__(self, params: str, settings: JvmSettings) -> None:
        from grue.games.twx import TwxGame

        self._game = TwxGame("coin", params, settings=settings)

    def glance(self, task: Task) -> Hashable:
        return self._game.first_text(task)

    def look(self, task: Task) -> Hashable:
        return self._game.rooms(task)

    def close(self) -> None:
        self._game.close()


class _ToyReader:
    def glance(self, task: Task) -> Hashable:
        from grue.games.toy import house

        return house(task)

    look = glance

    def close(self) -> None:
        pass


class _BabyAIReader:
    def glance(self, task: Task) -> Hashable:
        from grue.games.babyai import world

        return world(task)

    look = glance

    def close(self) -> None:
        pass
