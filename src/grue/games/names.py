"""Swapped and invented food names, so that the base learns to read the recipe instead of remembering pairs.

The game's folds share their foods and differ in (food, preparation) pairs: a model trained on train recipes learns
those pairs by heart and fails on dev and test. Renaming every food of a transcript consistently makes memorising
useless and copying from the cookbook the only way. A renaming that would produce a recipe that dev or test may draw is
drawn again; for the base, so is one that would produce a single line of such a recipe.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.resources import files
from itertools import product
from typing import Any

Rename = Callable[[str, dict[str, str]], str]
Pair = tuple[str, str, str]  # food, cut, cook ("" where the recipe asks for none)

_CUT = {"chopped": "chop", "sliced": "slice", "diced": "dice", "uncut": ""}
_COOK = {"fried": "fry", "roasted": "roast", "grilled": "grill", "raw": ""}
_DIRECTION = re.compile(r"^\s*(chop|slice|dice|fry|roast|grill) the (.+?)\s*$", re.M)
_INGREDIENTS = re.compile(r"Ingredients:\n(.*?)\n\s*Directions:", re.S)
INVENTED = tuple(
    f"{colour} {thing}"
    for colour, thing in product(
        ("blue", "silver", "pale", "spotted", "wild", "sweet", "long", "dried"),
        ("mushroom", "radish", "plum", "lentil", "squash", "turnip", "fennel", "pear"),
    )
)


@cache
def game_foods() -> tuple[str, ...]:
    """Every food name of CookingWorld, all folds (names are shared by the folds; recipes are not)."""
    splits = _world()["FOODS_SPLITS"]
    return tuple(sorted({food for foods in splits.values() for food in foods}))


@cache
def _fold_pairs(fold: str) -> frozenset[Pair]:
    """(food, cut, cook) of every recipe line that a fold of the engine (train, valid, test) may draw."""
    ways = _world()["FOOD_PREPARATIONS_SPLITS"][fold]
    return frozenset((food, _CUT[cut], _COOK[cook]) for food, found in ways.items() for cook, cut in found)


@cache
def held_out_pairs() -> frozenset[Pair]:
    """(food, cut, cook) of every recipe line that dev or test may draw, less those without any preparation."""
    pairs = _fold_pairs("valid") | _fold_pairs("test")
    # an ingredient that needs no preparation says nothing about a recipe; all folds share these
    return frozenset(pair for pair in pairs if pair[1] or pair[2])


def is_held_out(recipe: frozenset[Pair]) -> bool:
    """Could dev or test draw this very recipe?"""
    return recipe <= _fold_pairs("valid") or recipe <= _fold_pairs("test")


@cache
def _world() -> dict[str, Any]:
    world: dict[str, Any] = json.loads((files("textworld_express") / "cooking_world.json").read_text(encoding="utf-8"))
    return world


def recipe_pairs(cookbook: str) -> frozenset[Pair]:
    """The (food, cut, cook) of a cookbook page; empty if the text is not a recipe."""
    match = _INGREDIENTS.search(cookbook)
    if match is None:
        return frozenset()
    ways = {line.strip(): ["", ""] for line in match.group(1).splitlines() if line.strip()}
    for verb, food in _DIRECTION.findall(cookbook):
        if food in ways:
            ways[food][0 if verb in ("chop", "slice", "dice") else 1] = verb
    return frozenset((food, cut, cook) for food, (cut, cook) in ways.items())


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile(r"\b(" + "|".join(sorted(map(re.escape, game_foods()), key=len, reverse=True)) + r")\b")


def replacing(pattern: Callable[[], re.Pattern[str]]) -> Rename:
    """A function that replaces what `pattern` matches (its one group) if a mapping has it; the rest stays."""

    @lru_cache(maxsize=20_000)  # games repeat the same texts
    def parts(text: str) -> tuple[str, ...]:  # matches are at the odd places
        return tuple(pattern().split(text))

    def replaced(text: str, names: dict[str, str]) -> str:
        return "".join([names.get(part, part) if place % 2 else part for place, part in enumerate(parts(text))])

    return replaced


rename = replacing(_pattern)  # (text, names) -> the text with foods replaced


def draw_renaming(
    recipe: frozenset[Pair], invented: float, rng: random.Random, *, lines_apart: bool = True
) -> dict[str, str]:
    """A one-to-one renaming of the foods; `invented` is the share of names drawn from INVENTED (0..1).

    The recipe that it makes is never one that dev or test may draw; with `lines_apart` no line of it is either.
    """
    foods = list(game_foods())
    for _ in range(50):
        pool = list(foods)
        if invented > 0:
            pool = [name for name in pool if rng.random() >= invented] + list(INVENTED)
        rng.shuffle(pool)
        names = dict(zip(foods, pool, strict=False))
        renamed = frozenset((names[food], cut, cook) for food, cut, cook in recipe)
        if not (renamed & held_out_pairs() if lines_apart else is_held_out(renamed)):
            return names
    return {}
