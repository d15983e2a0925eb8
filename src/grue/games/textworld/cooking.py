"""The way to the cookbook in textworld-cooking, which its teachers take before they cook.

The engine's expert knows the recipe. A policy can only read it, so demonstrations without it cannot be learnt from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

GAME = "textworld-cooking"
READ = "examine cookbook"
# north_of(A, B): A is north of B
_BEYOND = {"north_of": "north", "south_of": "south", "east_of": "east", "west_of": "west"}


def way_to_cookbook(facts: Iterable[Any]) -> list[str]:
    """The fewest rooms from the player to the cookbook, as commands, with those that open doors on the way.

    `facts` are the engine's propositions about a state. [] where the cookbook is at hand, or out of reach.
    """
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
    where = at.get("cookbook")
    while where in at:
        where = at[where]
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
    return []
