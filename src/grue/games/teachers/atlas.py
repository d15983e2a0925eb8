"""What a player remembers of the places it has been to, from the texts alone."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from grue.games.teachers.kitchen import DEVICES
from grue.types import Observation

_EXIT = re.compile(
    r"(?:Through an open (?P<open_door>[^,.]+), to|To) the (?P<direction>North|East|South|West) "
    r"you see (?:an? closed (?P<closed_door>[^.]+)|the (?P<room>[^.]+))\."
)
_DEVICE_NAMES = [name for names in DEVICES.values() for name in names]


@dataclass
class Exit:
    """One way out of a room."""

    room: str | None = None  # what lies beyond; None: not seen yet
    door: str | None = None  # what kind of door; None: an open passage
    closed: bool = False

    @property
    def steps(self) -> int:
        """Steps to get through."""
        return 2 if self.closed else 1


@dataclass
class Atlas:
    """Rooms, exits, closed containers and things seen."""

    here: str = ""
    exits: dict[str, dict[str, Exit]] = field(default_factory=dict)  # visited room -> direction -> exit
    closed: dict[str, set[str]] = field(default_factory=dict)  # visited room -> its closed containers
    seen: dict[str, str] = field(default_factory=dict)  # thing that can be taken -> room
    devices: dict[str, str] = field(default_factory=dict)  # cooking device -> room

    def update(self, action: str, observation: Observation) -> None:
        """Take in what `action` ("" at the start) brought to light."""
        room = re.match(r"You are in the ([^.]+)\.", observation.text)
        if room:
            self.here = room[1]
            self._read_exits(observation.text)
            self.devices |= {name: self.here for name in _DEVICE_NAMES if f"a {name}" in observation.text}
        revealed = re.match(r"You open the .+, revealing the ([^.]+)\.", observation.text)
        if revealed and action.startswith("open door to "):
            way = self.exits[self.here].setdefault(action.rpartition(" ")[2], Exit())
            way.room, way.closed = revealed[1], False
        self._notice_closed_doors(action, observation.text)
        actions = observation.actions or ()
        self.closed[self.here] = {
            name.removeprefix("open ")
            for name in actions
            if name.startswith("open ") and not name.startswith("open door to ")
        }
        takeable = {name.removeprefix("take ") for name in actions if name.startswith("take ")}
        self.seen = {thing: where for thing, where in self.seen.items() if where != self.here}
        self.seen |= dict.fromkeys(takeable, self.here)

    def _notice_closed_doors(self, action: str, text: str) -> None:
        """A door that has just been closed, or that was found closed: another player may leave it so."""
        way = self.exits.get(self.here, {}).get(action.rpartition(" ")[2])
        closed = action.startswith("close door to ") and text.startswith("You close the ")
        if way is not None and (closed or (action.startswith("move ") and "the door is closed" in text)):
            way.closed = True

    def _read_exits(self, text: str) -> None:
        known = self.exits.setdefault(self.here, {})
        for found in _EXIT.finditer(text):
            way = known.setdefault(found["direction"].lower(), Exit())
            way.door = found["open_door"] or found["closed_door"]
            way.closed = found["closed_door"] is not None
            way.room = found["room"] or way.room

    def visited(self, room: str) -> bool:
        return room in self.exits

    def distances(self) -> dict[str, int]:
        """Steps from here to every room that is known by name, opening doors on the way."""
        return {room: steps for room, (steps, _) in self._routes().items()}

    def towards(self, room: str) -> str | None:
        """The direction of the first step to `room`; None when no way is known or it is here."""
        return self._routes().get(room, (0, None))[1]

    def go(self, direction: str) -> str:
        """The action that leaves in this direction; a closed door is opened first."""
        way = self.exits[self.here].get(direction)
        if way is None:
            return "look around"
        return f"open door to {direction}" if way.closed else f"move {direction}"

    def through(self, room: str, direction: str) -> str:
        """The next action on the way through an exit of `room`."""
        return self.go(direction if room == self.here else self.towards(room) or "")

    def unknown_exits(self) -> list[tuple[int, str, str, Exit]]:
        """(steps, room, direction, exit) of exits that nobody has looked beyond, nearest first."""
        distances = self.distances()
        found = [
            (distances[room] + way.steps, room, direction, way)
            for room, ways in self.exits.items()
            if room in distances
            for direction, way in ways.items()
            if way.room is None or not self.visited(way.room)
        ]
        return sorted(found, key=lambda item: item[:3])

    def _routes(self) -> dict[str, tuple[int, str | None]]:
        """room -> (steps, first direction), by relaxing edges until nothing improves (maps are small)."""
        routes: dict[str, tuple[int, str | None]] = {self.here: (0, None)}
        queue = deque([self.here])
        while queue:
            room = queue.popleft()
            steps, first = routes[room]
            for direction, way in sorted(self.exits.get(room, {}).items()):
                if way.room is None:
                    continue
                total = steps + way.steps
                if way.room not in routes or total < routes[way.room][0]:
                    routes[way.room] = (total, first or direction)
                    queue.append(way.room)
        return routes
