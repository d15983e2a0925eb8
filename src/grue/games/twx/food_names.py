"""Swapped and invented food names, so that the base learns to read the recipe instead of remembering pairs.

The game's folds share their foods and differ in (food, preparation) pairs: a model trained on train recipes learns
those pairs by heart and fails on dev and test. Renaming every food of a transcript consistently makes memorising
useless and copying from the cookbook the only way. A renaming that would produce a recipe that dev or test may draw is
drawn again; for the base, so is one that would produce a single line of such a recipe.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import product

from grue.games.renaming import Rename
from grue.games.twx.recipes import Preparation, held_out, is_held_out, kitchen_lists

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
    return tuple(sorted({food for foods in kitchen_lists()["FOODS_SPLITS"].values() for food in foods}))


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
    recipe: frozenset[Preparation], invented: float, rng: random.Random, *, lines_apart: bool = True
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
        renamed = frozenset((names[food], cooking, cutting) for food, cooking, cutting in recipe)
        if not (renamed & held_out() if lines_apart else is_held_out(renamed)):
            return names
    return {}
