"""Scripted players: random, gold, gold-pruned, explore, optimal.

| name        | knows                                    | plays                                    |
|-------------|------------------------------------------|------------------------------------------|
| random      | the valid actions                        | every game that lists them               |
| gold        | the engine's own solution                | every game that can solve itself         |
| gold-pruned | the same, without its idle steps         | every game that can solve itself         |
| explore     | what it has read and seen, like a policy | cookingworld, coin, mapreader, alfworld  |
| optimal     | everything, hidden things too            | cookingworld, textworld, babyai,         |
|             |                                          | alfworld, toy: from any state not lost   |
"""

from __future__ import annotations

from grue.errors import ConfigError, GameError, did_you_mean
from grue.games.base import Game
from grue.games.play import Player
from grue.games.teachers.adviser import Adviser
from grue.games.teachers.explore import Explore
from grue.games.teachers.optimal import Optimal, SeesAll
from grue.games.teachers.planned import Advised, CanAdvise, CanPlan, Planned
from grue.games.teachers.scripted import CanRehearse, Gold, GoldPruned, HasGold, Random

TEACHERS = ("random", "gold", "gold-pruned", "explore", "optimal")
# what else than the contract a teacher asks of a game
_NEEDED = {"gold": "a method gold()", "gold-pruned": "methods gold() and rehearse()", "optimal": "a method plan()"}


def teacher(name: str, game: Game, seed: int = 0) -> Player:
    """The player called `name`, for `game`. `seed` is for `random` only."""
    if name == "random":
        return Random(seed)
    if name == "gold" and isinstance(game, HasGold):
        return Gold(game)
    if name == "gold-pruned" and isinstance(game, CanRehearse):
        return GoldPruned(game)
    if name == "explore":
        return Advised(game) if isinstance(game, CanAdvise) else Explore()
    if name == "optimal" and isinstance(game, SeesAll):
        return Optimal(game)
    if name == "optimal" and isinstance(game, CanPlan):
        return Planned(game)
    if name in _NEEDED:
        raise GameError(
            f"teacher {name!r} needs a game with {_NEEDED[name]}, which this one does not have",
            hint="choose another (of a run: demos.teacher=NAME; random plays every game that lists its valid actions), "
            "or learn without: demos.games=0 sft.epochs=0",
        )
    raise ConfigError(f"unknown teacher {name!r}", hint=did_you_mean(str(name), TEACHERS))


__all__ = [
    "TEACHERS",
    "Adviser",
    "Explore",
    "Gold",
    "GoldPruned",
    "HasGold",
    "Optimal",
    "Player",
    "Random",
    "teacher",
]
