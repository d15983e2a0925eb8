"""A game in which the foods have other names: data augmentation by a symmetry that the cookbook makes exact.

Only CookingWorld has such names. A policy trained on a few hundred recipes learns them by heart; with the names
exchanged at every play, reading the cookbook is the only thing that pays. A renaming that would make a recipe
of a dev or test game is never used.
"""

from __future__ import annotations

import random
from dataclasses import replace

from grue.games.names import draw_renaming, recipe_pairs, rename
from grue.games.recipes import COOKING, CUTTING
from grue.games.told import Told
from grue.games.twx import TwxGame
from grue.types import Episode, Observation, Outcome, Task

_VERB = {adjective: verb for verb, adjective in (COOKING | CUTTING).items()}


class Renamed:
    """`game` with foods renamed in a `share` of its episodes. `salt` and the task's seed fix the names."""

    def __init__(self, game: TwxGame | Told, salt: str, share: float = 0.5) -> None:
        self._game, self._salt, self._share = game, salt, share
        self._there: dict[str, str] = {}
        self._back: dict[str, str] = {}

    def begin_reset(self, task: Task) -> None:
        self._game.begin_reset(task)

    def reset(self, task: Task) -> Observation:
        rng = random.Random(f"{self._salt}/{task.seed}")
        self._there = {}
        if rng.random() < self._share:
            recipe = self._game.recipe(task).items()
            pairs = frozenset(
                (food, _VERB.get(cutting, ""), _VERB.get(cooking, "")) for food, (cooking, cutting) in recipe
            )
            self._there = draw_renaming(pairs, 0.0, rng, lines_apart=False)
        self._back = {new: old for old, new in self._there.items()}
        return self._shown(self._game.reset(task))

    def begin_step(self, action: str) -> None:
        self._game.begin_step(rename(action, self._back))

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = self._game.step(rename(action, self._back))
        return self._shown(observation), reward, outcome

    def close(self) -> None:
        self._game.close()

    def _shown(self, observation: Observation) -> Observation:
        return renamed_observation(observation, self._there) if self._there else observation


def renamed_observation(observation: Observation, names: dict[str, str]) -> Observation:
    """The observation with foods renamed; valid actions stay sorted."""
    actions = observation.actions
    return replace(
        observation,
        text=rename(observation.text, names),
        inventory=rename(observation.inventory, names),
        actions=None if actions is None else tuple(sorted(rename(action, names) for action in actions)),
    )


def renamed_episode(episode: Episode, rng: random.Random) -> Episode:
    """A played episode with its foods renamed throughout, as a game with other names would have shown it.

    An episode in which nobody read the cookbook keeps its names: its recipe is not known.
    """
    pairs = next((found for turn in episode.turns if (found := recipe_pairs(turn.observation.text))), None)
    if pairs is None or not (names := draw_renaming(pairs, 0.0, rng, lines_apart=False)):
        return episode
    turns = tuple(
        replace(turn, observation=renamed_observation(turn.observation, names), action=rename(turn.action, names))
        for turn in episode.turns
    )
    return replace(episode, turns=turns)
