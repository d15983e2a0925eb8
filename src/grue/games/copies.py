"""Games of a fold that are identical to a game of a later fold, on which results are measured.

Seeds of folds are disjoint, but where few games are possible, two seeds can make the same one: of the 1000 test games
of coin with five rooms 43 were also train games. Here such games are recognised, so that `tasks` can leave them out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from grue.errors import ConfigError
from grue.games.base import fold_range
from grue.games.known import is_native
from grue.games.native import native_seeds
from grue.games.params import Params, coin_rooms, values
from grue.games.textworld.folder import layout, names_folder
from grue.games.twx.jvm import JvmSettings
from grue.types import Task

# Levels of BabyAI in which games were found twice: GoToRedBallNoDists, GoToObj, UnlockLocal. In the 3000 games of each
# of the other small levels there were none, and there is far more to draw in the large ones.
_SMALL_LEVELS = (0, 2, 7)
_MANY_ROOMS = 10  # of coin: with this many no game was found twice; with 8, five; with 5, over a hundred
_MANY_MAP_ROOMS = 4  # of mapreader: with this many no game was found twice; with 3, three; with 2, hundreds
_MANY_TEXTWORLD_ROOMS = 4  # of textworld-coin: with this many no map was found twice; with 3, some; with 2, hundreds


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads what the seed of a task has drawn."""

    glance: Callable[[Task], Hashable]  # equal for equal games; cheap
    look: Callable[[Task], Hashable]  # equal for equal games, and for them alone
    close: Callable[[], None] = lambda: None


def has_copies(game: str, params: Params) -> bool:
    """Whether folds of this game are searched for copies."""
    if game in ("coin", "mapreader"):
        rooms = values(game, params)["numLocations"]
        return rooms < (_MANY_ROOMS if game == "coin" else _MANY_MAP_ROOMS)
    if game == "textworld-coin":
        return coin_rooms(values(game, params)["level"]) < _MANY_TEXTWORLD_ROOMS
    return game == "toy" or names_folder(game) or (game == "babyai" and values(game, params)["level"] in _SMALL_LEVELS)


def open_reader(game: str, params: str, settings: JvmSettings) -> Reader:
    """A reader of a game that `has_copies`; to be closed."""
    if game == "toy":
        from grue.games.toy import house

        return Reader(house, house)
    if game == "babyai":
        from grue.games.babyai.game import world

        return Reader(world, world)
    if game == "textworld-coin":
        from grue.games.textworld.make import coin_map

        return Reader(coin_map, coin_map)
    if names_folder(game):
        return Reader(layout, layout)
    from grue.games.twx.game import TwxGame

    opened = TwxGame(game, params, settings=settings)
    return Reader(opened.first_text, opened.rooms, opened.close)


class Fold:
    """The games of one fold, read only as far as the questions about them need."""

    def __init__(self, game: str, params: str, fold: str, reader: Reader) -> None:
        self._alike: dict[Hashable, list[Task]] = {}
        self._looks: dict[Hashable, set[Hashable]] = {}
        for seed in _seeds(game, params, fold):
            task = Task(game, params, fold, seed, limit=1)
            self._alike.setdefault(reader.glance(task), []).append(task)

    def looks(self, glance: Hashable, reader: Reader) -> set[Hashable]:
        """Those games that have this glance."""
        if glance not in self._looks:
            self._looks[glance] = {reader.look(task) for task in self._alike.get(glance, ())}
        return self._looks[glance]


def _seeds(game: str, params: str, fold: str) -> range:
    if not is_native(game):
        return fold_range(fold)
    try:
        return native_seeds(game, params, fold)
    except ConfigError:  # of a folder that has no games for this fold, there is none to be like
        return range(0)


def is_copied(task: Task, later: Sequence[Fold], reader: Reader) -> bool:
    """Whether a game of the folds `later` is the same as `task`."""
    glance = reader.glance(task)
    looks = set[Hashable]().union(*(fold.looks(glance, reader) for fold in later))
    return bool(looks) and reader.look(task) in looks
