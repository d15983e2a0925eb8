"""The games that are trained on: with things renamed, and with what only a critic may know."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from grue.errors import ConfigError
from grue.games.babyai.mirror import GAME as BABYAI
from grue.games.babyai.mirror import RenamedRoom, can_mirror, renamed_room
from grue.games.base import Game, layers
from grue.games.engine_game import EngineGame
from grue.games.params import Params
from grue.games.plugins import is_plugin, plugin_class
from grue.games.renaming import RenamedOwn, renamed_own, static_renaming
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


def renamer(game: str, params: Params) -> Renamer | None:
    """What renames things in recorded episodes of `game`; None for a game whose things cannot be renamed."""
    if game in RENAMED:
        return renamed_episode if game != "coin" or can_turn(params) else None
    if game == COOKING:
        return renamed_foods
    if game == BABYAI:
        return renamed_room if can_mirror(params) else None
    renaming = static_renaming(plugin_class(game), game) if is_plugin(game) else None
    return None if renaming is None else partial(renamed_own, renaming=renaming)


def check_training(name: str, params: Params, rename: float, hidden_state: bool = False, *, stage: str = "ppo") -> None:
    """ConfigError where the settings of a stage require something that a game cannot do."""
    if rename and renamer(name, params) is None:
        raise _cannot_rename(name, stage)
    if hidden_state and name != "cookingworld":
        raise _cannot_tell(name)


def training_games(games: Sequence[Game], rename: float, salt: str, starts: Starts | None = None) -> Sequence[Game]:
    """The games to train on: as they are, or with things renamed in a share of the episodes.

    With `starts`, what is known of earlier games, they also tell how many steps a win still takes.
    """
    return [_training_game(game, rename, salt, starts) for game in games] if rename or starts is not None else games


def _training_game(game: Game, rename: float, salt: str, starts: Starts | None) -> Game:
    inside = list(layers(game))
    engine = inside[-1]
    renaming = next((found for layer in inside if (found := getattr(layer, "renaming", None)) is not None), None)
    if isinstance(engine, TwxGame) and renaming is None:
        check_training(engine.game, engine.params, rename, starts is not None)
        telling = game if starts is None else Told(game, starts)
        return RenamedTwx(telling, salt, rename) if rename else telling
    if starts is not None:
        raise _cannot_tell("another game")
    if isinstance(engine, WorkerGame) and engine.game == COOKING and renaming is None:
        return RenamedFoods(game, salt, rename)
    if isinstance(engine, EngineGame) and engine.game == BABYAI and renaming is None:
        check_training(engine.game, engine.params, rename)
        return RenamedRoom(game, salt, rename)
    if renaming is None:
        raise _cannot_rename("another game", "ppo", "; a class that wraps such a game holds it as `inner`")
    return RenamedOwn(game, renaming, salt, rename)


def _cannot_rename(name: str, stage: str, hint: str = "") -> ConfigError:
    return ConfigError(
        f"{stage}.rename is for {', '.join(RENAMED)} with ten rooms or more, {COOKING}, larger levels of {BABYAI}, and "
        f"games of your own that have a method renaming; this is {name}",
        hint=f"set {stage}.rename=0{hint}",
    )


def _cannot_tell(name: str) -> ConfigError:
    return ConfigError(
        f"ppo.hidden_state is for cookingworld; this is {name}",
        hint="set ppo.hidden_state=false, or start from a preset for this game",
    )
