"""A teacher that plays coin and mapreader fair: it knows the task, and the rooms that it has seen.

It reads no map. The shortest way through eight rooms cannot be cloned by a small model, which then reads the map for
nothing; going through the door with the right name, and else through the nearest one not used yet, can.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from grue.errors import GameError
from grue.games.teachers.atlas import Atlas
from grue.games.teachers.kitchen import capacity, read_inventory
from grue.types import Observation

_GOAL = re.compile(r"coin that is located in the ([^,]+), and put it into the box found in the ([^.]+)\.")


class Search:
    """Goes where the coin, and then the box, is known to be, or looks for it in the nearest room not seen yet."""

    def __init__(self) -> None:
        self._atlas, self._last = Atlas(), ""
        self._coin, self._box = "", ""  # rooms, where the task names them
        self._places: set[str] = set()  # rooms in which something could be put down

    def start(self, observation: Observation) -> None:
        """A new game: only its task is known."""
        self._atlas, self._last, self._places = Atlas(), "", set()
        named = _GOAL.search(observation.goal)
        self._coin, self._box = named.groups() if named else ("", "")

    def act(self, observation: Observation) -> str:
        self._atlas.update(self._last, observation)
        if any(action.startswith("put ") for action in observation.actions or ()):
            self._places.add(self._atlas.here)
        self._last = self._choose(observation)
        return self._last

    def follow(self, action: str) -> None:
        """`action` has been done instead of what was advised last."""
        self._last = action

    def _choose(self, observation: Observation) -> str:
        atlas, actions = self._atlas, observation.actions or ()
        if "put coin in box" in actions:
            return "put coin in box"
        held = read_inventory(observation.inventory)
        if "coin" not in held and len(held) >= capacity(observation.inventory):
            return self._put_down(actions)
        if "take coin" in actions:
            return "take coin"
        return self._towards(self._box if "coin" in held else atlas.seen.get("coin", self._coin))

    def _put_down(self, actions: Sequence[str]) -> str:
        """Another player has filled the hands: something must go before the coin is taken. GameError if it cannot."""
        puts = [action for action in actions if action.startswith("put ")]
        if puts:
            return puts[0]
        if not self._places and not self._atlas.unknown_exits():
            raise GameError("the game cannot be won any more: the hands are full, and nothing can be put down")
        distances = self._atlas.distances()
        return self._towards(min(self._places, key=lambda room: distances.get(room, 99), default=""))

    def _towards(self, room: str) -> str:
        """One step to `room`, or where its way is not known to the nearest room not seen yet."""
        atlas = self._atlas
        direction = atlas.towards(room)
        if direction is not None:
            return atlas.go(direction)
        unknown = atlas.unknown_exits()
        return atlas.through(unknown[0][1], unknown[0][2]) if unknown else "look around"
