"""Made-up words for the things of a game, where the folds of a family have different things.

In simonsays, sorting, arithmetic, peckingorder and partly twc, dev and test games hold foods, materials, clothes or
gestures that no train game has. What is said about a thing must be copied from the game's text, whatever its name:
with made-up words in train games, only that pays off. No list of the other folds' names is used.

In sorting the quantities are redrawn as well, in the same order: the train fold has 100 sets of them, which are
sooner learned by heart than compared.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from string import ascii_lowercase, digits

from grue.games.made_up import made_up_word
from grue.games.twx.food_names import replacing
from grue.types import Observation

FAMILIES = ("simonsays", "sorting", "arithmetic", "peckingorder", "twc")

_LETTERS = r"[A-Za-z]+(?:-[A-Za-z]+)*"
_AMOUNT = r"[0-9]+(?:kg|g|mg|l|ml|m|cm|mm)?"


def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])({pattern})(?![\w-])")


_WORD, _QUANTITY, _TERM = _whole(_LETTERS), _whole(_AMOUNT), _whole(f"{_LETTERS}|{_AMOUNT}")
# groups of units that can occur in one game, each unit as a multiple of the smallest
_SCALES: tuple[dict[str, int], ...] = (
    {"": 1},
    {"mg": 1, "g": 1_000, "kg": 1_000_000},
    {"ml": 1, "l": 1_000},
    {"mm": 1, "cm": 10, "m": 1_000},
)
LARGEST = 50  # the game's own quantities go up to this
# what a game's rules name and its goal speaks of, and the small words between
_KEPT = frozenset(("math", "problem", "instructions", "book", "box", "take", "of", "in", "on", "a", "an", "the"))


def things(game: str, actions: Sequence[str]) -> list[str]:
    """The words of `actions` that may be renamed, sorted: what can be taken; in simonsays all."""
    named = actions if game == "simonsays" else [action for action in actions if action.startswith("take ")]
    return sorted({word for action in named for word in _WORD.findall(action)} - _KEPT)


def draw_words(game: str, first: Observation, rng: random.Random) -> dict[str, str]:
    """Made-up words for some of the things in the first observation; the share is drawn too, with mean 2/3.

    In sorting also other quantities, for all of them.
    """
    share = rng.random() ** 0.5
    known = set(_WORD.findall(" ".join((first.text, *(first.actions or ())))))
    names: dict[str, str] = {}
    for word in things(game, first.actions or ()):
        if rng.random() < share:
            while (new := made_up_word(rng)) in known:
                pass
            names[word] = new
            known.add(new)
    if game == "sorting":
        names |= _draw_quantities(first.actions or (), rng)
    return names


reword = replacing(lambda: _TERM)  # (text, names) -> the text with words and quantities replaced


def _draw_quantities(actions: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Other quantities for those that can be taken, in the same order; none where they cannot be compared."""
    found = {quantity for action in actions for quantity in _QUANTITY.findall(action)}
    numbers = {quantity: int(quantity.rstrip(ascii_lowercase)) for quantity in found}
    units = {quantity: quantity.lstrip(digits) for quantity in found}
    scale = next((scale for scale in _SCALES if scale.keys() >= set(units.values())), None)
    if scale is None or not found:
        return {}
    old = sorted(found, key=lambda quantity: (numbers[quantity] * scale[units[quantity]], quantity))
    new: dict[int, str] = {}  # by size: as many as there are, no two of the same size
    while len(new) < len(old):
        number, unit = rng.randint(1, LARGEST), rng.choice(list(scale))
        new[number * scale[unit]] = f"{number}{unit}"
    return dict(zip(old, (new[size] for size in sorted(new)), strict=True))
