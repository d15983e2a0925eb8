"""A game whose things have other names: data augmentation by a symmetry that makes remembering names useless.

In CookingWorld foods exchange their names. A policy trained on a few hundred recipes learns them by heart; with the
names exchanged at every play, reading the cookbook is the only thing that pays. A renaming that would make a recipe
of a dev or test game is never used. In the other families whose folds differ in names, things get made-up words, and
the numbers of sorting and arithmetic are redrawn.
"""

from __future__ import annotations

import random
from dataclasses import replace

from grue.games.twx import sums, words
from grue.games.twx.food_names import Rename, draw_renaming, rename
from grue.games.twx.game import TwxGame
from grue.games.twx.recipes import preparations, recipe_in
from grue.games.twx.told import Told
from grue.types import Episode, Observation, Outcome, Task

GAMES = ("cookingworld", *words.FAMILIES)
NO_SUCH_THING = "grue"  # the engines have none


class Renamed:
    """`game` with things renamed in a `share` of its episodes. `salt` and the task's seed fix the names."""

    def __init__(self, game: TwxGame | Told, salt: str, share: float = 0.5) -> None:
        self._game, self._salt, self._share = game, salt, share
        self._there: dict[str, str] = {}
        self._back: dict[str, str] = {}
        self._rename: Rename = rename

    def begin_reset(self, task: Task) -> None:
        self._game.begin_reset(task)

    def reset(self, task: Task) -> Observation:
        rng = random.Random(f"{self._salt}/{task.seed}")
        chosen, cooking = rng.random() < self._share, task.game == "cookingworld"
        self._rename = rename if cooking else words.reword
        # the recipe, or the problem, is asked for before the game begins, since looking it up makes moves
        self._there = self._foods(task, rng) if chosen and cooking else {}
        problem = None
        if chosen and task.game == "arithmetic" and isinstance(self._game, TwxGame):
            problem = self._game.problem(task)
        observation = self._game.reset(task)
        if chosen and not cooking:
            self._there = _words(task.game, observation, problem, rng)
        self._back = {new: old for old, new in self._there.items()}
        # the game itself still knows the old names, which a player may remember and must not get anywhere with
        self._back |= dict.fromkeys(self._there.keys() - self._back.keys(), NO_SUCH_THING)
        return self._shown(observation)

    def begin_step(self, action: str) -> None:
        self._game.begin_step(self._rename(action, self._back))

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = self._game.step(self._rename(action, self._back))
        return self._shown(observation), reward, outcome

    def close(self) -> None:
        self._game.close()

    def _foods(self, task: Task, rng: random.Random) -> dict[str, str]:
        return draw_renaming(preparations(self._game.recipe(task)), 0.0, rng, lines_apart=False)

    def _shown(self, observation: Observation) -> Observation:
        return renamed_observation(observation, self._there, self._rename) if self._there else observation


def _problem(episode: Episode) -> sums.Problem | None:
    """The problem that an episode of arithmetic posed, if the player read it."""
    if episode.task.game != "arithmetic":
        return None
    return next((found for turn in episode.turns if (found := sums.read_problem(turn.observation.text))), None)


def _words(game: str, first: Observation, problem: sums.Problem | None, rng: random.Random) -> dict[str, str]:
    """Made-up words for the things of a game, and other numbers where it poses a problem."""
    names = words.draw_words(game, first, rng)
    return names if problem is None else names | sums.draw_numbers(first.actions or (), problem, rng)


def renamed_observation(observation: Observation, names: dict[str, str], rename: Rename = rename) -> Observation:
    """The observation with things renamed; valid actions stay sorted."""
    actions = observation.actions
    return replace(
        observation,
        text=rename(observation.text, names),
        inventory=rename(observation.inventory, names),
        actions=None if actions is None else tuple(sorted(rename(action, names) for action in actions)),
    )


def renamed_episode(episode: Episode, rng: random.Random) -> Episode:
    """A played episode with its things renamed throughout, as a game with other names would have shown it.

    Where foods are exchanged, an episode in which nobody read the cookbook keeps its names: its recipe is not known.
    So do the numbers of arithmetic where nobody read the problem.
    """
    turns = episode.turns
    change: Rename = rename
    if episode.task.game in words.FAMILIES:
        names = _words(episode.task.game, turns[0].observation, _problem(episode), rng) if turns else {}
        change = words.reword
    else:
        recipe = next((found for turn in turns if (found := recipe_in(turn.observation.text))), None)
        names = {} if recipe is None else draw_renaming(recipe, 0.0, rng, lines_apart=False)
    if not names:
        return episode
    renamed = tuple(
        replace(
            turn,
            observation=renamed_observation(turn.observation, names, change),
            action=change(turn.action, names),
            advice=change(turn.advice, names),
        )
        for turn in turns
    )
    return replace(episode, turns=renamed)
