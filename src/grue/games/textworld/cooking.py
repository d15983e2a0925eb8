"""Reading the cookbook in games of `tw-cooking`, which teachers do before they cook.

The engine's expert knows the recipe. A policy can only read it, so demonstrations without it cannot be learnt from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from grue.games.twx.recipes import first_recipe

_BOOK = "cookbook"
_HELD = "I"  # what the player holds, in facts
# north_of(A, B): A is north of B
_BEYOND = {"north_of": "north", "south_of": "south", "east_of": "east", "west_of": "west"}


def reading(goal: str, facts: Iterable[Any], shown: Iterable[str]) -> list[str]:
    """The commands that read the cookbook from here; [] where that is done, or the goal tells of none to read.

    `facts` are the engine's propositions about the state, and `shown` is what it has answered so far. [] also for a
    cookbook that was shut away.
    """
    if _BOOK not in goal or first_recipe(shown):
        return []
    way = _way_to(_BOOK, facts)
    return [] if way is None else [*way, f"examine {_BOOK}"]


def _way_to(thing: str, facts: Iterable[Any]) -> list[str] | None:
    """The commands that lead to `thing` through the fewest rooms, and open doors on the way; None if there is none."""
    at: dict[str, str] = {}  # a thing: what it is at, on or in
    exits: dict[str, list[tuple[str, str]]] = {}  # a room: (direction, room)
    doors: dict[frozenset[str], str] = {}
    closed = set()
    for fact in facts:
        names = [argument.name for argument in fact.arguments]
        if fact.name in ("at", "on", "in"):
            at[names[0]] = names[1]
        elif fact.name in _BEYOND:
            exits.setdefault(names[1], []).append((_BEYOND[fact.name], names[0]))
        elif fact.name == "link":
            doors[frozenset((names[0], names[2]))] = names[1]
        elif fact.name == "closed":
            closed.add(names[0])
    where = at.get(thing)
    while where in at and where not in closed:
        where = at[where]
    if where == _HELD:
        return [f"drop {thing}"]  # the engine lists no examining of what one holds
    queue = deque([(at["P"], list[str]())])
    seen = {at["P"]}
    while queue:
        room, way = queue.popleft()
        if room == where:
            return way
        for direction, beyond in exits.get(room, ()):
            if beyond not in seen:
                seen.add(beyond)
                door = doors.get(frozenset((room, beyond)))
                opening = [f"open {door}"] if door in closed else []
                queue.append((beyond, [*way, *opening, f"go {direction}"]))
    return None
