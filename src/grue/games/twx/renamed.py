"""TextWorldExpress games whose things have other names.

In CookingWorld foods exchange their names. A policy trained on a few hundred recipes learns them by heart; with the
names exchanged at every play, reading the cookbook is the only thing that pays. A renaming that would make a recipe
of a dev or test game is never used. In the other families whose folds differ in names, things get made-up words, and
the numbers of sorting and arithmetic are redrawn. In large mazes of coin the directions are exchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from grue.games.base import Game, innermost
from grue.games.renaming import Names, Renamed, with_names
from grue.games.twx import sums, words
from grue.games.twx.directions import can_turn, draw_directions, turn
from grue.games.twx.food_names import draw_renaming, rename
from grue.games.twx.game import TwxGame
from grue.games.twx.recipes import Preparation, first_recipe, preparations
from grue.types import Episode, Observation, Task

GAMES = ("cookingworld", *words.FAMILIES, "coin")


class RenamedTwx(Renamed):
    """A game of one of GAMES, or what another class makes of it."""

    def __init__(self, game: Game, salt: str, share: float = 0.5) -> None:
        super().__init__(game, salt, share)
        engine = innermost(game)
        assert isinstance(engine, TwxGame)
        self._engine = engine

    def _namer(self, task: Task, rng: random.Random) -> Callable[[Observation], Names]:
        if task.game == "coin":
            turned = _turned(task, rng)
            return lambda _: turned
        # the recipe, or the problem, is asked for before the game begins, since looking it up makes moves
        if task.game == "cookingworld":
            foods = _foods(preparations(self._engine.recipe(task)), rng)
            return lambda _: foods
        problem = self._engine.problem(task) if task.game == "arithmetic" else None
        return lambda first: _words(task.game, first, problem, rng)


def renamed_episode(episode: Episode, rng: random.Random) -> Episode:
    """A played episode with its things renamed throughout, as a game with other names would have shown it.

    Where foods are exchanged, an episode in which nobody read the cookbook keeps its names: its recipe is not known.
    So do the numbers of arithmetic where nobody read the problem.
    """
    turns, game = episode.turns, episode.task.game
    if game == "coin":
        return with_names(episode, _turned(episode.task, rng))
    if game in words.FAMILIES:
        return with_names(episode, _words(game, turns[0].observation, _problem(episode), rng)) if turns else episode
    recipe = first_recipe(turn.observation.text for turn in turns)
    return with_names(episode, _foods(recipe, rng)) if recipe else episode


def _problem(episode: Episode) -> sums.Problem | None:
    """The problem that an episode of arithmetic posed, if the player read it."""
    if episode.task.game != "arithmetic":
        return None
    return next((found for turn in episode.turns if (found := sums.read_problem(turn.observation.text))), None)


def _turned(task: Task, rng: random.Random) -> Names:
    return Names(draw_directions(rng) if can_turn(task.params) else {}, turn)


def _foods(recipe: frozenset[Preparation], rng: random.Random) -> Names:
    return Names(draw_renaming(recipe, 0.0, rng, lines_apart=False), rename)


def _words(game: str, first: Observation, problem: sums.Problem | None, rng: random.Random) -> Names:
    """Made-up words for the things of a game, and other numbers where it poses a problem."""
    names = words.draw_words(game, first, rng)
    if problem is not None:
        names |= sums.draw_numbers(first.actions or (), problem, rng)
    return Names(names, words.reword)
