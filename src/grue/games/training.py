"""The games that PPO trains on: with things renamed, and with what only a critic may know."""

from __future__ import annotations

from collections.abc import Sequence

from grue.errors import ConfigError
from grue.games.base import Game
from grue.games.twx.game import TwxGame
from grue.games.twx.renamed import GAMES as RENAMED
from grue.games.twx.renamed import Renamed
from grue.games.twx.told import Starts, Told


def check_training(name: str, rename: float, hidden_state: bool = False, *, stage: str = "ppo") -> None:
    """ConfigError where the settings of a stage require something that a game cannot do."""
    if rename and name not in RENAMED:
        raise ConfigError(f"{stage}.rename is for {', '.join(RENAMED)}; this is {name}", hint=f"set {stage}.rename=0")
    if hidden_state and name != "cookingworld":
        raise ConfigError(
            f"ppo.hidden_state is for cookingworld; this is {name}",
            hint="set ppo.hidden_state=false, or start from a preset for this game",
        )


def training_games(games: Sequence[Game], rename: float, salt: str, starts: Starts | None = None) -> Sequence[Game]:
    """The games to train on: as they are, or with things renamed in a share of the episodes.

    With `starts`, what is known of earlier games, they also tell how many steps a win still takes.
    """
    if rename == 0 and starts is None:
        return games
    for game in games:
        check_training(game.game if isinstance(game, TwxGame) else "another game", rename, starts is not None)
    express = [game for game in games if isinstance(game, TwxGame)]
    telling: Sequence[TwxGame | Told] = express if starts is None else [Told(game, starts) for game in express]
    return [Renamed(game, salt, rename) for game in telling] if rename else telling
