"""Games: the contract, TextWorldExpress, a toy game in pure Python, teachers, and playing one episode."""

from __future__ import annotations

from grue.games.base import FOLDS, Game, begin_reset, begin_step, check_seed, fold_of
from grue.games.known import is_known, is_native, known_games
from grue.games.native import make_native
from grue.games.params import Params
from grue.games.plugins import is_plugin, make_plugin
from grue.games.ranges import FAMILIES, NATIVE
from grue.games.tasks import canonical_params, tasks
from grue.games.twx.jvm import JvmSettings


def what_checks(game: str) -> str:
    """A hint for whoever sees many games of this name fail."""
    java = game in FAMILIES or game == "scienceworld"
    return "grue doctor checks Java and memory" if java else f"grue check-game {game} checks the game by itself"


def make(game: str, params: Params = "", java: str | None = None, *, read_timeout_s: float = 20.0) -> Game:
    """A game by name: "toy", a TextWorldExpress family, one of NATIVE, or one that a package declares.

    `java` is the path of a Java executable, for TextWorldExpress.
    """
    if game == "toy":
        from grue.games.toy import ToyGame

        return ToyGame(params)
    if is_native(game):
        return make_native(game, params, read_timeout_s=read_timeout_s)
    if is_plugin(game):
        return make_plugin(game, params)
    from grue.games.twx.game import TwxGame

    return TwxGame(game, params, settings=JvmSettings(java=java, read_timeout_s=read_timeout_s))


__all__ = [
    "FAMILIES",
    "FOLDS",
    "NATIVE",
    "Game",
    "begin_reset",
    "begin_step",
    "canonical_params",
    "check_seed",
    "fold_of",
    "is_known",
    "known_games",
    "make",
    "tasks",
    "what_checks",
]
