"""What every cook knows: how to read a recipe and an inventory, and what to do with food at hand."""

from __future__ import annotations

import re
from collections.abc import Collection

from grue.games.twx.recipes import COOKING, CUTTING

# A house without a backyard has a toaster in the kitchen in place of the barbeque.
DEVICES = {"roasted": ("oven",), "fried": ("stove",), "grilled": ("barbeque", "toaster")}
USUAL_ROOM = {"roasted": "kitchen", "fried": "kitchen", "grilled": "backyard"}
CUT_VERB = {done: verb for verb, done in CUTTING.items()}
ADJECTIVES = frozenset({"raw", *COOKING.values(), *CUTTING.values()})

Recipe = dict[str, tuple[str, str]]  # food -> (cooking, cutting)
Held = dict[str, frozenset[str]]  # item in the inventory -> its adjectives


def read_inventory(text: str) -> Held:
    """Items of an inventory text such as "  a raw diced red onion"."""
    held: Held = {}
    for words in re.findall(r"^\s+(?:an?|some) (.+)$", text, flags=re.MULTILINE):
        adjectives, name = [], words.split()
        while name and name[0] in ADJECTIVES:
            adjectives.append(name.pop(0))
        held[" ".join(name)] = frozenset(adjectives)
    return held


def capacity(inventory: str) -> int:
    """How many items fit; a large number when the game sets no limit."""
    found = re.search(r"maximum capacity is (\d+)", inventory)
    return int(found[1]) if found else 1000


def needs_cut(recipe: Recipe, held: Held, food: str) -> bool:
    """True while `food` has to be cut and is not (food that is not held counts as uncut)."""
    cutting = recipe[food][1]
    return cutting != "uncut" and cutting not in held.get(food, frozenset())


def needs_cooking(recipe: Recipe, held: Held, food: str) -> bool:
    """True while `food` has to be cooked and is not."""
    cooking = recipe[food][0]
    return cooking != "raw" and cooking not in held.get(food, frozenset())


def wanted(recipe: Recipe, held: Held) -> list[str]:
    """What still has to be fetched: missing foods, and the knife while something has to be cut."""
    missing = [food for food in recipe if food not in held]
    if "knife" not in held and any(needs_cut(recipe, held, food) for food in recipe):
        missing.append("knife")
    return missing


def work_at_hand(recipe: Recipe, held: Held, room_left: int, actions: Collection[str]) -> str | None:
    """The useful thing to do on the spot: eat, prepare, take, cut or cook; None when there is none.

    Each of these must be done once anyway, so doing it at the first chance never costs a step.
    """
    for action in ("eat meal", "prepare meal"):
        if action in actions:
            return action
    for item in wanted(recipe, held):
        if f"take {item}" in actions:
            return f"take {item}" if room_left > 0 else _drop(recipe, held, actions)
    for food in recipe:
        if food not in held:
            continue
        cooking, cutting = recipe[food]
        if needs_cut(recipe, held, food) and f"{CUT_VERB[cutting]} {food}" in actions:
            return f"{CUT_VERB[cutting]} {food}"
        if needs_cooking(recipe, held, food):
            for device in DEVICES[cooking]:
                if f"cook {food} in {device}" in actions:
                    return f"cook {food} in {device}"
    return None


def _drop(recipe: Recipe, held: Held, actions: Collection[str]) -> str | None:
    """Put down something that is not needed."""
    knife_in_use = any(needs_cut(recipe, held, food) for food in recipe)
    for item in held:
        if item in recipe or (item == "knife" and knife_in_use):
            continue
        puts = [action for action in sorted(actions) if action.startswith(f"put {item} in ")]
        if puts:
            return puts[0]
    return None
