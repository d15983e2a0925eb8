"""textworld-cooking with foods that have exchanged their names.

Its foods, and the lists of preparations for train, dev and test, are those of CookingWorld, and it takes the same to
learn to read the recipe instead of remembering it (`twx/food_names.py`). A renaming that would make a recipe of a dev
or test game is never used.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import orjson

from grue.errors import GameError
from grue.games.renaming import Names, Renamed, with_names
from grue.games.textworld.make import game_file
from grue.games.twx.food_names import game_foods, rename
from grue.games.twx.recipes import Preparation, can_occur, first_recipe, kitchen_lists
from grue.types import Episode, Observation, Task

GAME = "textworld-cooking"
_DRAWS = 50
_LATER = {"dev": "valid", "test": "test"}  # a fold that is not trained on: its name in the engine's lists


class RenamedFoods(Renamed):
    """A game of textworld-cooking, or what another class makes of it."""

    def _namer(self, task: Task, rng: random.Random) -> Callable[[Observation], Names]:
        return lambda _: _exchanged(_recipe(task), rng)  # the game's file is there once the game has begun


def renamed_foods(episode: Episode, rng: random.Random) -> Episode:
    """A played episode with its foods renamed throughout, as a game with other names would have shown it.

    One in which nobody read the cookbook keeps its names: its recipe is not known.
    """
    recipe = first_recipe(turn.observation.text for turn in episode.turns)
    return with_names(episode, _exchanged(recipe, rng)) if recipe else episode


def could_be_drawn(recipe: frozenset[Preparation], fold: str) -> bool:
    """Could a game of `fold`, "dev" or "test", have this recipe? It has a list, and foods of its own for any way."""
    own = set(kitchen_lists()["FOODS_SPLITS"][_LATER[fold]])
    return can_occur(frozenset(way for way in recipe if way[0] not in own), fold)


def _exchanged(recipe: frozenset[Preparation], rng: random.Random) -> Names:
    foods = game_foods()
    for _ in range(_DRAWS):
        names = dict(zip(foods, rng.sample(foods, len(foods)), strict=True))
        renamed = frozenset((names[food], cooking, cutting) for food, cooking, cutting in recipe)
        if not any(could_be_drawn(renamed, fold) for fold in _LATER):
            return Names(names, rename)
    return Names({}, rename)


def _recipe(task: Task) -> frozenset[Preparation]:
    """What the game's cookbook says, from the file that the generator made."""
    about = game_file(task).with_suffix(".json")
    try:
        made = orjson.loads(about.read_bytes())["metadata"]["ingredients"]
        return frozenset((str(food), str(cooking), str(cutting)) for food, cooking, cutting in made)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GameError(
            f"{about} does not tell the recipe: {error}", hint="delete it, to have it made again"
        ) from error
