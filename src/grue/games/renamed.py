"""A game in which the foods have other names: data augmentation by a symmetry that the cookbook makes exact.

Only CookingWorld has such names. A policy trained on a few hundred recipes learns them by heart; with the names
exchanged at every play, reading the cookbook is the only thing that pays. A renaming that would make a recipe
line of a dev or test game is never used.
"""

from __future__ import annotations

import random
from dataclasses import replace

from grue.games.names import draw_renaming, rename
from grue.games.recipes import COOKING, CUTTING
from grue.games.twx import TwxGame
from grue.types import Observation, Outcome, Task

_VERB = {adjective: verb for verb, adjective in (COOKING | CUTTING).items()}


class Renamed:
    """`game` with foods renamed in a `share` of its episodes. `salt` and the task's seed fix the names."""

    def __init__(self, game: TwxGame, salt: str, share: float = 0.5) -> None:
        self._game, self._salt, self._share = game, salt, share
        self._there: dict[str, str] = {}
        self._back: dict[str, str] = {}

    def reset(self, task: Task) -> Observation:
        rng = random.Random(f"{self._salt}/{task.seed}")
        self._there = {}
        if rng.random() < self._share:
            recipe = self._game.recipe(task).items()
            pairs = frozenset(
                (food, _VERB.get(cutting, ""), _VERB.get(cooking, "")) for food, (cooking, cutting) in recipe
            )
            self._there = draw_renaming(pairs, 0.0, rng)
        self._back = {new: old for old, new in self._there.items()}
        return self._shown(self._game.reset(task))

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = self._game.step(rename(action, self._back))
        return self._shown(observation), reward, outcome

    def close(self) -> None:
        self._game.close()

    def _shown(self, observation: Observation) -> Observation:
        if not self._there:
            return observation
        actions = observation.actions
        return replace(
            observation,
            text=rename(observation.text, self._there),
            inventory=rename(observation.inventory, self._there),
            actions=None if actions is None else tuple(sorted(rename(action, self._there) for action in actions)),
        )
