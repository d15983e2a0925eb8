"""Recipes of CookingWorld, and which of them could turn up in another fold.

The engine gives every fold its own list of (food, cooking, cutting) preparations. Only five spices with no
preparation are on more than one list, so a recipe can exist in two folds only if it is made of those alone.
"""

from __future__ import annotations

from functools import cache

import orjson

from grue.errors import GameError
from grue.games.base import PROTECTED

Preparation = tuple[str, str, str]  # food, cooking ("raw", "fried", ...), cutting ("uncut", "diced", ...)

COOKING = {"fry": "fried", "roast": "roasted", "grill": "grilled"}
CUTTING = {"chop": "chopped", "slice": "sliced", "dice": "diced"}


def read_recipe(cookbook: str) -> dict[str, tuple[str, str]]:
    """Food -> (cooking, cutting) from the cookbook's text, in the order of its list of ingredients."""
    lines = [line.strip() for line in cookbook.splitlines()]
    if "Ingredients:" not in lines or "Directions:" not in lines:
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


def can_occur(recipe: dict[str, tuple[str, str]], fold: str) -> bool:
    """True when every preparation of `recipe` is also on the list of `fold`."""
    known = _preparations()[fold]
    return all((food, cooking, cutting) in known for food, (cooking, cutting) in recipe.items())


def is_shared(recipe: dict[str, tuple[str, str]], fold: str) -> bool:
    """True when a task of `fold` with this recipe must be skipped, to keep the folds apart."""
    return any(can_occur(recipe, other) for other in PROTECTED[fold])


@cache
def _preparations() -> dict[str, frozenset[Preparation]]:
    from grue.games.jvm import engine_folder

    raw = orjson.loads((engine_folder() / "cooking_world.json").read_bytes())["FOOD_PREPARATIONS_SPLITS"]
    lists = {
        fold: frozenset((food, cooking, cutting) for food, pairs in foods.items() for cooking, cutting in pairs)
        for fold, foods in raw.items()
    }
    return {"train": lists["train"], "pretrain": lists["train"], "dev": lists["valid"], "test": lists["test"]}
