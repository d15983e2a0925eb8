"""Made-up words for the foods of textworld-cooking, whose folds have different foods and preparations."""

from __future__ import annotations

import random

from grue.games.made_up import made_up_names
from grue.games.twx.food_names import game_foods
from grue.types import Observation

_KEPT = "of"  # of "block of cheese"
_LONGEST = 8  # letters: some foods have three words


def renamed_foods(first: Observation, rng: random.Random) -> dict[str, str]:
    """Another name for each food, word by word: two red things share a word then, too.

    The foods are those of TextWorldExpress. No recipe of another fold can come about, since none has such words.
    """
    foods = game_foods()
    words = made_up_names({word for food in foods for word in food.split()} - {_KEPT}, first, rng, _LONGEST)
    return {food: " ".join(words.get(word, word) for word in food.split()) for food in foods}
