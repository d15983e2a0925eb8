"""A teacher that plays coin and mapreader fair: it knows the task, and the rooms that it has seen.

It reads no map. The shortest way through eight rooms cannot be cloned by a small model, which then reads the map for
nothing; going through the door with the right name, and else through the nearest one not used yet, can.
"""

from __future__ import annotations

import re

from grue.games.teachers.atlas import Atlas
from grue.types import Observation

_GOAL = re.compile(r"coin that is located in the ([^,]+), and put it into the box found in the ([^.]+)\.")


class Search:
    """Goes where the coin, and then the box, is known to be, or looks for it in the nearest room not seen yet."""

    def __init__(self) -> None:
        self._atlas, self._last = Atlas(), ""
        self._coin, self._box = "", ""  # rooms, where the task names them

    def start(self, observation: Observation) -> None:
        """A new game: only its task is known."""
        self._atlas, self._last = Atlas(), ""
        named = _GOAL.search(observation.goal)
        self._coin, self._box = named.groups() if named else ("", "")

    def act(self, observation: Observation) -> str:
        self._atlas.update(self._last, observation)
        self._last = self._choose(observation)
        return self._last

    def follow(self, action: str) -> None:
        """`action` has been done instead of what was advised last."""
        self._last = action

    def _choose(self, observation: Observation) -> str:
        atlas, actions = self._atlas, observation.actions or ()
        done = next((action for action in ("put coin in box", "take coin") if action in actions), None)
        if done is not None:
            return done
        wanted = self._box if re.search(r"\bcoin\b", observation.inventory) else atlas.seen.get("coin", self._coin)
        direction = atlas.towards(wanted)
        if direction is not None:
            return atlas.go(direction)
        unknown = atlas.unknown_exits()
        return atlas.through(unknown[0][1], unknown[0][2]) if unknown else "look around"
