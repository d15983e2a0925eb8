"""The games that are trained on: with things renamed, and with what only a critic may know."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from grue.errors import ConfigError
from grue.games.babyai.mirror import GAME as BABYAI
from grue.games.babyai.mirror import RenamedRoom, can_mirror, renamed_room
from grue.games.base import Game, layers
from grue.games.engine_game import EngineGame
from grue.games.params import Params
from grue.games.plugins import is_plugin, plugin_class
from grue.games.renaming import RenamedOwn, Renaming, renamed_own, static_renaming
from grue.games.textworld.foods import GAME as COOKING
from grue.games.textworld.foods import RenamedFoods, renamed_foods
from grue.games.twx.directions import can_turn
from grue.games.twx.game import TwxGame
from grue.games.twx.renamed import GAMES as RENAMED
from grue.games.twx.renamed import RenamedTwx, renamed_episode
from grue.games.twx.told import Starts, Told
from grue.games.worker.game import WorkerGame
from grue.types import Episode

Renamer = Callable[[Episode, random.Random], Episode]
_TOLD = "cookingworld"  # the game that tells how many steps a win still takes


class _Way(NamedTuple):
    """How the things of a game are renamed."""

    recorded: Renamer  # an episode that was played with the game's own names
    played: Callable[[Game, str, float], Game]  # (the game, a salt, the share of episodes) -> the game with other names
    possible: Callable[[Params], bool] = lambda params: True


_WAYS = {
    **dict.fromkeys(RENAMED, _Way(renamed_episode, RenamedTwx)),
    "coin": _Way(renamed_episode, RenamedTwx, can_turn),
    COOKING: _Way(renamed_foods, RenamedFoods),
    BABYAI: _Way(renamed_room, RenamedRoom, can_mirror),
}


def renamer(game: str, params: Params) -> Renamer | None:
    """What renames things in recorded episodes of `game`; None for a game whose things cannot be renamed."""
    way = _way(game, params)
    return None if way is None else way.recorded


def check_training(name: str, params: Params, rename: float, hidden_state: bool = False, *, stage: str = "ppo") -> None:
    """ConfigError where the settings of a stage require something that a game cannot do."""
    if rename and _way(name, params) is None:
        raise _cannot_rename(name, stage)
    if hidden_state and name != _TOLD:
        raise _cannot_tell(name)


def training_games(games: Sequence[Game], rename: float, salt: str, starts: Starts | None = None) -> Sequence[Game]:
    """The games to train on: as they are, or with things renamed in a share of the episodes.

    With `starts`, what is known of earlier games, they also tell how many steps a win still takes.
    """
    return [_training_game(game, rename, salt, starts) for game in games] if rename or starts is not None else games


def _training_game(game: Game, rename: float, salt: str, starts: Starts | None) -> Game:
    inside = list(layers(game))
    engine = inside[-1]
    ours = engine if isinstance(engine, TwxGame | WorkerGame | EngineGame) else None
    name, params = ("another game", "") if ours is None else (ours.game, ours.params)
    renaming = next((found for layer in inside if (found := getattr(layer, "renaming", None)) is not None), None)
    if starts is not None:
        if name != _TOLD or renaming is not None:
            raise _cannot_tell(name if renaming is None else "another game")
        game = Told(game, starts)
    if not rename:
        return game
    way = _way(name, params) if renaming is None else _own(renaming)
    if way is None:
        hint = "; a class that wraps such a game holds it as `inner`" if ours is None else ""
        raise _cannot_rename(name, "ppo", hint)
    return way.played(game, salt, rename)


def _way(game: str, params: Params) -> _Way | None:
    """How things are renamed in `game`; None if they cannot be."""
    if game in _WAYS:
        return _WAYS[game] if _WAYS[game].possible(params) else None
    renaming = static_renaming(plugin_class(game), game) if is_plugin(game) else None
    return None if renaming is None else _own(renaming)


def _own(renaming: Renaming) -> _Way:
    return _Way(
        partial(renamed_own, renaming=renaming),
        lambda game, salt, share: RenamedOwn(game, renaming, salt, share),
    )


def _cannot_rename(name: str, stage: str, hint: str = "") -> ConfigError:
    return ConfigError(
        f"{stage}.rename is for {', '.join(RENAMED)} with ten rooms or more, {COOKING}, larger levels of {BABYAI}, and "
        f"games of your own that have a method renaming; this is {name}",
        hint=f"set {stage}.rename=0{hint}",
    )


def _cannot_tell(name: str) -> ConfigError:
    return ConfigError(
        f"ppo.hidden_state is for {_TOLD}; this is {name}",
        hint="set ppo.hidden_state=false, or start from a preset for this game",
    )
