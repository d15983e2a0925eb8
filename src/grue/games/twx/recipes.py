"""Recipes of CookingWorld, and which of them could turn up in another fold.

The engine gives every fold its own list of (food, cooking, cutting) preparations. Only five spices with no
preparation are on more than one list, so a recipe can exist in two folds only if it is made of those alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, runtime_checkable

import orjson

from grue.errors import GameError
from grue.games.base import PROTECTED
from grue.types import Task

Preparation = tuple[str, str, str]  # food, cooking ("raw", "fried", ...), cutting ("uncut", "diced", ...)


@runtime_checkable
class HasRecipe(Protocol):
    """A game that can tell the recipe of a task."""

    def recipe(self, task: Task) -> dict[str, tuple[str, str]]: ...


COOKING = {"fry": "fried", "roast": "roasted", "grill": "grilled"}
CUTTING = {"chop": "chopped", "slice": "sliced", "dice": "diced"}


def read_recipe(cookbook: str) -> dict[str, tuple[str, str]]:
    """Food -> (cooking, cutting) from the cookbook's text, in the order of its list of ingredients."""
    lines = [line.strip() for line in cookbook.splitlines()]
    if not _is_recipe(lines):
        raise GameError(f"this is not a recipe: {cookbook[:80]!r}", hint="read the cookbook where it lies")
    split = lines.index("Directions:")
    foods = [line for line in lines[lines.index("Ingredients:") + 1 : split] if line]
    recipe = dict.fromkeys(foods, ("raw", "uncut"))
    for line in lines[split + 1 :]:
        verb, _, food = line.partition(" the ")
        if food not in recipe:
            continue
        cooking, cutting = recipe[food]
        recipe[food] = (COOKING.get(verb, cooking), CUTTING.get(verb, cutting))
    return recipe


def _is_recipe(lines: Sequence[str]) -> bool:
    return "Ingredients:" in lines and "Directions:" in lines


def preparations(recipe: Mapping[str, tuple[str, str]]) -> frozenset[Preparation]:
    """The same recipe as a set: its order does not matter."""
    return frozenset((food, cooking, cutting) for food, (cooking, cutting) in recipe.items())


def recipe_in(text: str) -> frozenset[Preparation]:
    """The preparations that a text asks for; empty if it is no recipe."""
    return preparations(read_recipe(text)) if _is_recipe([line.strip() for line in text.splitlines()]) else frozenset()


def first_recipe(texts: Iterable[str]) -> frozenset[Preparation]:
    """The preparations of the first recipe among `texts`; empty if there is none."""
    return next((found for text in texts if (found := recipe_in(text))), frozenset())


def can_occur(recipe: frozenset[Preparation], fold: str) -> bool:
    """True when every preparation of `recipe` is also on the list of `fold`."""
    return recipe <= _preparations()[fold]


def is_shared(recipe: frozenset[Preparation], fold: str) -> bool:
    """True when a task of `fold` with this recipe must be skipped, to keep the folds apart."""
    return any(can_occur(recipe, other) for other in PROTECTED[fold])


def is_held_out(recipe: frozenset[Preparation]) -> bool:
    """Could dev or test draw this very recipe?"""
    return can_occur(recipe, "dev") or can_occur(recipe, "test")


@cache
def held_out() -> frozenset[Preparation]:
    """Every preparation that dev or test may ask for; not that of food as it is, which says nothing of a recipe."""
    lists = _preparations()
    return frozenset(way for way in lists["dev"] | lists["test"] if way[1:] != ("raw", "uncut"))


@cache
def kitchen_lists() -> dict[str, Any]:
    """What the engine draws kitchens from, as its file has it."""
    from grue.games.twx.jvm import engine_folder

    lists: dict[str, Any] = orjson.loads((engine_folder() / "cooking_world.json").read_bytes())
    return lists


@cache
def _preparations() -> dict[str, frozenset[Preparation]]:
    lists = {
        fold: frozenset((food, cooking, cutting) for food, pairs in foods.items() for cooking, cutting in pairs)
        for fold, foods in kitchen_lists()["FOOD_PREPARATIONS_SPLITS"].items()
    }
    return {"train": lists["train"], "pretrain": lists["train"], "dev": lists["valid"], "test": lists["test"]}
